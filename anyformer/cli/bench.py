"""`anyformer bench`: what operations cost on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli import bench_generate
from anyformer.cli.device_args import DTYPES, clock, device_of
from anyformer.cli.model import Bar, working
from anyformer.cli.parser import Command, Parser, add_command, whole
from anyformer.cli.terminal import console, print_all, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.evals.attention import Row, Setting, Table

LENGTHS = {"cpu": (512, 1024, 2048, 4096), "cuda": (1024, 2048, 4096, 8192, 16384)}


def attention_arguments(parser: argparse.ArgumentParser) -> None:
    """What `bench attention` takes."""
    parser.add_argument(
        "--lengths", type=whole(1), nargs="+", metavar="T",
        help="tokens of a row (512 to 4096 on a CPU, 1024 to 16384 on CUDA)",
    )  # fmt: skip
    parser.add_argument("--heads", type=whole(1), default=4, metavar="N", help="query heads (%(default)s)")
    parser.add_argument(
        "--kv-heads", type=whole(1), metavar="N",
        help="key and value heads of GQA (about a quarter of the heads); MHA and MQA are measured besides",
    )  # fmt: skip
    parser.add_argument("--head-dim", type=whole(1), default=64, metavar="N", help="width of a head (%(default)s)")
    parser.add_argument("--window", type=whole(1), default=256, metavar="N", help="tokens of the window (%(default)s)")
    parser.add_argument("--batch", type=whole(1), default=1, metavar="N", help="rows (%(default)s)")
    parser.add_argument("--backward", action="store_true", help="forward and backward, instead of forward alone")
    parser.add_argument("--dtype", choices=DTYPES, help="of q, k and v (float32 on a CPU, bfloat16 on CUDA)")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (cuda if there is one)")
    parser.add_argument(
        "--repeats", type=whole(1), metavar="N", help="rounds of timing (up to 5, as many as fit into a second)"
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw time and peak bytes over the length, e.g. into a.png")
    parser.add_argument("--json", action="store_true", help="the measurements as one JSON document")


def run_attention(given: argparse.Namespace) -> int:
    """Measure, print, and draw if asked."""
    with working("loading torch"):
        setting = _setting(given)
        from anyformer.evals.attention import measure
        from anyformer.evals.plot import check_path, save
    if given.plot:
        check_path(given.plot)
    with Bar("measuring attention") as bar:
        table = measure(setting, bar)
    if given.plot:
        save(table, given.plot)
    if given.json:
        print_json(_data(table))
        return 0
    print_all(console(), _page(table))
    if given.plot:
        console().print(f"\nDrawn into {given.plot}", markup=False)
    return 0


def _setting(given: argparse.Namespace) -> Setting:
    import torch

    from anyformer.evals.attention import Setting

    device = device_of(given.device)
    kind = torch.device(device).type
    heads = given.heads
    fitting = [n for n in range(1, heads + 1) if heads % n == 0]
    # About a quarter, and otherwise than in MHA and MQA where that can be.
    grouped = given.kv_heads or min(fitting, key=lambda n: (n in (1, heads), abs(n - heads / 4)))
    if heads % grouped:
        choices = ", ".join(map(str, fitting))
        raise InputError(f"--kv-heads: {grouped} does not divide --heads {heads}; pick one of {choices}")
    dtype = given.dtype or ("bfloat16" if kind == "cuda" else "float32")
    return Setting(
        heads=heads, kv_heads=grouped, head_dim=given.head_dim, window=given.window, batch=given.batch,
        lengths=tuple(sorted(set(given.lengths or LENGTHS[kind]))), backward=given.backward, repeats=given.repeats,
        device=device, dtype=getattr(torch, dtype),
    )  # fmt: skip


def _data(table: Table) -> dict[str, Any]:
    setting = table.setting
    return {
        "device": setting.device, "machine": table.machine, "threads": table.threads,
        "dtype": str(setting.dtype).removeprefix("torch."), "backward": setting.backward, "batch": setting.batch,
        "heads": setting.heads, "head_dim": setting.head_dim, "window": setting.window,
        "rows": [_row(row) for row in table.rows],
        "refusals": [refusal._asdict() for refusal in table.refusals],
    }  # fmt: skip


def _row(row: Row) -> dict[str, Any]:
    named = {"attention": row.attention, "kv_heads": row.kv_heads, "tokens": row.length, "kernel": row.way}
    if row.skipped:
        return named | {"skipped": row.skipped}
    return named | {"seconds": row.seconds, "allocated_bytes": row.left, "peak_bytes": row.peak}


def _page(table: Table) -> Iterator[Any]:
    from rich.text import Text

    setting = table.setting
    what = "forward and backward" if setting.backward else "forward"
    dtype = str(setting.dtype).removeprefix("torch.")
    yield Text(f"The attention step alone, {what}, {dtype}, {table.machine}")
    for attention, kv_heads in setting.attentions().items():
        rows = [row for row in table.rows if row.attention == attention]
        yield Text(
            f"\n{attention}: {setting.heads} heads of {setting.head_dim}, {kv_heads} of keys and values", style="bold"
        )
        yield _table(rows)
    for note in dict.fromkeys(f"{row.way} from {row.length:,} tokens on: {row.skipped}" for row in _first_skips(table)):
        yield Text(f"\nnot measured: {note}", style="yellow")
    if table.refusals:
        yield Text("\nKernels that do not serve:", style="dim")
    for refusal in table.refusals:
        yield Text(f"  {refusal.kernel} for {refusal.pattern}: {refusal.reason}", style="dim")
    kept = "output, and what is kept for the backward pass" if setting.backward else "output"
    how = "median" if setting.device.startswith("cuda") else "least"
    yield Text(
        f"\nallocated: bytes after the forward pass ({kept}); peak: the most at once; inputs are not counted. "
        f"time: the {how} of the rounds, with masks made, as layers share them.",
        style="dim",
    )


def _first_skips(table: Table) -> list[Row]:
    found: dict[tuple[str, str], Row] = {}
    for row in table.rows:
        if row.skipped:
            found.setdefault((row.attention, row.way), row)
    return list(found.values())


def _table(rows: list[Row]) -> Any:
    from rich.table import Table as Grid
    from rich.text import Text

    from anyformer.specs import number_format

    grid = Grid.grid(padding=(0, 3, 0, 0))
    for justify in ("right", "left", "right", "right", "right", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    names = ("tokens", "kernel", "time", "against sdpa", "allocated", "peak")
    grid.add_row(*(Text(name, style="dim") for name in names))
    plain = {row.length: row.seconds for row in rows if row.way == "sdpa" and row.seconds}
    before = 0
    for row in rows:
        shown = f"{row.length:,}" if row.length != before else ""
        before = row.length
        if row.seconds is None or row.left is None or row.peak is None:
            grid.add_row(shown, Text(row.way), Text("-", style="yellow"), "", "", "")
            continue
        base = plain.get(row.length)
        against = "" if base is None or row.way == "sdpa" else f"x {row.seconds / base:.3g}"
        grid.add_row(
            shown, Text(row.way), clock(row.seconds), against, number_format.data(row.left),
            number_format.data(row.peak),
        )  # fmt: skip
    return grid


ATTENTION = Command(
    name="attention",
    summary="time and bytes of attention by kernel, kv heads and length",
    example="""
anyformer bench attention
anyformer bench attention --backward --plot attention.png
anyformer bench attention --device cuda --heads 32 --kv-heads 8 --head-dim 128 --window 1024
anyformer bench attention --lengths 1000 3000 --json
""",
    arguments=attention_arguments,
    run=run_attention,
)
BENCHES: tuple[Command, ...] = (bench_generate.COMMAND, ATTENTION)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Each measurement is a command of its own."""
    benches = parser.add_subparsers(
        title="measurements", metavar="WHAT", dest="bench", required=True, parser_class=Parser
    )
    for bench in BENCHES:
        add_command(benches, bench)


COMMAND = Command(
    name="bench",
    summary="what generating and attention cost on this machine",
    example="anyformer bench generate\nanyformer bench attention",
    arguments=arguments,
    run=lambda given: given.run(given),
)
