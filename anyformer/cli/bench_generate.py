"""`anyformer bench generate`: how fast this machine generates, and how fast its memory would let it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.device_args import DTYPES, clock, device_of
from anyformer.cli.model import Bar, working
from anyformer.cli.parser import Command, add_ignore_keys, add_set, whole
from anyformer.cli.terminal import console, print_all, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    import torch

    from anyformer.evals.generation import Row, Table
    from anyformer.model.model import Model

SMALL = (
    "llama-2-7b",
    {"width": 288, "depth": 6, "attention.heads": 6, "attention.kv_heads": 6, "ffn.width": 768, "context": 1024},
)
"""Without a model: a Llama of 24 million parameters."""
LENGTHS, BATCHES, NEW = (32, 128, 384), (1, 4), 24


def arguments(parser: argparse.ArgumentParser) -> None:
    """What `bench generate` takes."""
    parser.add_argument(
        "model", metavar="SPEC", nargs="?",
        help="the name of a preset, a .toml file, or the folder of a model; random weights where there are none (a Llama "
        "of 24 million parameters)",
    )  # fmt: skip
    add_set(parser)
    add_ignore_keys(parser)
    parser.add_argument(
        "--lengths", type=whole(1), nargs="+", default=LENGTHS, metavar="T", help="tokens of the prompt (32 128 384)"
    )
    parser.add_argument("--batch", type=whole(1), nargs="+", default=BATCHES, metavar="N", help="prompts at once (1 4)")
    parser.add_argument("--new", type=whole(2), default=NEW, metavar="N", help="tokens to generate (%(default)s)")
    parser.add_argument(
        "--repeats", type=whole(1), metavar="N", help="rounds of timing (up to 5, as many as fit into two seconds)"
    )
    parser.add_argument("--cached-only", action="store_true", help="leave out reading everything again in each step")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (float32 on a CPU, bfloat16 on CUDA)")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (cuda if there is one)")
    parser.add_argument(
        "--plot", "--png", metavar="FILE", dest="plot", help="also draw the time of a step over the length, e.g. into a.png"
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the measurements as one JSON document")


def run(given: argparse.Namespace) -> int:
    """Measure, print, and draw if asked."""
    with working("loading torch"):
        from anyformer.evals.generation import Setting, measure
        from anyformer.evals.generation_plot import save
        from anyformer.evals.plot import check_path

        device = device_of(given.device)
    if given.plot:
        check_path(given.plot)
    with working("making the model"):
        model = _model(given, device)
    setting = Setting(
        batches=tuple(sorted(set(given.batch))), lengths=tuple(sorted(set(given.lengths))), new=given.new,
        repeats=given.repeats, uncached=not given.cached_only,
    )  # fmt: skip
    with Bar("measuring generation") as bar:
        table = measure(model, setting, bar)
    if given.plot:
        save(table, given.plot)
    if given.json:
        print_json(_data(table, setting.new))
        return 0
    print_all(console(), _page(table, setting.new))
    if given.plot:
        console().print(f"\nDrawn into {given.plot}", markup=False)
    return 0


def _model(given: argparse.Namespace, device: str) -> Model:
    import torch

    import anyformer as af

    dtype = given.dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    wanted: torch.dtype = getattr(torch, dtype)
    changes = dict(given.changes)
    folder = Path(given.model) if given.model else None
    if folder is not None and folder.is_dir() and _has_weights(folder):
        if changes:
            raise InputError(f"--set: {given.model} holds weights, which belong to its spec as it is; leave --set out")
        return af.load(folder, device, wanted, ignore_keys=given.ignore_keys)
    name, changes = (
        SMALL[0] if given.model is None else given.model,
        (SMALL[1] if given.model is None else {}) | changes,
    )
    spec = af.spec(name, changes, ignore_keys=given.ignore_keys)
    _check_memory(spec.count().params * wanted.itemsize, device)
    return af.build(spec, device=device, dtype=wanted, seed=0).eval()


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def _check_memory(size: int, device: str) -> None:
    """Refuse weights that would push everything else out of memory."""
    from anyformer.kernels.memory import free
    from anyformer.specs import number_format

    room = free(device)
    if size > 0.8 * room:
        raise InputError(
            f"the weights take {number_format.data(size)}, and {number_format.data(room)} are free on {device}; make it smaller, e.g. with "
            "--set depth=2, or pick another --dtype"
        )


def _data(table: Table, new: int) -> dict[str, Any]:
    return {
        "device": table.device, "machine": table.machine, "dtype": table.dtype, "params": table.params,
        "bytes_per_second": table.bandwidth, "new_tokens": new, "rows": [_row(table, row) for row in table.rows],
    }  # fmt: skip


def _row(table: Table, row: Row) -> dict[str, Any]:
    return {
        "way": row.way, "batch": row.batch, "prompt": row.prompt, "first_token_seconds": row.first,
        "prompt_tokens_per_second": row.reading, "step_seconds": row.step, "tokens_per_second": row.rate,
        "bytes_per_step": row.bytes, "share_of_read_limit": row.share, "times_uncached": table.gain(row),
        "steps_seconds": list(row.steps),
    }  # fmt: skip


def _page(table: Table, new: int) -> Iterator[Any]:
    from rich.table import Table as Grid
    from rich.text import Text

    from anyformer.specs import number_format

    yield Text(
        f"{number_format.params(table.params)} parameters, {table.dtype}, {table.machine}; memory gives "
        f"{number_format.data(table.bandwidth)}/s of a buffer as large as the weights\n"
    )
    grid = Grid.grid(padding=(0, 3, 0, 0))
    for justify in ("right", "right", "left", "right", "right", "right", "right", "right", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    names = ("batch", "prompt", "way", "first token", "prompt tok/s", "step", "tok/s", "of limit", "x uncached")
    grid.add_row(*(Text(name, style="dim") for name in names))
    before = (0, 0)
    for row in table.rows:
        batch, prompt = (f"{row.batch}" if row.batch != before[0] else "", f"{row.prompt:,}")
        prompt = "" if (row.batch, row.prompt) == before else prompt
        before = (row.batch, row.prompt)
        gain, share = table.gain(row), row.share
        grid.add_row(
            batch, prompt, row.way, clock(row.first), f"{row.reading:,.0f}", clock(row.step), f"{row.rate:,.1f}",
            "" if share is None else f"{share:.0%}", "" if gain is None else f"{gain:.3g}",
        )  # fmt: skip
    yield grid
    yield Text(
        f"\n{new} tokens after each prompt, greedy. first token: until it is there, from the call. step: the time of each "
        "further one (middle). of limit: how long memory takes to give the weights, keys and values of a step once, over "
        "the step's time; a small model may beat it from caches. x uncached: all tokens, against reading everything again "
        "in each step.",
        style="dim",
    )


COMMAND = Command(
    name="generate",
    summary="prefill, first token and tokens/s by batch and length, against what memory allows",
    example="""
anyformer bench generate
anyformer bench generate gpt-2 --batch 1 --lengths 22 400 --new 100 --png steps.png
anyformer bench generate llama-3-8b --set depth=2 --device cuda --json
""",
    arguments=arguments,
    run=run,
)
