"""What a model does with one prompt: its tokens, what it expects after each of them, by layer too, and who attends to whom;
and the page that shows it, one HTML file that needs no network, with its data, style and script inside.
"""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.explain.words import some
from anyformer.files import replace_file
from anyformer.specs import number_format
from anyformer.train.report.page import csp_hash

if TYPE_CHECKING:
    from anyformer.data.tokenizer import Tokenizer
    from anyformer.model.model import Model
    from anyformer.model.trace import Trace
    from anyformer.specs.model import ModelSpec

MOST = 256
"""Tokens that a page shows."""
TOP, TOP_BY_LAYER = 10, 3
"""Candidates that are listed: after the last layer, and after each."""
ANSWER = 32
"""Tokens that an encoder-decoder answers, so that its decoder has something to show."""
ROOM = 3_000_000
"""Bytes of attention weights, compressed."""
LEVELS = 255
MODULES = ("dom", "heat", "chips", "bars", "lens", "attention", "look", "page")
"""Of the page's script, each after those that it imports from. All but the last are the server's page's too."""

Candidates = list[list[float]]
"""[id, probability], the likeliest first."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is expected at every token, after one layer."""

    name: str
    top: list[Candidates]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Attention weights of all heads of one layer."""

    name: str
    heads: int
    rows: str
    columns: str
    """Whose tokens queries and keys are: `tokens` or `source`."""
    data: str
    """(heads, rows, columns): 255 sqrt(weight) as bytes, compressed by zlib, in base64."""


@dataclass(frozen=True, kw_only=True)
class PromptTrace:
    """All that a page about a prompt shows."""

    name: str
    figures: list[tuple[str, str]]
    """What is said about the model, as labels and values."""
    ids: list[int]
    source: list[int] | None
    """What the encoder of an encoder-decoder reads; `ids` is then its answer."""
    texts: dict[int, str]
    """What every token that occurs says."""
    source_texts: dict[int, str]
    """The same for those of the source, whose ids may mean something else."""
    predicts: str | None
    """`next`: the token after each; `same`: the token in each place; None: the head predicts no tokens."""
    layers: list[Prediction]
    """From the embeddings to the last layer, whose prediction is the model's own."""
    given: list[list[float] | None]
    """By token, probability and rank that the model gave to the one that the text has there."""
    attention: list[Weights]
    first: tuple[int, int] = (0, 0)
    """What is shown first: a place in `attention`, and one of its heads."""
    notes: list[str] = field(default_factory=list)

    def headline(self) -> str:
        return f"{some(len(self.ids), 'token')}, {some(sum(each.heads for each in self.attention), 'attention head')}"

    def data(self) -> dict[str, Any]:
        texts, source = ({str(i): text for i, text in each.items()} for each in (self.texts, self.source_texts))
        first = {"attention": self.first[0], "head": self.first[1]}
        return asdict(self) | {"texts": texts, "source_texts": source, "first": first}


