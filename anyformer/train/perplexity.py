"""How well a model predicts texts, by perplexity and bits per byte in sliding windows; and held-out examples in a run.

Of texts there is one rule, whoever asks. A text is split into documents at lines of `<|endoftext|>`; the ids of each are those of
`anyformer.data.tokenizer`; each is read in windows of `context` tokens that move on by `stride`, and no window crosses into
another document. The first token of a document is only read. `Score.rule` says all of it in words.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.data.corpus import SEPARATOR
from anyformer.data.corpus import documents as split_documents
from anyformer.data.loader import BatchLoader
from anyformer.data.objectives import Objective
from anyformer.data.tokenizer import Tokenizer, begins, document_ids
from anyformer.errors import DataError, InputError
from anyformer.model.eval_mode import eval_mode, without_head
from anyformer.model.model import Model, Output
from anyformer.train.cpu_workers import CpuWorkers
from anyformer.train.ranks import ALONE, Ranks
from anyformer.train.train_step import Precision, even, on_device

TOKENS = {"cpu": 2048}
"""Tokens that are read at once. A CPU is fastest while they stay in its caches."""
MANY = 32_768
"""The same on an accelerator."""
LOGITS = 2**22
"""Logits that are held at once."""
EVAL_LOGITS = 2**26
"""The same for held-out examples in a run."""
GIVEN = "as given"
"""Documents and their first tokens where only ids were given."""


def perplexity(nats: float, tokens: float = 1) -> float:
    """Exp of the mean nats per token: as unsure as among so many equally likely tokens."""
    return math.exp(min(nats / tokens, 709.0))


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a model makes of texts. `a + b` is the score of both together."""

    tokens: int
    bytes: int
    """Bytes of UTF-8 that they stand for; 0 if only ids were given."""
    nats: float
    """Sum of -ln p over those tokens."""
    documents: int
    context: int
    stride: int
    split: str = GIVEN
    begin: str = GIVEN

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return perplexity(self.nats, self.tokens)

    @property
    def rule(self) -> str:
        """How it was measured: two figures compare where this is equal."""
        count = f"{self.documents:,} document{'' if self.documents == 1 else 's'}"
        windows = f"windows of {self.context:,} tokens, moved by {self.stride:,}"
        return f"{count} ({self.split}), {self.begin}; {windows}"

    @property
    def bits_per_byte(self) -> float | None:
        """Bits for each byte of text, which compares models whatever their tokenizers; None if only ids were given."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None

    def __add__(self, other: Self) -> Self:
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("tokens", "bytes", "nats", "documents")}
        words = {name: (getattr(self, name), getattr(other, name)) for name in ("split", "begin")}
        return replace(self, **sums, **{name: "; ".join(dict.fromkeys(both)) for name, both in words.items()})


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
    """Score a text, split at lines of `<|endoftext|>`, or a list of texts, each a document of its own.

    The ids of a document are those that a published folder's files say, or those that a run of ours was trained on. Its
    first token is only read, and if it is none of bos, its bytes don't count. So are the tokens of a prefix-LM's prefix,
    which have seen each other: what comes after them is predicted.

    Args:
        model: A decoder with an lm head. It runs in eval mode, and gets its mode back.
        tokenizer: The model's own.
        texts: One text, or documents.
        stride: Tokens by which a window moves on (default: half of the context). A token is predicted from at least
            context - stride tokens before it, where there are so many.
        context: Tokens that are read at once (default: the spec's context).
        report: Called after each batch with the number of tokens predicted so far, and of all.
    """
    read = read_documents(model, tokenizer, texts)
    found = score_ids(model, read.ids, bytes=read.bytes, stride=stride, context=context, report=report)
    return replace(found, split=read.split, begin=read.begin)


class Documents(NamedTuple):
    """Texts as a model reads them."""

    ids: list[list[int]]
    bytes: int
    """Bytes of UTF-8 of all that is predicted."""
    split: str
    begin: str


def read_documents(model: Model, tokenizer: Tokenizer, texts: str | Sequence[str]) -> Documents:
    """The ids of documents, and the bytes of all that is predicted of them. One text is split where it says so."""
    head_of(model)
    some = split_documents(texts) if isinstance(texts, str) else list(texts)
    split = f"split at lines of {SEPARATOR}" if isinstance(texts, str) else "each text is one"
    skipped = unpredicted(model)
    found = document_ids(model.spec, tokenizer, some)
    read = [row.ids[row.before : skipped] for row in found]
    size = sum(len(text.encode()) for text in some)
    for ids in read:
        # The first tokens of a text may end within a character.
        text = tokenizer.decode(ids)
        whole = len(ids) > 1 and "\ufffd" not in text
        size -= len(text.encode()) if whole else sum(map(tokenizer.bytes_of, ids))
    return Documents([row.ids for row in found], size, split, begins(model.spec, tokenizer, found))


def unpredicted(model: Model) -> int:
    """How many tokens of a window are only read: the first one, or all that a prefix-LM sees both ways."""
    stack: Any = model.decoder
    return max(1, stack.prefix)


def score_ids(
    model: Model,
    documents: Sequence[Sequence[int]],
    *,
    bytes: int = 0,
    stride: int | None = None,
    context: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Score:
    """Score documents of token ids, all but the first token of each (or a prefix-LM's prefix); `bytes` of those."""
    context, stride = window_sizes(model, context, stride)
    device = next(model.parameters()).device
    rows = [torch.as_tensor(ids, dtype=torch.long) for ids in documents]
    for i, row in enumerate(rows):
        if row.dim() != 1:
            raise InputError(f"document {i}: expected a list of ids, got shape {tuple(row.shape)}")
        wrong, vocab = row[(row < 0) | (row >= model.spec.vocab)], f"vocab = {model.spec.vocab}"
        if len(wrong):
            raise InputError(f"document {i}: {wrong.max()} is not an id below {vocab}; is this the model's tokenizer?")
    skipped = unpredicted(model)
    windows = [window for i, row in enumerate(rows) for window in cut(len(row), context, stride, i, skipped)]
    total = sum(window.end - window.first for window in windows)
    if not total:
        raise DataError("there is nothing to predict: give a longer text")
    done, nats = 0, 0.0
    with eval_mode(model), CpuWorkers.on(device, len(windows)) as workers:
        reader = Reader(model)

        def work(batch: list[Window]) -> tuple[int, float]:
            return sum(w.end - w.first for w in batch), reader.nats([(rows[w.document], w) for w in batch], device)

        for counted, found in workers.map(work, batches(windows, TOKENS.get(device.type, MANY))):
            nats, done = nats + found, done + counted
            if report is not None:
                report(done, total)
    if not math.isfinite(nats):
        raise InputError(f"the model gives a loss of {nats}; are its weights damaged, or is its dtype too narrow?")
    return Score(tokens=total, bytes=bytes, nats=nats, documents=len(rows), context=context, stride=stride)


def cut(tokens: int, context: int, stride: int, document: int = 0, skipped: int = 1) -> Iterator[Window]:
    """The windows of a document: at most `context` tokens each, all but the first `skipped` predicted once."""
    first, start = skipped, 0
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
        apart = "an encoder-decoder predicts a text from another one"
        why = "an encoder sees the token that it predicts" if spec.topology == "encoder" else apart
        raise InputError(f"perplexity is for decoders: {why}; anyformer eval --part measures it by its objective")
    if model.head is None or not spec.head.predicts_tokens or spec.embed.reads != "input_ids":
        raise InputError(f"perplexity needs a model from tokens to tokens; this one has a {spec.head.kind!r} head")
    return model.head


def window_sizes(model: Model, context: int | None, stride: int | None) -> tuple[int, int]:
    """Context and stride, checked."""
    head_of(model)
    stack: Any = model.decoder
    room = model.spec.context if stack.limit is None else min(stack.limit, model.spec.context)
    size = room if context is None else context
    wrong = [f"context: {size} is not at least 1"] if size < 1 else []
    if stack.limit is not None and size > stack.limit:
        wrong.append(f"context: {size} is more than the {stack.limit} positions that this model has")
    skipped = unpredicted(model)
    # A window must begin so early that what it predicts comes after its prefix.
    most = size + 1 - skipped
    if skipped > 1 and most < 1:
        wrong.append(f"context: {size} leaves nothing to predict after a prefix of {skipped}; give at least {skipped}")
    step = max(1, min(size // 2, most)) if stride is None else stride
    if not 1 <= step <= max(most, 1):
        after = f" after its prefix of {skipped}" if skipped > 1 else ""
        wrong.append(f"stride: {step} is not from 1 to the context{after}, {most}: tokens would be left out")
    if wrong:
        raise InputError("; ".join(wrong))
    return size, step


class Reader:
    """Reads batches of windows; logits are made for the tokens that count, a few at a time."""

    def __init__(self, model: Model) -> None:
        self.body, self.head = without_head(model), head_of(model)
        self.few = max(1, LOGITS // model.spec.vocab)
        stack: Any = model.decoder
        self.reads_length = model.reads_length or stack.reads_document

    @torch.inference_mode()
    def nats(self, batch: list[tuple[Tensor, Window]], device: torch.device) -> float:
        """Sum of -ln p over all that the windows predict."""
        total = torch.zeros((), dtype=torch.float64, device=device)
        for logits, wanted in self.predicted(batch, device):
            total += F.cross_entropy(logits, wanted, reduction="none").sum(dtype=torch.float64)
        return float(total)

    @torch.inference_mode()
    def by_window(self, batch: list[tuple[Tensor, Window]], device: torch.device) -> list[tuple[float, bool]]:
        """For each window the sum of -ln p over what it predicts, and whether each of these is the likeliest token."""
        nats, likeliest = [], []
        for logits, wanted in self.predicted(batch, device):
            nats.append(F.cross_entropy(logits, wanted, reduction="none").double().cpu())
            likeliest.append((logits.argmax(-1) == wanted).cpu())
        counts = [w.end - w.first for _, w in batch]
        sums = [float(part.sum()) for part in torch.cat(nats).split(counts)]
        return list(zip(sums, [bool(part.all()) for part in torch.cat(likeliest).split(counts)], strict=True))

    def predicted(self, batch: list[tuple[Tensor, Window]], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and what should have been said, of all that the windows predict in their order, some at a time."""
        sizes = [w.end - w.start - 1 for _, w in batch]
        width = max(sizes)
        ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
        labels_BT = torch.full_like(ids_BT, -1)
        for i, (row, w) in enumerate(batch):
            ids_BT[i, : sizes[i]] = row[w.start : w.end - 1]
            labels_BT[i, w.first - w.start - 1 : sizes[i]] = row[w.first : w.end]
        ids_BT, labels_BT = ids_BT.to(device), labels_BT.to(device)
        # A causal model can't see the padding, which is on the right; only a length must not count it.
        padded = self.reads_length and min(sizes) < width
        mask_BT = (torch.arange(width) < torch.tensor(sizes)[:, None]).long().to(device) if padded else None
        hidden_BTD = self.body(ids_BT, attention_mask=mask_BT).hidden
        counted_BT = labels_BT >= 0
        hidden, labels = hidden_BTD[counted_BT], labels_BT[counted_BT]
        for some, wanted in zip(hidden.split(self.few), labels.split(self.few), strict=True):
            logits: Tensor = self.head(some)
            yield logits.to(torch.promote_types(logits.dtype, torch.float32)), wanted


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Held-out loss and metrics."""

    loss: float
    """Mean over the labels that count, without label smoothing or anything added for training: nats per token."""
    labels: int
    figures: dict[str, float]
    """Further metrics of the objective, such as accuracy."""
    rows: int
    all_rows: int
    """Rows that there are: fewer were read if they are a sample."""

    @property
    def perplexity(self) -> float:
        """Exp of the loss; of use where the loss is nats per token."""
        return perplexity(self.loss)


def evaluate(
    model: Model,
    loader: BatchLoader,
    objective: Objective,
    *,
    precision: Precision,
    batches: int = 0,
    ranks: Ranks = ALONE,
    watch: Callable[[Output, dict[str, torch.Tensor]], None] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> EvalResult:
    """Evaluate on so many batches of a sample of the rows, always the same, without dropout; 0: all rows once.

    `watch` gets the model's output and inputs for each piece of a batch. `report` is called at the beginning and after
    each batch with the rows that were read and their total.
    """
    device = next(model.parameters()).device
    sums: dict[str, torch.Tensor] = {}
    read, total, tell = 0, loader.swept(batches), report or (lambda *_: None)
    tell(read, total)
    with eval_mode(model), torch.no_grad(), precision.step(device):
        for batch in loader.sweep(ranks.dp_size, few=batches):
            mine = ranks.share(batch)
            cells = max(array.size for array in mine.inputs.values())
            logits = cells * (model.spec.vocab if model.spec.head.predicts_tokens else 1)
            for part in mine.split(even(mine.units, max(1, math.ceil(logits / EVAL_LOGITS)))):
                inputs = on_device(part, device)
                # Of the labels as they are: exp of a smoothed loss is no perplexity.
                terms, out = objective.answer(model, inputs, label_smoothing=0.0)
                if watch is not None:
                    watch(out, inputs)
                plain = terms.terms.get("cross_entropy", terms.terms.get("squared_error", terms.total))
                found = {"loss": (float(plain) * part.labels, float(part.labels)), **objective.judge(out, inputs)}
                for name, pair in found.items():
                    sums[name] = sums.get(name, 0) + torch.tensor(pair, dtype=torch.float64)
            read = min(read + batch.units, total)
            tell(read, total)
    totals = {name: ranks.total(row.to(device)).tolist() for name, row in sums.items()}
    # The mean of nothing is no number: 0 would be the best loss of all.
    means = {name: total / counted if counted else math.nan for name, (total, counted) in totals.items()}
    labels = int(totals["loss"][1])
    return EvalResult(loss=means.pop("loss"), labels=labels, figures=means, rows=total, all_rows=loader.swept())
