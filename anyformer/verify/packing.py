"""Documents packed into one row, against the same documents alone: the same numbers, and nothing that leaks.

One document after the other is replaced by other tokens. What another document answers must not move at all.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model, Output
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import silent
from anyformer.verify.differences import Progress, Report, difference, is_exact, positions_for
from anyformer.verify.shrink import span

SAME = 1e-9
"""The largest difference between packed and alone, max|a - b| / max|b|: other shapes may add in another order."""
LEAK = 1e-12
"""The largest move of a document whose neighbour was changed, relative to its own answers; it is 0 as a rule."""
SHARES = (0.3, 1.0, 0.0, 0.6, 0.85, 0.15, 0.45)
"""Lengths of the documents, as shares of the longest, which is not the first: it has to start inside the row."""
SHORTEST, LONGEST = 29, 512
"""Tokens of the longest document by default; more than twice the span of a pattern, within these."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The answer: the documents, and how far everything that should be equal is apart."""

    lengths: tuple[tuple[int, ...], ...]
    """Tokens of each document: of its only input, or of source and target."""
    exact: bool
    """Whether packed must equal alone: an approximate mixer is held only to not leaking and to repeating itself."""
    answers: tuple[float, ...]
    """For each document, packed against alone."""
    loss: float
    """Summed token loss of the row against the sum over the documents."""
    gradient: float
    """The same for the gradient of that loss, of the parameter that differs most."""
    worst: str
    """Which one that is."""
    moved: tuple[tuple[float, ...], ...]
    """For each changed document, how far each document's answers moved."""
    repeated: float
    """The same row once more, against the first time."""
    notes: tuple[str, ...]
    """What this check could not reach."""

    @property
    def same(self) -> bool:
        return max(*self.answers, self.loss, self.gradient) <= SAME

    @property
    def leaks(self) -> tuple[tuple[int, int], ...]:
        """Pairs (changed, moved) of documents that should know nothing of each other."""
        n = range(len(self.moved))
        return tuple((i, j) for i in n for j in n if i != j and not self.moved[i][j] <= LEAK)

    @property
    def deaf(self) -> tuple[int, ...]:
        """Documents that don't answer to a change of their own, so that nothing is proved about them."""
        return tuple(i for i, row in enumerate(self.moved) if not row[i] > SAME)

    @property
    def passed(self) -> bool:
        return (self.same or not self.exact) and self.repeated == 0 and not self.leaks and not self.deaf


@dataclass(frozen=True)
class Document:
    """One input. `source` feeds the only stack, or the encoder; `target` the decoder of an encoder-decoder."""

    source: Tensor
    target: Tensor | None
    labels: Tensor | None
    """None without a head."""
    weights: Tensor
    """What the states are multiplied with where there are no labels to make a loss from."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return (len(self.source),) if self.target is None else (len(self.source), len(self.target))


@torch.no_grad()
def randomise(model: Model, seed: int) -> Model:
    """Every parameter away from its start value: gains of 1 and biases of 0 hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        p.copy_(noise / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.6 + 0.4 * noise)
    return model


def check_packs(spec: ModelSpec) -> None:
    """Refuse a model that has no packed rows."""
    if spec.embed.reads not in ("input_ids", "values"):
        reads = f"{spec.embed.kind!r} reads {spec.embed.reads}"
        raise InputError(f"embed.kind: {reads}; an image is never packed with others")
    if spec.head.pools:
        raise InputError(
            f"head.kind: a {spec.head.kind!r} head gives one answer for a whole row, so documents can't share one; "
            "check the same model with another head (--set head.kind=none)"
        )


def packing(
    model: Model, *, documents: int = 4, length: int | None = None, seed: int = 0, report: Report | None = None
) -> Packing:
    """Check a model in fp64 on a CPU, in evaluation mode (no dropout) and without auxiliary losses.

    At least two documents share the row, the longest of `length` tokens (default: past windows, chunks and blocks, as
    far as there are positions); `seed` draws the tokens.
    """
    check_packs(model.spec)
    if documents < 2:
        raise InputError(f"documents: {documents} can't show whether one leaks into another; give at least 2")
    longest, notes = _longest(model, length)
    lengths = [max(1, round(SHARES[i % len(SHARES)] * longest)) for i in range(documents)]
    made = [_document(model, n, seed * 1000 + i) for i, n in enumerate(lengths)]
    progress = Progress(report, 2 * documents + 3)
    with eval_mode(model):
        alone, loss, gradients = list[Tensor](), 0.0, [torch.zeros_like(p) for p in model.parameters()]
        for each in made:
            found, its_loss, its_gradients = _trained(model, [each], seed)
            alone, loss = alone + found, loss + its_loss
            gradients = [a + b for a, b in zip(gradients, its_gradients, strict=True)]
            progress.tick()
        together, row_loss, row_gradients = _trained(model, made, seed)
        # A pass without gradients may add in another order than one with them, so it is repeated as it is.
        before, again = _answers(model, made, seed), _answers(model, made, seed)
        progress.tick(3)
        moved: list[tuple[float, ...]] = []
        for i, each in enumerate(made):
            other = _changed(model, each, seed * 1000 + 500 + i)
            after = _answers(model, [*made[:i], other, *made[i + 1 :]], seed)
            moved.append(tuple(map(difference, after, before)))
            progress.tick()
    # Each relative to that parameter's own largest. A gradient that mathematics makes zero is nothing but rounding, and
    # is compared with the largest of all; so is, at a millionth, what is smaller than that.
    largest, quiet = max(float(g.abs().max()) for g in gradients), silent(model.spec)
    gradient, worst = max(
        (difference(a, b, largest if name in quiet else max(float(b.abs().max()), 1e-6 * largest)), name)
        for (name, _), a, b in zip(model.named_parameters(), row_gradients, gradients, strict=True)
    )
    return Packing(
        lengths=tuple(each.lengths for each in made), exact=is_exact(model.spec),
        answers=tuple(map(difference, together, alone)), loss=difference(torch.tensor(row_loss), torch.tensor(loss)),
        gradient=gradient, worst=worst, moved=tuple(moved), repeated=max(map(difference, again, before)), notes=notes,
    )  # fmt: skip


