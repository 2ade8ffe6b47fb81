"""The gallery of attention patterns, docs/patterns.md and its pictures.

Sentences and predicates are those of the leaves themselves; only the examples and who uses them are written here.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from anyformer.explain.drawing import Picture, picture
from anyformer.explain.figure import save_picture
from anyformer.explain.words import file_of, leaf_words
from anyformer.specs import Pattern
from anyformer.specs.codec import Problems, fields_of, read, required

PAGE = Path(__file__).resolve().parent / "patterns.md"
PICTURES = PAGE.parent / "pictures" / "patterns"


@dataclass(frozen=True)
class Example:
    """A pattern as a spec writes it, who uses it, and what else is to be said."""

    text: str
    users: str
    documents: tuple[int, ...] = ()
    note: str = ""


KINDS = {
    "full": Example("full", "encoders such as BERT and T5's; every encoder's default"),
    "causal": Example("causal", "decoders such as GPT and Llama; every decoder's default"),
    "window": Example("window(4096)", "Mistral, the local layers of Gemma 2 and 3, GPT-OSS"),
    "symmetric_window": Example("symmetric_window(64)", "ModernBERT's local layers, Longformer"),
    "band": Example("band(24, 8)", "windows that look back farther than ahead"),
    "dilated_window": Example("dilated_window(4, 3)", "Longformer's upper layers, read from left to right"),
    "symmetric_dilated": Example("symmetric_dilated(3, 2)", "Longformer's upper layers (in the paper; not released)"),
    "chunked": Example("chunked(8)", "Llama 4's local layers, as `causal & chunked(8192)`"),
    "documents": Example(
        "documents",
        "packed rows",
        documents=(12, 6, 14),
        note="Every model adds it by itself where a row holds several documents, so a spec seldom names it.",
    ),
    "prefix": Example("causal | prefix(10)", "prefix language models (T5's study, UL2, GLM)"),
    "global_tokens": Example(
        "symmetric_window(3) | global_tokens",
        "Longformer, LED",
        note="Tokens are marked with the argument `global_mask` of a model, or are the `first` ones of a document. "
        "With `marks = False` none is marked, and a cache keeps the first ones and the window.",
    ),
    "strided": Example("window(6) | causal & strided(6)", "Sparse Transformer for images"),
    "fixed": Example("causal & fixed(8, 2)", "Sparse Transformer for text"),
    "axial": Example("axial(6)", "axial attention on images, read row by row"),
    "edge_blocks": Example("edge_blocks(4)", "BigBird"),
    "random_blocks": Example("random_blocks(2, 2)", "BigBird, drawn anew"),
    "random_tokens": Example("causal & random_tokens(3, past=True)", "the random graph of BigBird's proofs"),
    "bigbird_random": Example(
        "chunked(2, 1, 1) | bigbird_random(2, 2, 4, 64)",
        "BigBird, as its published code draws",
        note="The released models draw in training only, `bigbird_random(64, 3, 12, 4096, 'training')`; in eval mode they "
        "have `bigbird_eval` in its place. At 1,024 tokens the published code may draw a block that it sees anyway and then counts it twice; "
        "here a key counts once.",
    ),
    "bigbird_eval": Example(
        "chunked(1, 1, 1) | bigbird_eval(1, 2)",
        "BigBird, as its published code reads in eval mode",
        note="The picture shows which keys are seen, not that those of the first block count `count` more times.",
    ),
    "block_sparse": Example("block_sparse(2, 3, 4, 1)", "Phi-3-small, as `block_sparse(64, 16, 8, 1)`"),
    "heads": Example(
        "heads(0, 2) & window(6) | heads(2, 4) & dilated_window(6, 3)", "Longformer, dilated in two heads"
    ),
}

MODELS = {
    "Longformer": Example("symmetric_window(256) | global_tokens", "every layer"),
    "Sparse Transformer, strided": Example("window(128) | causal & strided(128)", "both sets in each head"),
    "Sparse Transformer, fixed": Example("causal & fixed(128, 8)", "both sets in each head"),
    "GPT-3's local layers": Example("window(256)", "every other layer; the rest is `causal`"),
    "BigBird": Example(
        "chunked(64, 1, 1) | edge_blocks(64) | bigbird_random(64, 3, 12, 4096, 'training')", "every layer, in training"
    ),
    "Phi-3-small": Example("block_sparse(64, 16, 8, 1)", "every other layer; the rest is `causal`"),
    "Reformer's local layers": Example("causal & chunked(64, 1)", "as a decoder; an encoder has `chunked(64, 1)`"),
    "a window with sinks": Example(
        "window(1024) | causal & global_tokens(4, False)", "StreamingLLM's cache, by pattern"
    ),
}

INTRO = """\
# Attention patterns

