"""Vectors of rows of ids: a batch at a time, so that those who generate wait for no more than that."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.generation.pipelines.rows import padded
from anyformer.generation.pipelines.sentence import SentenceModules
from anyformer.generation.pipelines.source import Source
from anyformer.model.eval_mode import without_head
from anyformer.serve.engine.messages import Message, pack_floats
from anyformer.specs.embed_head import Classifier

POOLINGS = ("mean", "cls", "last", "none", "model")


class Embedder:
    """States of tokens without the head, and what is made of them."""

    def __init__(self, source: Source, sentence: SentenceModules | None, *, length: int, tokens: int) -> None:
        self.source, self.sentence, self.length, self.tokens = source, sentence, length, tokens
        self.body = without_head(source.model)
        if source.model.spec.head.pools:
            # It would leave one state of each row; without it there are all.
            self.body.spec = source.model.spec.vary({"head": {"kind": "none"}, "loss": {}})

    def check(self, rows: Any, pooling: str) -> None:
        """Refuse what can't be read."""
        spec = self.source.model.spec
        if spec.embed.reads != "input_ids":
            raise InputError(f"input: this model reads {spec.embed.reads}, and no text")
        if pooling not in POOLINGS or (pooling == "model" and self.sentence is None):
            raise InputError(f"pooling: {pooling!r} is unknown here (known: {', '.join(POOLINGS[:-1])})")
        for i, row in enumerate(rows):
            if not row:
                raise InputError(f"input {i}: has no tokens; give a text")
            if len(row) > self.length:
                raise InputError(
                    f"input {i}: has {len(row):,} tokens, and this server reads {self.length:,}; shorten it"
                )
            if min(row) < 0 or max(row) >= spec.input_vocab:
                raise InputError(f"input {i}: holds a token that is not below the vocabulary of {spec.input_vocab:,}")

    def batches(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Which rows run together: of like length, and within the tokens of a step."""
        order, found = sorted(range(len(rows)), key=lambda i: -len(rows[i])), list[int]()
        for i in order:
            if found and len(rows[found[0]]) * (len(found) + 1) > self.tokens:
                yield found
                found = []
            found.append(i)
        if found:
            yield found

    @torch.inference_mode()
    def states(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """The last states (B,T,D) of rows, padded behind; of an encoder-decoder, its encoder's."""
        spec, to_device = self.body.spec, self.source.to_device
        ids, mask = padded(rows, spec.input_pad or 0)
        more: dict[str, Any] = {}
        if spec.embed.token_types > 0 or spec.head.kind == "pair":
            more["token_types"] = to_device([[0] * len(ids[0])] * len(ids))
        if spec.topology != "decoder" and self.body.encoder.reads_marks:
            more["global_mask"] = to_device([[0] * len(ids[0])] * len(ids))
        if spec.topology == "encoder-decoder" and not isinstance(spec.head, Classifier):
            more["decoder_input_ids"] = to_device([[spec.ids.start or 0]] * len(ids))
        out = self.body(to_device(ids), attention_mask=to_device(mask), **more)
        return out.hidden if out.encoder_states is None else out.encoder_states

    @torch.inference_mode()
    def vectors(self, states_TD: Tensor, pooling: str, *, normalize: bool, prompt: int) -> Tensor:
        """(N,D) of one row without padding: one vector, or with `none` one for each token."""
        if pooling == "model" and self.sentence is not None:
            found_ND = self.sentence.vector(states_TD, prompt)[None]
        else:
            states_TD = states_TD.to(torch.promote_types(states_TD.dtype, torch.float32))
            ways = {"mean": lambda: states_TD.mean(0, keepdim=True), "cls": lambda: states_TD[:1], "last": lambda: states_TD[-1:]}  # fmt: skip
            found_ND = ways.get(pooling, lambda: states_TD)()
        return F.normalize(found_ND, dim=-1) if normalize else found_ND


class EmbedJob:
    """Rows of one request; `advance` computes one batch of them."""

    def __init__(self, embedder: Embedder, message: Message) -> None:
        self.embedder, self.number = embedder, message["number"]
        self.rows: list[list[int]] = message["rows"]
        self.pooling, self.normalize, self.prompt = message["pooling"], message["normalize"], message.get("prompt", 0)
        embedder.check(self.rows, self.pooling)
        self.num_tokens = sum(map(len, self.rows))
        self._left = list(embedder.batches(self.rows))
        self._found = [array("f")] * len(self.rows)
        self._width = embedder.source.model.spec.width

    @property
    def done(self) -> bool:
        """Whether all rows are computed."""
        return not self._left

    def advance(self) -> None:
        """Compute one more batch."""
        batch = self._left.pop(0)
        states_BTD = self.embedder.states([self.rows[i] for i in batch])
        for b, i in enumerate(batch):
            found_ND = self.embedder.vectors(
                states_BTD[b, : len(self.rows[i])], self.pooling, normalize=self.normalize, prompt=self.prompt
            )
            exact = found_ND.dtype == torch.float64
            numbers = array("d" if exact else "f")
            numbers.frombytes(
                found_ND.to(torch.float64 if exact else torch.float32).cpu().contiguous().numpy().tobytes()
            )
            self._found[i], self._width = numbers, found_ND.shape[-1]

    def answer(self) -> Message:
        """The vectors, for `unpack_floats`."""
        return pack_floats(self._found, self._width)