def _longest(model: Model, wanted: int | None) -> tuple[int, tuple[str, ...]]:
    spec, room, reach = model.spec, positions_for(model, wanted), span(model.spec)
    found = wanted or min(max(SHORTEST, 2 * reach + 5), LONGEST, spec.context if room is None else room)
    if found > reach:
        return found, ()
    advice = "" if room is not None and room <= reach else f"; --length {reach + 1} reaches past it"
    return found, (f"patterns span {reach} tokens, more than the longest document has{advice}",)


def _document(model: Model, length: int, seed: int) -> Document:
    """Random tokens. A target is of another length than its source."""
    spec, generator = model.spec, torch.Generator().manual_seed(seed)

    def tokens(count: int, vocab: int = spec.vocab) -> Tensor:
        return torch.randint(vocab, (count,), generator=generator)

    if spec.embed.reads == "values":
        channels: int = getattr(spec.embed, "channels", 1)
        source = torch.randn(length, channels, generator=generator, dtype=torch.float64)
    else:
        source = tokens(length, spec.input_vocab)
    target = tokens(max(1, length * 3 // 4)) if spec.topology == "encoder-decoder" else None
    answered = length if target is None else len(target)
    labels = None
    if spec.head.predicts_tokens:
        labels = source if spec.topology == "decoder" and spec.embed.reads == "input_ids" else tokens(answered)
    elif spec.head.kind != "none":
        labels = torch.randint(getattr(spec.head, "labels", 1), (answered,), generator=generator)
    weights = torch.randn(answered, spec.out_width, generator=generator, dtype=torch.float64)
    return Document(source, target, labels, weights)


def _changed(model: Model, document: Document, seed: int) -> Document:
    """Another document of the same lengths, whose every token is another one."""
    other, spec = _document(model, len(document.source), seed), model.spec

    def apart(now: Tensor, drawn: Tensor, vocab: int) -> Tensor:
        return drawn if now.is_floating_point() else (now + 1 + drawn % max(1, vocab - 1)) % vocab

    source, target = apart(document.source, other.source, spec.input_vocab), document.target
    if target is not None and other.target is not None:
        target = apart(target, other.target, spec.vocab)
    return dataclasses.replace(document, source=source, target=target)


def _fed(model: Model, documents: list[Document], seed: int) -> Output:
    """One pass over a row: of one document as it is, of several with segments."""
    kinds = model.spec.embed.token_types
    parts: dict[str, list[Any]] = {
        model.spec.embed.reads: [each.source for each in documents],
        "decoder_input_ids": [each.target for each in documents],
        "labels": [each.labels for each in documents],
    }
    if kinds:
        parts["token_types"] = [torch.arange(len(d.source)) * kinds // len(d.source) for d in documents]
    first: Any = getattr(model, model.spec.stacks[0].name)
    if first.reads_marks:
        # The first token of a document, and one in its middle.
        marks = [torch.arange(len(d.source)) % max(1, len(d.source) // 2) == 0 for d in documents]
        parts["global_mask"] = [each.long() for each in marks]
    if len(documents) > 1:
        for side, name in enumerate(("segments", "decoder_segments")[: len(documents[0].lengths)]):
            parts[name] = [torch.full((d.lengths[side],), i) for i, d in enumerate(documents)]
    given = {name: torch.cat(values)[None] for name, values in parts.items() if values[0] is not None}
    # A mixer may draw what it decides anew in each pass; here every pass draws the same.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model(**given)


def _split(out: Output, documents: list[Document]) -> list[Tensor]:
    """Logits (or states, without a head) of each document."""
    found = out.hidden if out.logits is None else out.logits
    return list(found.detach()[0].split([each.lengths[-1] for each in documents]))


@torch.no_grad()
def _answers(model: Model, documents: list[Document], seed: int) -> list[Tensor]:
    return _split(_fed(model, documents, seed), documents)


def _trained(model: Model, documents: list[Document], seed: int) -> tuple[list[Tensor], float, list[Tensor]]:
    """Answers, summed token loss, and its gradient by parameter."""
    out = _fed(model, documents, seed)
    if out.label_count is None:
        total = (out.hidden[0] * torch.cat([each.weights for each in documents])).sum()
    else:
        total = out.losses["cross_entropy"] * out.label_count
    learned = [p for p in model.parameters() if p.requires_grad]
    found = iter(torch.autograd.grad(total, learned, allow_unused=True, materialize_grads=True) if learned else ())
    gradients = [next(found) if p.requires_grad else torch.zeros_like(p) for p in model.parameters()]
    return _split(out, documents), float(total.detach()), gradients
