"""Documents, and the ways in which a model can be fed them: alone, padded, packed with others."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.model.model import Model
from anyformer.specs import ModelSpec
from anyformer.specs.stacks import pattern_of


@dataclass
class Document:
    """One input. `source` feeds the only stack, or the encoder; `target` the decoder of an encoder-decoder."""

    source: Tensor
    types: Tensor | None = None
    target: Tensor | None = None
    marks: Tensor | None = None
    """Which source tokens are global, where a pattern asks."""


def reads_marks(spec: ModelSpec) -> bool:
    return any(pattern_of(spec.stacks[0], layer).reads_marks for layer in spec.stacks[0].layers)


def document(spec: ModelSpec, length: int, seed: int, target: int | None = None) -> Document:
    """A random document of `length` tokens (an image has its own length)."""
    generator = torch.Generator().manual_seed(seed)
    match spec.embed.kind:
        case "tokens":
            source = torch.randint(0, spec.input_vocab, (length,), generator=generator)
        case "patches":
            e: Any = spec.embed
            source = torch.randn(e.channels, e.image, e.image, generator=generator, dtype=torch.float64)
        case "series":
            source = torch.randn(length, spec.embed.channels, generator=generator, dtype=torch.float64)
        case other:
            raise AssertionError(f"no way to feed {other!r}")
    types = None
    if spec.embed.token_types or spec.head.kind == "pair":
        types = (torch.arange(length) >= length // 2).long()
    both = spec.topology == "encoder-decoder"
    goal = torch.randint(0, spec.vocab, (target or max(length - 4, 2),), generator=generator) if both else None
    marks = None
    if reads_marks(spec):
        tokens = spec.embed.tokens() if spec.embed.kind == "patches" else length
        marks = (torch.rand(tokens, generator=generator) < 0.2).long()
        marks[tokens // 2] = 1
    return Document(source, types, goal, marks)


def row(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)[None]


def noise(like: Tensor, count: int, seed: int) -> Tensor:
    """Padding is not zeros: what leaks from it must show."""
    generator = torch.Generator().manual_seed(seed)
    if like.is_floating_point():
        return torch.randn(count, *like.shape[1:], generator=generator, dtype=like.dtype)
    return torch.randint(0, 5, (count,), generator=generator)


def call(model: Model, source: Tensor, **rest: Any) -> Any:
    """Feed the model under the argument name that its embedding reads; a head that compares rows gets another one too."""
    if model.spec.head.kind == "choice":
        other = source * 0.5 if source.is_floating_point() else (source + 1) % model.spec.input_vocab
        source = torch.stack((source, other), 1)
        rest = {k: v if v is None or k == "labels" else torch.stack((v, v), 1) for k, v in rest.items()}
    return model(**{model.spec.embed.reads: source}, **{k: v for k, v in rest.items() if v is not None})


def alone(model: Model, doc: Document, **rest: Any) -> Any:
    """One document in a batch of one."""
    types = None if doc.types is None else doc.types[None]
    target = None if doc.target is None else doc.target[None]
    marks = None if doc.marks is None else doc.marks[None]
    return call(model, doc.source[None], token_types=types, global_mask=marks, decoder_input_ids=target, **rest)


def padded(model: Model, doc: Document, left: int, right: int) -> tuple[Any, slice]:
    """One document with padding around it, and where its (target) tokens are."""

    def around(tokens: Tensor) -> tuple[Tensor, Tensor, slice]:
        pads = [noise(tokens, left, 1), tokens, noise(tokens, right, 2)]
        mask = torch.tensor([0] * left + [1] * len(tokens) + [0] * right)
        return row(pads), mask[None], slice(left, left + len(tokens))

    source, mask, where = around(doc.source)
    types = None if doc.types is None else row([doc.types.new_zeros(left), doc.types, doc.types.new_zeros(right)])
    # Padding that is marked as global must be as silent as any other.
    marks = None if doc.marks is None else row([doc.marks.new_ones(left), doc.marks, doc.marks.new_ones(right)])
    target = target_mask = None
    if doc.target is not None:
        target, target_mask, where = around(doc.target)
    out = call(
        model,
        source,
        attention_mask=mask,
        token_types=types,
        global_mask=marks,
        decoder_input_ids=target,
        decoder_attention_mask=target_mask,
    )
    return out, where


def packed(model: Model, docs: list[Document], **rest: Any) -> tuple[Any, list[slice]]:
    """Several documents in one row, and where each one's (target) tokens are."""

    def beside(parts: list[Tensor]) -> tuple[Tensor, Tensor, list[slice]]:
        ids = row([torch.full((len(p),), 3 * i) for i, p in enumerate(parts)])
        starts = [sum(len(q) for q in parts[:i]) for i in range(len(parts))]
        return row(parts), ids, [slice(s, s + len(p)) for s, p in zip(starts, parts, strict=True)]

    source, segments, where = beside([d.source for d in docs])
    types = row([d.types for d in docs]) if docs[0].types is not None else None
    marks = row([d.marks for d in docs]) if docs[0].marks is not None else None
    target = target_segments = None
    if docs[0].target is not None:
        target, target_segments, where = beside([d.target for d in docs])
    out = call(
        model, source, segments=segments, token_types=types, global_mask=marks, decoder_input_ids=target,
        decoder_segments=target_segments, **rest,
    )  # fmt: skip
    return out, where