def trace_prompt(
    model: Model,
    tokenizer: Tokenizer,
    text: str,
    *,
    name: str,
    reader: Tokenizer | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> PromptTrace:
    """Trace a model on a prompt. `layer` and `head` are what is shown first, and then never left out for want of room;
    of an encoder-decoder they are the decoder's. `reader` is the tokenizer of the source, where that has a vocabulary of
    its own.
    """
    _check_first(model.spec, layer, head)
    if model.spec.embed.kind != "tokens":
        raise InputError(f"--prompt: this model reads {model.spec.embed.reads}, not a text")
    if not text.strip():
        raise InputError("--prompt: is empty; give a text")
    ids = _read(model.spec, reader or tokenizer, text)
    return trace_ids(model, tokenizer, ids, name=name, reader=reader, layer=layer, head=head)


def trace_ids(
    model: Model,
    tokenizer: Tokenizer,
    given_ids: Sequence[int],
    *,
    name: str,
    reader: Tokenizer | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> PromptTrace:
    """The same of a prompt whose tokens are known."""
    spec = model.spec
    _check_first(spec, layer, head)
    _check_ids(spec, given_ids)
    reader = reader or tokenizer
    source, ids = _with_answer(model, list(given_ids))
    predicts = {"encoder": "same"}.get(spec.topology, "next") if spec.head.predicts_tokens else None
    device = next(model.parameters()).device
    fed = torch.tensor([ids], device=device)
    given = {"input_ids": fed}
    if source is not None:
        given = {"input_ids": torch.tensor([source], device=device), "decoder_input_ids": fed}
    last = spec.stacks[-1]
    found = model.trace(**given, residuals=["*.embed", "*.residual*"] if predicts else None, attention="all")
    layers = list(_layers(found, last.name, last.depth)) if predicts else []
    attention, shown_first, notes = _weights(found, f"{last.name}.{layer or 0}.attention", two=source is not None)
    if source is not None:
        notes.append(f"The decoder reads its own answer: the likeliest token after each, {ANSWER} at most.")
    if not predicts:
        notes.append(f"Its head ({spec.head.kind}) predicts no tokens, so there is nothing to show by layer.")
    shown = {int(pair[0]) for layer in layers for each in layer.top for pair in each}
    return PromptTrace(
        name=name,
        figures=_figures(model, len(ids) + len(source or ())),
        ids=ids,
        source=source,
        texts=_texts(tokenizer, shown | set(ids)),
        source_texts=_texts(reader, source or ()),
        predicts=predicts,
        layers=layers,
        given=_given(found.output.logits, ids, predicts),
        attention=attention,
        first=(shown_first, head or 0) if layer is not None or head is not None else (0, 0),
        notes=notes,
    )


def _check_first(spec: ModelSpec, layer: int | None, head: int | None) -> None:
    """Refuse a layer or a head that the model does not have."""
    stack = spec.stacks[-1]
    whose = f"the {stack.name}" if len(spec.stacks) > 1 else "the model"
    wrong = []
    if layer is not None and not 0 <= layer < stack.depth:
        wrong.append(f"--layer: {layer} is not a layer; {whose} has {some(stack.depth, 'layer')}, counted from 0")
    heads = stack.layers[layer if layer is not None and not wrong else 0].attention.heads
    if head is not None and not 0 <= head < heads:
        wrong.append(f"--head: {head} is not a head; a layer has {some(heads, 'head')}, counted from 0")
    if wrong:
        raise InputError("; ".join(wrong))


def _read(spec: ModelSpec, tokenizer: Tokenizer, text: str) -> Sequence[int]:
    """The tokens of a prompt."""
    from anyformer.data.tokenizer import source_ids
    from anyformer.generation.text.prompt import read_prompt

    return source_ids(tokenizer, text) if spec.topology == "encoder" else read_prompt(spec, tokenizer, text).ids


def _check_ids(spec: ModelSpec, ids: Sequence[int]) -> None:
    """Refuse what the model can't read, or a page can't show."""
    if len(ids) > MOST:
        raise InputError(f"--prompt: {len(ids):,} tokens; a page shows at most {MOST}: shorten it")
    beyond = max(ids) if ids else 0
    if not ids or beyond >= spec.input_vocab or min(ids) < 0:
        which = beyond if beyond >= spec.input_vocab else min(ids, default=0)
        what = "has no tokens" if not ids else f"holds token {which}, and the model knows {spec.input_vocab}"
        raise InputError(f"--prompt: {what}; is this the tokenizer of this model?")


def _with_answer(model: Model, ids: list[int]) -> tuple[list[int] | None, list[int]]:
    """What the encoder reads, if there are two stacks, and what the last stack reads."""
    from anyformer.generation.generate import generate

    spec = model.spec
    if spec.topology != "encoder-decoder":
        return None, ids
    room = min(ANSWER, spec.context - 1)
    device = next(model.parameters()).device
    answer = generate(model, torch.tensor([ids], device=device), max_new_tokens=room, temperature=0.0)[0].tolist()
    # An end that was said expects nothing after it.
    ends = [i for i, token in enumerate(answer) if token in spec.ids.eos and i > 0]
    return ids, answer[: ends[0]] if ends else answer[:-1]


def _layers(found: Trace, stack: str, depth: int) -> Iterable[Prediction]:
    """Predictions by layer, one layer at a time: a vocabulary of logits for all of them may not fit into memory."""
    for layer in ("embed", *range(depth)):
        logits = found.lens(layer) if layer != depth - 1 else found.output.logits
        top: list[Candidates] = []
        if logits is not None:
            most = min(TOP if layer == depth - 1 else TOP_BY_LAYER, logits.shape[-1])
            chances = _chances(logits).topk(most, -1)
            pairs = zip(chances.indices[0].tolist(), chances.values[0].tolist(), strict=True)
            top = [[[i, round(p, 4)] for i, p in zip(*pair, strict=True)] for pair in pairs]
        yield Prediction(name="embedding" if layer == "embed" else f"layer {layer}", top=top)


def _chances(logits_BTV: Tensor) -> Tensor:
    return logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32)).softmax(-1)


def _given(logits: Tensor | None, ids: Sequence[int], predicts: str | None) -> list[list[float] | None]:
    """Probability and rank of the tokens of the text; nothing is expected of the first."""
    if logits is None or predicts is None:
        return [None] * len(ids)
    ahead = 1 if predicts == "next" else 0
    chances_TV = _chances(logits)[0]
    found: list[list[float] | None] = [None] * ahead
    for place, token in enumerate(ids[ahead:]):
        own = chances_TV[place, token]
        found.append([round(float(own), 4), int((chances_TV[place] > own).sum()) + 1])
    return found


