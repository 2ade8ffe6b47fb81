"""`anyformer convert`: a model's folder in another format, dtype or shape.

anyformer convert runs/quickstart exported --format hf
anyformer convert path/to/llama llama-gqa --kv-heads 8 --text notes.txt
anyformer convert path/to/llama longer --rope-scaling yarn:4 --positions 32768 --format hf
anyformer convert runs/quickstart small --quantize int8
anyformer convert path/to/llama llama.gguf --format gguf --type q8_0
anyformer convert llama.gguf llama-hf --format hf
anyformer convert --unsafe-pickle path/with/pytorch_model.bin safe --format hf
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import DTYPES, Bar, working
from anyformer.cli.parser import Command, add_ignore_keys, add_set, flag, number, option, together, whole
from anyformer.cli.terminal import grid, show, text

if TYPE_CHECKING:
    from anyformer.convert.folder import Converted


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "source", "a folder of anyformer's, a Hugging Face directory, org/name, or a .gguf file", "SRC")
    option(parser, "place", "the new folder, or .gguf file; one that anyformer did not write is left alone", "DST")
    words = "our own, that of a published class, or one file for llama.cpp"
    option(parser, "--format", words, ("anyformer", "hf", "gguf"), default="anyformer")
    option(parser, "--type", "with --format gguf: what matrices are stored in (f16)", ("f32", "f16", "bf16", "q8_0"))
    option(parser, "--family", "the published class, e.g. mistral (that it came from, or the first that fits)", "KIND")
    option(parser, "--dtype", "of the new weights (that of the source)", DTYPES)
    integers = parser.add_mutually_exclusive_group()
    option(integers, "--quantize", "weights of large products in 8 or 4 bits, in our own format", ("int8", "int4"))
    flag(integers, "--dequantize", "the weights that a quantised folder stands for, e.g. for --format hf")
    flag(parser, "--unsafe-pickle", "read .bin or .pt weights, in their own process; only from somebody whom you trust")
    add_ignore_keys(parser)
    flag(parser, "--json", "what was done as one JSON document")
    surgery = parser.add_argument_group("surgery", "each changes the model; train it a little more afterwards")
    option(surgery, "--kv-heads", "pool key and value heads into N (MHA to GQA or MQA)", whole(1))
    words = "with --kv-heads: neighbouring heads become their mean, the first of them, or random ones (mean)"
    option(surgery, "--pool", words, ("mean", "first", "random"))
    option(surgery, "--rope-theta", "another base of RoPE, in every layer that has it", number(above=0), metavar="X")
    option(surgery, "--rope-scaling", "linear, dynamic, yarn or llama3; or none", _scaling, metavar="KIND:FACTOR")
    option(surgery, "--positions", "a longer context; learned tables get more rows", whole(1))
    words = "with --positions: repeat the learned rows, which stay exact, or interpolate all (repeat)"
    option(surgery, "--extend", words, ("repeat", "interpolate"))
    option(surgery, "--window", "full causal attention sees the last W tokens only", whole(1), metavar="W")
    option(surgery, "--seed", "of random heads, --pool random (0)", whole(0), metavar="S")
    option(surgery, "--text", "perplexity on this text, before, after and as the new folder reads it", "FILE")
    add_set(parser)


def _scaling(text: str) -> tuple[str, float]:
    kind, _, factor = text.partition(":")
    if kind == "none" and not factor:
        return kind, 1.0
    if not factor:
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND:FACTOR, such as yarn:4")
    return kind, number(least=1)(factor)


def _run(given: argparse.Namespace) -> int:
    """Convert, and say what came of it."""
    from pathlib import Path

    from anyformer.data.corpus import read_text
    from anyformer.families.io import find_folder

    source, words = together(
        lambda: find_folder(given.source), lambda: None if given.text is None else read_text(given.text)
    )
    # A text has bars of its own, and one terminal shows one thing at a time.
    with working(f"converting {given.source}") if words is None else nullcontext():
        import torch

        from anyformer.convert.folder import Plan, convert, summary
        from anyformer.convert.surgery import Surgery

        surgery = Surgery(
            kv_heads=given.kv_heads, pool=given.pool, theta=given.rope_theta, scaling=given.rope_scaling,
            positions=given.positions, extend=given.extend, window=given.window, changes=dict(given.changes),
            seed=given.seed,
        )  # fmt: skip
        done = convert(
            Plan(
                source=source, place=Path(given.place), format=given.format, family=given.family,
                dtype=None if given.dtype is None else getattr(torch, given.dtype), type=given.type, surgery=surgery, text=words,
                quantize=given.quantize, dequantize=given.dequantize, unsafe_pickle=given.unsafe_pickle,
                ignore_keys=tuple(given.ignore_keys),
            ),
            progress=Bar,
        )  # fmt: skip
    show(given.json, lambda: summary(done), _page(done))
    return 0


def _page(done: Converted) -> Iterator[Any]:
    from anyformer.specs import number_format

    kind = "our own format" if done.architecture is None else f"files of {done.architecture} ({done.family})"
    kind = f"a GGUF file of {done.architecture}" if done.format == "gguf" else kind
    dtype = str(done.dtype).removeprefix("torch.")
    weights = dtype if done.quantized is None else f"{done.quantized} weights and {dtype}"
    yield text(f"{done.place}: {kind}, {done.params:,} parameters, {weights}, {number_format.data(done.bytes)}")
    if done.before is None:
        return
    table = grid(("", "tokens", "perplexity", "bits per byte"), "lrrr")
    for name, found in {"before": done.before, "after": done.after, "as written": done.written}.items():
        if found is not None:
            bits = "-" if found.bits_per_byte is None else f"{found.bits_per_byte:.4f}"
            table.add_row(name, f"{found.tokens:,}", f"{found.perplexity:,.3f}", bits)
    yield table
    yield text(done.before.rule, "dim")
    if done.written is not None and done.written.rule != done.before.rule:
        yield text(f"as written: {done.written.rule}", "dim")


COMMAND = Command("convert", "a model in another format, dtype or shape", __doc__, _arguments, _run)
