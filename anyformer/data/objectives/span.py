"""Span corruption (Raffel et al. 2019): spans give way to sentinels, and the decoder writes what they hid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from anyformer.data.objectives import Setting, TextObjective, first_eos, ids_of
from anyformer.errors import DataError
from anyformer.specs.axes import Problem
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    from anyformer.data.shards import Index
    from anyformer.data.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Span(TextObjective, kind="span"):
    """Source: the text with a sentinel for each hidden span, and eos. Target: each sentinel with its span, and eos.

    As in T5's random_spans_noise_mask, what is hidden in how many spans depends on the length alone.
    """

    topologies = ("encoder-decoder",)
    ends_source = True
    heads = ("lm",)
    lanes = {"": ("input_ids",), "decoder_": ("labels",)}
    share: float = 0.15
    """Share of the tokens that are hidden."""
    mean: float = 3.0
    """Mean length of a hidden span."""
    sentinels: tuple[int, ...] = ()
    """The sentinel ids in order; unset: `reserved` ids counted down from the top of the vocabulary."""
    reserved: int = 100

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        if not 0 < self.share < 1:
            yield "objective.share", f"{self.share} is not between 0 and 1"
        if self.mean < 1:
            yield "objective.mean", f"{self.mean} is below 1, the shortest span"
        if not self.sentinels and not 0 < self.reserved < spec.vocab:
            yield "objective.reserved", f"{self.reserved} sentinels don't fit a vocabulary of {spec.vocab}"
        outside = [i for i in self.sentinels if not 0 <= i < spec.vocab]
        if outside or len(set(self.sentinels)) < len(self.sentinels):
            yield "objective.sentinels", f"must be different ids below {spec.vocab}; look at {outside[:4] or 'repeats'}"
        if spec.source_vocab is not None:
            why = "source and target are parts of one text, so both are of one vocabulary; leave out source_vocab"
            yield "source_vocab", f"{spec.source_vocab} is of the source alone, but {why}"

    def ready(self, index: Index, tokenizer: Tokenizer | None) -> Self:
        return replace(self, sentinels=self.sentinels or tuple(index.sentinels))

    def _sentinels(self, spec: ModelSpec) -> Any:
        if self.sentinels:
            return np.array(self.sentinels, np.int64)
        return np.arange(spec.vocab - 1, spec.vocab - 1 - self.reserved, -1)

    def around(self, setting: Setting, *, stream: bool) -> tuple[int | None, int | None]:
        return None, first_eos(setting.spec) if stream else None

    def hidden(self, tokens_P: Any) -> tuple[Any, Any]:
        """How many of so many tokens are hidden, and in how many spans."""
        tokens_P = np.asarray(tokens_P)
        noise_P = np.clip(np.rint(tokens_P * self.share), 1, np.maximum(tokens_P - 1, 1)).astype(np.int64)
        spans_P = np.maximum(np.rint(noise_P / self.mean), 1).astype(np.int64)
        return noise_P, np.minimum(spans_P, np.maximum(tokens_P - noise_P, 1))

    def cells(self, tokens_P: Any, setting: Setting) -> dict[str, Any]:
        noise_P, spans_P = self.hidden(tokens_P)
        return {"": tokens_P - noise_P + spans_P + 1, "decoder_": noise_P + spans_P + 1}

    def max_tokens(self, setting: Setting) -> int:
        tokens = np.arange(1, 2 * setting.length + 1)
        fits = np.maximum.reduce(list(self.cells(tokens, setting).values())) <= setting.length
        room = int(tokens[fits].max(initial=0))
        spans, known = int(self.hidden(max(room, 1))[1]), len(self._sentinels(setting.spec))
        if spans > known:
            raise DataError(
                f"objective.sentinels: {room} tokens, which become a row of {setting.length}, have {spans} hidden spans, "
                f"and there are {known} sentinels; reserve more, or give a shorter length"
            )
        return room

    def to_inputs(self, ids_N: Any, setting: Setting, key: tuple[int, ...]) -> dict[str, Any]:
        sentinels, end = self._sentinels(setting.spec), ids_of(first_eos(setting.spec))
        taken = ids_N[np.isin(ids_N, sentinels)]
        if len(taken):
            way = f"widen the vocabulary by {len(sentinels)}, or name other sentinels (objective.sentinels)"
            raise DataError(f"token {taken[0]} of the text is a sentinel; {way}")
        draw = np.random.default_rng(key)
        noise, spans = (int(n) for n in self.hidden(len(ids_N)))
        kept = _lengths(len(ids_N) - noise, spans, draw)
        lost = _lengths(noise, spans, draw)
        source, target, place = list[Any](), list[Any](), 0
        for sentinel, keep, lose in zip(sentinels[:, None], kept, lost, strict=False):
            source += [ids_N[place : place + keep], sentinel]
            target += [sentinel, ids_N[place + keep : place + keep + lose]]
            place += keep + lose
        return {"input_ids": np.concatenate([*source, end]), "labels": np.concatenate([*target, end])}


def _lengths(items: int, parts: int, draw: np.random.Generator) -> list[int]:
    """Lengths of so many parts of at least one item each, every division as likely as any other."""
    if items < parts:
        # A text of one token has nothing to keep.
        return [items] + [0] * (parts - 1)
    cuts = np.sort(draw.choice(items - 1, parts - 1, replace=False)) + 1 if parts > 1 else np.zeros(0, np.int64)
    return np.diff(np.concatenate([[0], cuts, [items]])).tolist()