def _weights(found: Trace, first: str, *, two: bool) -> tuple[list[Weights], int, list[str]]:
    """Attention of every layer, or of as many as there is room for, evenly spread; and where among them the first one is."""
    packed, wanted = list[Weights](), 0
    for name, heads in found.heads.items():
        stack, layer, kind, _ = name.split(".")
        wanted = len(packed) if name.startswith(f"{first}.") else wanted
        encoder = two and stack == "encoder"
        title = f"{stack} {layer}" if two else f"layer {layer}"
        packed.append(
            Weights(
                name=f"{title}, {kind}" if two and not encoder else title,
                heads=len(heads),
                rows="source" if encoder else "tokens",
                columns="source" if encoder or kind == "cross" else "tokens",
                data=_bytes(found[name][0]),
            )
        )
    step, kept = 1, packed
    while sum(len(each.data) for each in kept) > ROOM and len(kept) > 1:
        step += 1
        kept = packed[wanted % step :: step]
    left = f"Attention of {len(kept)} of {len(packed)} layers: all of them would make the page too large."
    return kept, wanted // step, [] if step == 1 else [left]


def _bytes(weights_HTS: Tensor) -> str:
    """Square roots, as small weights matter too; a mixer's negative weights (rotated features) show as none."""
    levels = (weights_HTS.clamp(0, 1).sqrt() * LEVELS).round().to(torch.uint8)
    return base64.b64encode(zlib.compress(levels.contiguous().cpu().numpy().tobytes(), 9)).decode("ascii")


def _figures(model: Model, tokens: int) -> list[tuple[str, str]]:
    spec = model.spec
    depth = " + ".join(str(stack.depth) for stack in spec.stacks)
    heads = sorted({layer.attention.heads for stack in spec.stacks for layer in stack.layers})
    return [
        ("parameters", number_format.params(sum(p.numel() for p in model.parameters()))),
        ("layers", depth),
        ("heads", " or ".join(map(str, heads))),
        ("width", f"{spec.width:,}"),
        ("vocabulary", f"{spec.vocab:,}" if spec.source_vocab is None else f"{spec.source_vocab:,} + {spec.vocab:,}"),
        ("tokens here", f"{tokens:,}"),
    ]


def _texts(tokenizer: Tokenizer, ids: Iterable[int]) -> dict[int, str]:
    """What each token says within a text, with the blank that it begins with; special ones by their names."""
    names = {token: name for name, token in tokenizer.specials.items()}
    letter = tokenizer.encode("a")
    before = tokenizer.decode(letter)

    def text(token: int) -> str:
        if token in names:
            return names[token]
        # Decoders drop the blank at the beginning of a text, so a token is read behind another one.
        after = tokenizer.decode([*letter, token])
        piece = after[len(before) :] if after.startswith(before) else tokenizer.decode([token])
        return piece or tokenizer.decode([token], specials=True)

    return {token: text(token) for token in sorted(ids)}


def page(trace: PromptTrace) -> str:
    """The text of the file. Nothing in it but our own script runs, whatever the tokens say."""
    folder = files("anyformer.explain") / "web"
    shell, style = ((folder / name).read_text(encoding="utf-8") for name in ("page.html", "look.css"))
    script = one_script(*((folder / f"{name}.js").read_text(encoding="utf-8") for name in MODULES))
    return Template(shell).substitute(
        title=html.escape(f"{trace.name}: a prompt, explained"),
        name=html.escape(trace.name),
        policy=f"default-src 'none'; style-src {csp_hash(style)}; script-src {csp_hash(script)}",
        style=style,
        script=script,
        data=safe(json.dumps(trace.data(), allow_nan=False, separators=(",", ":"))),
    )


def one_script(*modules: str) -> str:
    """ES modules as a single script, which a file without a server can hold: each after those that it imports from, in one
    scope, so that no two may define the same name.
    """
    bare = (re.sub(r"^import .*;\n|^export ", "", module, flags=re.MULTILINE) for module in modules)
    return "\n".join(['"use strict";', *bare])


def safe(data: str) -> str:
    """JSON that can't end the element it stands in: no tag, no comment and no entity begins in it."""
    return data.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def save(trace: PromptTrace, path: str | Path) -> None:
    """Write the page into a file."""
    place = Path(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--html: {str(path)!r} does not end in .html; write e.g. {place.stem or 'explain'}.html")
    if not place.parent.is_dir():
        raise InputError(f"--html: {str(path)!r}: there is no folder {str(place.parent)!r}; make it first")
    text = page(trace)
    replace_file(place, lambda beside: beside.write_text(text, encoding="utf-8", newline="\n"))
