"""Masked language modelling (Devlin et al. 2018): some tokens are hidden, and predicted from both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from anyformer.data.dataset import IGNORE
from anyformer.data.objectives import Framed, Setting, TextObjective
from anyformer.specs.axes import Problem
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    from anyformer.data.shards import Index
    from anyformer.data.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Masked(TextObjective, Framed, kind="masked"):
    """round(share * n) of a text's n tokens, at least one and none of them special, are drawn anew each epoch."""

    topologies = ("encoder",)
    heads = ("lm",)
    share: float = 0.15
    """Share of the tokens that are predicted."""
    as_mask: float = 0.8
    """Share of these that become the mask id."""
    as_random: float = 0.1
    """Share of these that become any token of the vocabulary. The rest stay as they are."""
    whole_word: bool = False
    """Whether the tokens of a word are chosen together."""
    mask: int | None = None
    """The mask id; unset: the tokenizer's."""

    word_starts: ClassVar[Any] = None
    """Which tokens of the vocabulary begin a word, (vocab,) of bool; None: not known."""

    def knowing(self, word_starts: Any) -> Self:
        """The same, told which tokens of the vocabulary begin a word. It is no option: the tokenizer says it."""
        told = replace(self)
        object.__setattr__(told, "word_starts", np.asarray(word_starts, bool))
        return told

    def ready(self, index: Index, tokenizer: Tokenizer | None) -> Self:
        from anyformer.data.tokenizer import word_starts

        made = super().ready(index, tokenizer)
        return made if tokenizer is None or not self.whole_word else made.knowing(word_starts(tokenizer))

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        if not 0 < self.share <= 1:
            yield "objective.share", f"{self.share} is not above 0 and at most 1"
        if min(self.as_mask, self.as_random) < 0 or self.as_mask + self.as_random > 1 + 1e-9:
            yield "objective.as_mask", f"{self.as_mask} and {self.as_random} are not shares of one whole"
        if self.mask is None:
            yield "objective.mask", "is missing, and the tokenizer has no token such as [MASK]; give its id"
        elif not 0 <= self.mask < spec.vocab:
            yield "objective.mask", f"{self.mask} is not in the vocabulary of {spec.vocab}"
        if self.whole_word and self.word_starts is None:
            yield "objective.whole_word", "it is not known which tokens begin a word; say it with knowing(word_starts)"

    def around(self, setting: Setting, *, stream: bool) -> tuple[int | None, int | None]:
        return None, self.last(setting.spec) if stream else None

    def max_tokens(self, setting: Setting) -> int:
        return setting.length - self.frame(setting.spec)

    def cells(self, tokens_P: Any, setting: Setting) -> dict[str, Any]:
        return {"": tokens_P + self.frame(setting.spec)}

    def to_inputs(self, ids_N: Any, setting: Setting, key: tuple[int, ...]) -> dict[str, Any]:
        spec = setting.spec
        ids_N = self.framed(ids_N, spec)
        open_N = np.ones(len(ids_N), bool)
        for special in {self.first(spec), self.last(spec), self.mask, spec.ids.pad, spec.ids.bos, *spec.ids.eos}:
            open_N &= True if special is None else ids_N != special
        draw = np.random.default_rng(key)
        chosen = self._chosen(ids_N, open_N, setting, draw)
        labels_N = np.full_like(ids_N, IGNORE)
        labels_N[chosen] = ids_N[chosen]
        fate = draw.random(len(chosen))
        other = chosen[(fate >= self.as_mask) & (fate < self.as_mask + self.as_random)]
        ids_N[chosen[fate < self.as_mask]] = self.mask
        ids_N[other] = draw.integers(spec.vocab, size=len(other))
        return {"input_ids": ids_N, "labels": labels_N}

    def _chosen(self, ids_N: Any, open_N: Any, setting: Setting, draw: np.random.Generator) -> Any:
        places = np.flatnonzero(open_N)
        count = max(round(self.share * len(places)), 1)
        if not self.whole_word:
            return np.sort(draw.permutation(places)[:count])
        known = np.zeros(0, bool) if self.word_starts is None else self.word_starts
        # The vocabulary may be rounded up to a size that suits hardware.
        starts_V = np.concatenate([known, np.ones(max(setting.spec.vocab - len(known), 0), bool)])
        starts_N = starts_V[ids_N] | ~open_N
        # The first token of a piece begins a word for it; no word reaches over a special id, which is one by itself.
        starts_N[:1] = True
        word_of = (np.cumsum(starts_N) - 1)[places]
        sizes = np.bincount(word_of)
        taken, left = list[int](), count
        for word in draw.permutation(np.unique(word_of)).tolist():
            # As BERT does it: a word that is more than what is left to choose gives way to a shorter one.
            if sizes[word] <= left or not taken:
                taken.append(word)
                left -= int(sizes[word])
            if left <= 0:
                break
        return places[np.isin(word_of, taken)]
