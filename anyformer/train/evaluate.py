"""How well a model predicts texts: perplexity and bits per byte, in sliding windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import DataError, InputError
from anyformer.model.models import Model
from anyformer.model.reading import headless, reading
from anyformer.train.crew import Crew

TOKENS = {"cpu": 2048}
"""Tokens that are read at once. A CPU is fastest while they stay in its caches."""
MANY = 32_768
"""The same on an accelerator."""
LOGITS = 2**22
"""Logits that are held at once."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a model makes of texts. `a + b` is the score of both together."""

    tokens: int
    """Tokens that were predicted."""
    bytes: int
    """Bytes of UTF-8 that they stand for; 0 if only ids were given."""
    nats: float
    """Sum of -ln p over those tokens."""
    documents: int
    context: int
    stride: int

    @property
    def nats_per_token(self) -> float:
        """The mean loss."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Exp of the mean nats per token: as unsure as among so many equally likely tokens."""
        return math.exp(min(self.nats_per_token, 709.0))

    @property
    def bits_per_byte(self) -> float | None:
        """Bits for each byte of text, which compares models whatever their tokenizers; None if only ids were given."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None

    def __add__(self, other: Score) -> Score:
        return Score(
            tokens=self.tokens + other.tokens,
            bytes=self.bytes + other.bytes,
            nats=self.nats + other.nats,
            documents=self.documents + other.documents,
            context=self.context,
            stride=self.stride,
        )


class Window(NamedTuple):
    """Tokens `start` to `end` of a document are read; those from `first` on are predicted, each by the one before."""

    document: int
    start: int
    first: int
    end: int


def score(
    model: Model,
    tokenizer: Tokenizer,
    texts: str | Sequence[str],
    *,
    stride: int | None = None,
    context: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Score:
    """Score texts, each a document of its own.

    A document begins with the spec's bos token; without one its first token is only read, and its bytes don't count.

    Args:
        model: A decoder with an lm head. It runs in eval mode, and gets its mode back.
        tokenizer: The model's own.
        texts: One text or more.
        stride: Tokens by which a window moves on (default: half of the context). A token is predicted from at least
            context - stride tokens before it, where there are so many.
        context: Tokens that are read at once (default: the spec's context).
        report: Called after each batch with the number of tokens predicted so far, and of all.
    """
    documents = [texts] if isinstance(texts, str) else list(texts)
    bos = model.spec.ids.bos
    before = [] if bos is None else [bos]
    ids = [before + found for found in tokenizer.encode_many(documents)]
    sizes = [len(text.encode()) for text in documents]
    if bos is None:
        sizes = [size - (tokenizer.bytes_of(row[0]) if row else 0) for size, row in zip(sizes, ids, strict=True)]
    return score_ids(model, ids, bytes=sum(sizes), stride=stride, context=context, report=report)


def score_ids(
    model: Model,
    documents: Sequence[Sequence[int]],
    *,
    bytes: int = 0,
    stride: int | None = None,
    context: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Score:
    """Score documents of token ids. All but the first token of each is predicted; `bytes` is what those stand for."""
    context, stride = _sizes(model, context, stride)
    device = next(model.parameters()).device
    rows = [torch.as_tensor(ids, dtype=torch.long) for ids in documents]
    _check_ids(rows, model.spec.vocab)
    windows = [window for i, row in enumerate(rows) for window in cut(len(row), context, stride, i)]
    total = sum(window.end - window.first for window in windows)
    if not total:
        raise DataError("there is nothing to predict: give a longer text")
    done, nats = 0, 0.0
    with reading(model), Crew.on(device, len(windows)) as crew:
        reader = _Reader(model)

        def work(batch: list[Window]) -> tuple[int, float]:
            return sum(w.end - w.first for w in batch), reader.nats([(rows[w.document], w) for w in batch], device)

        for counted, found in crew.map(work, batches(windows, TOKENS.get(device.type, MANY))):
            nats, done = nats + found, done + counted
            if report is not None:
                report(done, total)
    if not math.isfinite(nats):
        raise InputError(f"the model gives a loss of {nats}; are its weights damaged, or is its dtype too narrow?")
    return Score(tokens=total, bytes=bytes, nats=nats, documents=len(rows), context=context, stride=stride)


def cut(tokens: int, context: int, stride: int, document: int = 0) -> Iterator[Window]:
    """The windows of a document: each reads at most `context` tokens, and every token but the first is predicted once."""
    first, start = 1, 0
    while first < tokens:
        # The last token that is read predicts the one after it.
        end = min(start + context + 1, tokens)
        yield Window(document, start, first, end)
        first, start = end, start + stride


def batches(windows: list[Window], tokens: int) -> Iterator[list[Window]]:
    """Windows of similar length together, as many as have so many tokens, or one."""
    ordered = sorted(windows, key=lambda w: w.start - w.end)
    while ordered:
        size = max(1, tokens // (ordered[0].end - ordered[0].start))
        yield ordered[:size]
        del ordered[:size]


def head_of(model: Model) -> nn.Module:
    """The head of a model that predicts the next token; any other model is refused."""
    spec = model.spec
    if spec.topology != "decoder":
        why = "an encoder sees the token that it predicts" if spec.topology == "encoder" else (
            "an encoder-decoder predicts a text from another one"
        )  # fmt: skip
        raise InputError(f"perplexity is for decoders: {why}")
    if model.head is None or not spec.head.predicts_tokens or spec.embed.reads != "input_ids":
        raise InputError(f"perplexity needs a model from tokens to tokens; this one has a {spec.head.kind!r} head")
    stack: Any = model.decoder
    if stack.prefix:
        raise InputError(
            f"perplexity is of tokens that come one after the other: the first {stack.prefix} of this prefix-LM see each "
            "other both ways, so it has seen what it would predict"
        )
    return model.head


def _sizes(model: Model, context: int | None, stride: int | None) -> tuple[int, int]:
    """Context and stride, checked."""
    head_of(model)
    stack: Any = model.decoder
    room = model.spec.context if stack.limit is None else min(stack.limit, model.spec.context)
    wrong: list[str] = []
    size = room if context is None else context
    if size < 1:
        wrong.append(f"context: {size} is not at least 1")
    if stack.limit is not None and size > stack.limit:
        wrong.append(f"context: {size} is more than the {stack.limit} positions that this model has")
    step = max(1, size // 2) if stride is None else stride
    if not 1 <= step <= max(size, 1):
        wrong.append(f"stride: {step} is not from 1 to the context, {size}: tokens would be left out")
    if wrong:
        raise InputError("; ".join(wrong))
    return size, step


def _check_ids(rows: list[Tensor], vocab: int) -> None:
    for i, row in enumerate(rows):
        if row.dim() != 1:
            raise InputError(f"document {i}: expected a list of ids, got shape {tuple(row.shape)}")
        if len(row) and not 0 <= int(row.min()) <= int(row.max()) < vocab:
            wrong = int(row.max()) if int(row.max()) >= vocab else int(row.min())
            raise InputError(
                f"document {i}: {wrong} is not an id below vocab = {vocab}; is this the model's tokenizer?"
            )


class _Reader:
    """Reads batches of windows; logits are made for the tokens that count, a few at a time."""

    def __init__(self, model: Model) -> None:
        self.body, self.head = headless(model), head_of(model)
        self.few = max(1, LOGITS // model.spec.vocab)
        stack: Any = model.decoder
        self.reads_length = model.reads_length or stack.reads_document

    @torch.inference_mode()
    def nats(self, batch: list[tuple[Tensor, Window]], device: torch.device) -> float:
        """Sum of -ln p over all that the windows predict."""
        sizes = [w.end - w.start - 1 for _, w in batch]
        width = max(sizes)
        ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
        labels_BT = torch.full_like(ids_BT, -1)
        for i, (row, w) in enumerate(batch):
            ids_BT[i, : sizes[i]] = row[w.start : w.end - 1]
            labels_BT[i, w.first - w.start - 1 : sizes[i]] = row[w.first : w.end]
        ids_BT, labels_BT = ids_BT.to(device), labels_BT.to(device)
        # A causal model can't see the padding, which is on the right; only a length must not count it.
        mask_BT = None
        if self.reads_length and min(sizes) < width:
            mask_BT = (torch.arange(width)[None] < torch.tensor(sizes)[:, None]).long().to(device)
        hidden_BTD = self.body(ids_BT, attention_mask=mask_BT).hidden
        counted_BT = labels_BT >= 0
        hidden, labels = hidden_BTD[counted_BT], labels_BT[counted_BT]
        total = torch.zeros((), dtype=torch.float64, device=device)
        for some, wanted in zip(hidden.split(self.few), labels.split(self.few), strict=True):
            logits: Tensor = self.head(some)
            exact = torch.promote_types(logits.dtype, torch.float32)
            total += F.cross_entropy(logits.to(exact), wanted, reduction="none").sum(dtype=torch.float64)
        return float(total)