A pattern says which keys a query may see. It is one predicate on places inside a document: of the query q and the key
k, in some kinds of the head, the layer or the document's length. Masks, kernels, the number of pairs that are counted,
what a cache keeps, and the pictures below are all derived from it.

Patterns are written in a spec as text, and joined with `&` (both allow) and `|` (one allows). `&` binds tighter:

```toml
[attention]
pattern = "window(128) | causal & strided(128)"
```

Numbers stand in the order of the fields, or by name (`chunked(64, before=1)`); what has a default may be left out. A
layer can have its own, see [layers](spec.md). A decoder needs a pattern that shows no later token: `window`,
`dilated_window` and `block_sparse` are causal by themselves, others are written `causal & ...`. The exception is a
prefix-LM, `causal | prefix(n)`.

In the pictures queries go down and keys go across; a dark cell is a pair that is allowed. Where heads differ, two that
do are shown. `anyformer explain SPEC` draws those of a spec, and `--png FILE` puts them into a figure.
"""


def parsed(text: str) -> Pattern:
    """A pattern as a spec reads it."""
    problems = Problems()
    pattern = read(Pattern, text, "pattern", problems)
    if problems.found:
        raise ValueError("; ".join(problems.lines))
    return pattern


def drawn(example: Example) -> Picture:
    """The picture of an example."""
    return picture(parsed(example.text), documents=example.documents)


def written(made: Picture) -> str:
    """What a picture shows, which it also carries as text: one that is out of date can be told."""
    cells = b"".join(cells.tobytes() for cells in made.panels.values())
    return json.dumps({"caption": made.caption, "cells": hashlib.sha256(cells).hexdigest()[:16]})


def file_name(name: str) -> str:
    """The file of a kind's or a model's picture."""
    return "".join(c if c.isalnum() else "_" for c in name.replace("'", "").lower()).replace("__", "_") + ".png"


def section(name: str, example: Example, *, kind: str = "") -> str:
    """One entry of the gallery."""
    pattern, made, leaf = parsed(example.text), drawn(example), Pattern.named(kind)
    lines = [f"### `{name}`" if kind else f"### {name}", ""]
    if leaf:
        lines += [leaf_words(leaf), ""]
        lines += [f"- fields: {', '.join(f'`{field}`' for field in fields_of(leaf))}"] if fields_of(leaf) else []
    lines += [f"- {'used by' if kind else 'where'}: {example.users}"] if example.users else []
    lines += [f"- predicate: `{pattern.equation()}`"]
    lines += [f"- drawn as `{made.drawn}`"] if made.drawn != pattern else []
    lines += [f"- drawn with tokens {' and '.join(map(str, made.marked))} marked"] if made.marked else []
    lines += [f"- written in [{file_of(leaf)}](../{file_of(leaf)})"] if leaf else []
    lines += ["", *([example.note, ""] if example.note else [])]
    lines += ["```toml", "[attention]", f"pattern = {json.dumps(example.text)}", "```", ""]
    return "\n".join([*lines, f"![{name}](pictures/patterns/{file_name(name)})", ""])


def kinds() -> dict[str, Example]:
    """Every kind that we ship, the new ones as their fields have it."""
    ours = [kind for kind in Pattern.kinds() if Pattern.named(kind).__module__.startswith("anyformer.")]
    return {kind: KINDS[kind] for kind in KINDS if kind in ours} | {
        kind: Example(plainest(kind), "") for kind in ours if kind not in KINDS
    }


def plainest(kind: str) -> str:
    """A kind with the smallest numbers from 2 on for what it needs to be told."""
    leaf = Pattern.named(kind)
    needed = {name: hint for name, (hint, field) in fields_of(leaf).items() if required(field)}
    for numbers in itertools.product((*range(2, 9), 64), repeat=len(needed)):
        given = {name: hint(n) if hint in (int, bool) else get_args(hint)[0]
                 for (name, hint), n in zip(needed.items(), numbers, strict=True)}  # fmt: skip
        made = leaf(**given)
        if not [*made.problems(), *made.check(4, 64)]:
            return str(made)
    raise LookupError(f"no small numbers fit {kind}; give it an example in KINDS")


def page() -> str:
    """All of docs/patterns.md."""
    made = [section(kind, example, kind=kind) for kind, example in kinds().items()]
    models = [section(name, example) for name, example in MODELS.items()]
    return "\n".join([INTRO, "## Kinds\n", *made, "## As models have them\n", *models])


def main() -> None:
    """Write the page, draw its pictures, and take away those of kinds that are gone."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    shown = kinds() | MODELS
    for path in PICTURES.iterdir():
        if path.name not in map(file_name, shown):
            path.unlink()
    for name, example in shown.items():
        made = drawn(example)
        save_picture(made, PICTURES / file_name(name), note=written(made))
    PAGE.write_text(page(), encoding="utf-8")
