"""`anyformer convert`: a model's folder in another format, dtype or shape."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import Bar, working
from anyformer.cli.parser import Command, add_ignore_keys, add_set, number, together, whole
from anyformer.cli.terminal import console, print_all, print_json

if TYPE_CHECKING:
    from anyformer.convert.folder import Converted

DTYPES = ("float64", "float32", "float16", "bfloat16")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("source", metavar="SRC", help="a folder of anyformer's, a Hugging Face directory, or org/name")
    parser.add_argument("place", metavar="DST", help="the new folder; one that anyformer did not write is left alone")
    parser.add_argument(
        "--format", choices=("anyformer", "hf"), default="anyformer",
        help="our own, or that of the published class that can hold the model (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--family",
        metavar="KIND",
        help="the published class to write for, e.g. mistral (that it was read from, or the first that fits)",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="of the new weights (that of the source)")
    whole_numbers = parser.add_mutually_exclusive_group()
    whole_numbers.add_argument(
        "--quantize", choices=("int8", "int4"), help="weights of large products in 8 or 4 bits, in our own format"
    )
    whole_numbers.add_argument(
        "--dequantize", action="store_true",
        help="of a quantised folder, the weights that its whole numbers stand for, e.g. for --format hf",
    )  # fmt: skip
    parser.add_argument(
        "--unsafe-pickle", action="store_true",
        help="read .bin or .pt weights, in a process of its own; only from somebody whom you trust",
    )  # fmt: skip
    add_ignore_keys(parser)
    parser.add_argument("--json", action="store_true", help="what was done as one JSON document")
    surgery = parser.add_argument_group("surgery", "each changes the model; train it a little more afterwards")
    surgery.add_argument(
        "--kv-heads", type=whole(1), metavar="N", help="pool key and value heads into N (MHA to GQA or MQA)"
    )
    surgery.add_argument(
        "--pool", choices=("mean", "first", "random"),
        help="with --kv-heads: neighbouring heads become their mean, the first of them, or random ones (mean)",
    )  # fmt: skip
    surgery.add_argument(
        "--rope-theta", type=number(above=0), metavar="X", help="another base of RoPE, in every layer that has it"
    )
    surgery.add_argument(
        "--rope-scaling", type=_scaling, metavar="KIND:FACTOR", help="linear, dynamic, yarn or llama3; or none"
    )
    surgery.add_argument(
        "--positions", type=whole(1), metavar="N", help="a longer context; learned tables get more rows"
    )
    surgery.add_argument(
        "--extend", choices=("repeat", "interpolate"),
        help="with --positions: new rows repeat the old ones, which stay exact; or all are interpolated (repeat)",
    )  # fmt: skip
    surgery.add_argument(
        "--window", type=whole(1), metavar="W", help="full causal attention sees the last W tokens only"
    )
    surgery.add_argument("--seed", type=whole(0), metavar="S", help="of random heads, --pool random (0)")
    surgery.add_argument(
        "--text", metavar="FILE", help="perplexity on this text, before, after and as the new folder reads it"
    )
    add_set(parser)


def _scaling(text: str) -> tuple[str, float]:
    kind, _, factor = text.partition(":")
    if kind == "none" and not factor:
        return kind, 1.0
    if not factor:
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND:FACTOR, such as yarn:4")
    return kind, number(least=1)(factor)


def run(given: argparse.Namespace) -> int:
    """Convert, and say what came of it."""
    from pathlib import Path

    from anyformer.data.corpus import read_text
    from anyformer.families.hub import find_folder

    source, text = together(
        lambda: find_folder(given.source), lambda: None if given.text is None else read_text(given.text)
    )
    # A text has bars of its own, and one terminal shows one thing at a time.
    with working(f"converting {given.source}") if text is None else nullcontext():
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
                dtype=None if given.dtype is None else getattr(torch, given.dtype), surgery=surgery, text=text,
                quantize=given.quantize, dequantize=given.dequantize, unsafe_pickle=given.unsafe_pickle,
                ignore_keys=tuple(given.ignore_keys),
            ),
            progress=Bar,
        )  # fmt: skip
    if given.json:
        print_json(summary(done))
    else:
        _print(done)
    return 0


def _print(done: Converted) -> None:
    from rich.table import Table
    from rich.text import Text

    from anyformer.specs import number_format

    kind = "our own format" if done.architecture is None else f"files of {done.architecture} ({done.family})"
    dtype = str(done.dtype).removeprefix("torch.")
    weights = dtype if done.quantized is None else f"{done.quantized} weights and {dtype}"
    line = f"{done.place}: {kind}, {done.params:,} parameters, {weights}, {number_format.data(done.bytes)}"
    parts: list[Any] = [Text(line)]
    if done.before is not None:
        table = Table.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "right", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)
        table.add_row(*(Text(name, style="dim") for name in ("", "tokens", "perplexity", "bits per byte")))
        for name, found in (("before", done.before), ("after", done.after), ("as written", done.written)):
            if found is not None:
                bits = "-" if found.bits_per_byte is None else f"{found.bits_per_byte:.4f}"
                table.add_row(name, f"{found.tokens:,}", f"{found.perplexity:,.3f}", bits)
        parts += [table, Text(done.before.rule, style="dim")]
        if done.written is not None and done.written.rule != done.before.rule:
            parts.append(Text(f"as written: {done.written.rule}", style="dim"))
    print_all(console(), parts)


COMMAND = Command(
    name="convert",
    summary="a model in another format, dtype or shape",
    example="""
anyformer convert runs/quickstart exported --format hf
anyformer convert path/to/llama llama-gqa --kv-heads 8 --text notes.txt
anyformer convert path/to/llama longer --rope-scaling yarn:4 --positions 32768 --format hf
anyformer convert runs/quickstart small --quantize int8
anyformer convert --unsafe-pickle path/with/pytorch_model.bin safe --format hf
""",
    arguments=arguments,
    run=run,
)
