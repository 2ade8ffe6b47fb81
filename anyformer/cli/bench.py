"""`anyformer bench`: what generation and attention cost on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import DTYPES, Bar, clock, device_of, working
from anyformer.cli.parser import Command, add_ignore_keys, add_set, flag, group, option, whole
from anyformer.cli.terminal import console, grid, show, text
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.evals import attention, generation
    from anyformer.model.model import Model

GENERATE_EXAMPLES = """
anyformer bench generate
anyformer bench generate gpt-2 --batch 1 --lengths 22 400 --new 100 --png steps.png
anyformer bench generate llama-3-8b --set depth=2 --device cuda --json
"""
ATTENTION_EXAMPLES = """
anyformer bench attention
anyformer bench attention --backward --plot attention.png
anyformer bench attention --device cuda --heads 32 --kv-heads 8 --head-dim 128 --window 1024
anyformer bench attention --lengths 1000 3000 --json
"""
SMALL = (
    "llama-2-7b",
    {"width": 288, "depth": 6, "attention.heads": 6, "attention.kv_heads": 6, "ffn.width": 768, "context": 1024},
)
"""Without a model: a Llama of 24 million parameters."""
LENGTHS = {"cpu": (512, 1024, 2048, 4096), "cuda": (1024, 2048, 4096, 8192, 16384)}


def _where_arguments(parser: argparse.ArgumentParser, what: str, fits: str) -> None:
    """The device, the dtype of `what`, and the rounds of timing."""
    option(parser, "--repeats", f"rounds of timing (up to 5, as many as fit into {fits})", whole(1))
    option(parser, "--dtype", f"of {what} (float32 on a CPU, bfloat16 on CUDA)", DTYPES)
    option(parser, "--device", "cpu, cuda or cuda:1 (cuda if there is one)", "NAME")
    flag(parser, "--json", "the measurements as one JSON document")


def _dtype(given: argparse.Namespace, device: str) -> Any:
    import torch

    return getattr(torch, given.dtype or ("bfloat16" if device.startswith("cuda") else "float32"))


def _shown(given: argparse.Namespace, data: Callable[[], Any], page: Iterator[Any]) -> int:
    show(given.json, data, page)
    if given.plot and not given.json:
        console().print(f"\nDrawn into {given.plot}", markup=False)
    return 0


def _generate_arguments(parser: argparse.ArgumentParser) -> None:
    words = "the name of a preset, a .toml file, or the folder of a model; random weights where there are none"
    option(parser, "model", f"{words} (a Llama of 24 million parameters)", "SPEC", nargs="?")
    add_set(parser)
    add_ignore_keys(parser)
    option(parser, "--lengths", "tokens of the prompt (32 128 384)", whole(1), nargs="+", metavar="T")
    option(parser, "--batch", "prompts at once (1 4)", whole(1), nargs="+")
    option(parser, "--new", "tokens to generate", whole(2), default=24)
    flag(parser, "--cached-only", "leave out reading everything again in each step")
    words = "also draw the time of a step over the length, e.g. into a.png"
    parser.add_argument("--plot", "--png", metavar="FILE", dest="plot", help=words)
    _where_arguments(parser, "the weights", "two seconds")


def _run_generate(given: argparse.Namespace) -> int:
    """Measure, print, and draw if there is a file to draw into."""
    with working("loading torch"):
        from anyformer.evals.generation import Setting, measure
        from anyformer.evals.plot import save_generation
        from anyformer.explain.figure import check_path

        device = device_of(given.device)
    if given.plot:
        check_path(given.plot)
    with working("making the model"):
        model = _model(given, device)
    setting = Setting(
        batches=tuple(sorted(set(given.batch or (1, 4)))), lengths=tuple(sorted(set(given.lengths or (32, 128, 384)))),
        new=given.new, repeats=given.repeats, uncached=not given.cached_only,
    )  # fmt: skip
    with Bar("measuring generation") as bar:
        table = measure(model, setting, bar)
    if given.plot:
        save_generation(table, given.plot)
    return _shown(given, lambda: _generation_data(table, setting.new), _generation_page(table, setting.new))


def _model(given: argparse.Namespace, device: str) -> Model:
    import anyformer as af
    from anyformer.kernels.memory import free
    from anyformer.specs import number_format

    dtype, changes = _dtype(given, device), dict(given.changes)
    folder = Path(given.model) if given.model else None
    if folder is not None and folder.is_dir() and any(folder.glob("*.safetensors")):
        if changes:
            raise InputError(f"--set: {given.model} holds weights, which belong to its spec as it is; leave --set out")
        return af.load(folder, device, dtype, ignore_keys=given.ignore_keys)
    name, usual = (given.model, {}) if given.model else SMALL
    spec = af.spec(name, usual | changes, ignore_keys=given.ignore_keys)
    size, room = spec.count().params * dtype.itemsize, free(device)
    if size > 0.8 * room:
        takes, left = number_format.data(size), number_format.data(room)
        raise InputError(
            f"the weights take {takes}, and {left} are free on {device}; make it smaller, e.g. with --set depth=2, or pick "
            "another --dtype"
        )
    return af.build(spec, device=device, dtype=dtype, seed=0).eval()


def _generation_data(table: generation.Table, new: int) -> dict[str, Any]:
    rows = [
        {
            "way": row.mode, "batch": row.batch, "prompt": row.prompt, "first_token_seconds": row.first,
            "prompt_tokens_per_second": row.prefill, "step_seconds": row.step, "tokens_per_second": row.rate,
            "bytes_per_step": row.bytes, "share_of_read_limit": row.share, "times_uncached": table.gain(row),
            "steps_seconds": list(row.steps),
        }
        for row in table.rows
    ]  # fmt: skip
    return {
        "device": table.device, "machine": table.machine, "dtype": table.dtype, "params": table.params,
        "bytes_per_second": table.bandwidth, "new_tokens": new, "rows": rows,
    }  # fmt: skip


def _generation_page(table: generation.Table, new: int) -> Iterator[Any]:
    from anyformer.specs import number_format

    yield text(
        f"{number_format.params(table.params)} parameters, {table.dtype}, {table.machine}; memory gives "
        f"{number_format.data(table.bandwidth)}/s of a buffer as large as the weights\n"
    )
    names = ("batch", "prompt", "way", "first token", "prompt tok/s", "step", "tok/s", "of limit", "x uncached")
    rows, before = grid(names, "rrlrrrrrr", gap=3), (0, 0)
    for row in table.rows:
        batch = f"{row.batch}" if row.batch != before[0] else ""
        prompt = "" if (row.batch, row.prompt) == before else f"{row.prompt:,}"
        before, gain, share = (row.batch, row.prompt), table.gain(row), row.share
        rows.add_row(
            batch, prompt, row.mode, clock(row.first), f"{row.prefill:,.0f}", clock(row.step), f"{row.rate:,.1f}",
            "" if share is None else f"{share:.0%}", "" if gain is None else f"{gain:.3g}",
        )  # fmt: skip
    yield rows
    yield text(
        f"\n{new} tokens after each prompt, greedy. first token: until it is there, from the call. step: the time of each "
        "further one (middle). of limit: how long memory takes to give the weights, keys and values of a step once, over "
        "the step's time; a small model may beat it from caches. x uncached: all tokens, against reading everything again "
        "in each step.",
        "dim",
    )


def _attention_arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "--lengths", "tokens of a row (CPU: 512-4096, CUDA: 1024-16384)", whole(1), nargs="+", metavar="T")
    option(parser, "--heads", "query heads", whole(1), default=4)
    option(parser, "--kv-heads", "kv heads of GQA, beside MHA and MQA (about a quarter of the heads)", whole(1))
    option(parser, "--head-dim", "width of a head", whole(1), default=64)
    option(parser, "--window", "tokens of the window", whole(1), default=256)
    option(parser, "--batch", "rows", whole(1), default=1)
    flag(parser, "--backward", "forward and backward, instead of forward alone")
    option(parser, "--plot", "also draw time and peak bytes over the length, e.g. into a.png", "FILE")
    _where_arguments(parser, "q, k and v", "a second")


def _run_attention(given: argparse.Namespace) -> int:
    """Measure, print, and draw if there is a file to draw into."""
    with working("loading torch"):
        from anyformer.evals.attention import Setting, measure
        from anyformer.evals.plot import save_attention
        from anyformer.explain.figure import check_path

        device, heads = device_of(given.device), given.heads
        fitting = [n for n in range(1, heads + 1) if heads % n == 0]
        # About a quarter, and otherwise than in MHA and MQA where that can be.
        grouped = given.kv_heads or min(fitting, key=lambda n: (n in (1, heads), abs(n - heads / 4)))
        if heads % grouped:
            choices = ", ".join(map(str, fitting))
            raise InputError(f"--kv-heads: {grouped} does not divide --heads {heads}; pick one of {choices}")
        setting = Setting(
            heads=heads, kv_heads=grouped, head_dim=given.head_dim, window=given.window, batch=given.batch,
            lengths=tuple(sorted(set(given.lengths or LENGTHS[device.split(":")[0]]))), backward=given.backward,
            repeats=given.repeats, device=device, dtype=_dtype(given, device),
        )  # fmt: skip
    if given.plot:
        check_path(given.plot)
    with Bar("measuring attention") as bar:
        table = measure(setting, bar)
    if given.plot:
        save_attention(table, given.plot)
    return _shown(given, lambda: _attention_data(table), _attention_page(table))


def _attention_data(table: attention.Table) -> dict[str, Any]:
    setting = table.setting
    rows = [{name: value for name, value in asdict(row).items() if value is not None} for row in table.rows]
    return {
        "device": setting.device, "machine": table.machine, "threads": table.threads,
        "dtype": str(setting.dtype).removeprefix("torch."), "backward": setting.backward, "batch": setting.batch,
        "heads": setting.heads, "head_dim": setting.head_dim, "window": setting.window,
        "rows": rows,
        "refusals": [refusal._asdict() for refusal in table.refusals],
    }  # fmt: skip


def _attention_page(table: attention.Table) -> Iterator[Any]:
    setting = table.setting
    what = "forward and backward" if setting.backward else "forward"
    yield text(f"The attention step alone, {what}, {str(setting.dtype).removeprefix('torch.')}, {table.machine}")
    names = ("tokens", "kernel", "time", "against sdpa", "allocated", "peak")
    for name, kv_heads in setting.attentions().items():
        heads = f"{setting.heads} heads of {setting.head_dim}, {kv_heads} of keys and values"
        yield text(f"\n{name}: {heads}", "bold")
        yield grid(names, "rlrrrr", _attention_rows([row for row in table.rows if row.attention == name]), gap=3)
    skips: dict[tuple[str, str], attention.Row] = {}
    for row in table.rows:
        if row.skipped:
            skips.setdefault((row.attention, row.kernel), row)
    for note in dict.fromkeys(f"{row.kernel} from {row.tokens:,} tokens on: {row.skipped}" for row in skips.values()):
        yield text(f"\nnot measured: {note}", "yellow")
    if table.refusals:
        yield text("\nKernels that do not serve:", "dim")
    for refusal in table.refusals:
        yield text(f"  {refusal.kernel} for {refusal.pattern}: {refusal.reason}", "dim")
    kept = "output, and what is kept for the backward pass" if setting.backward else "output"
    how = "median" if setting.device.startswith("cuda") else "least"
    yield text(
        f"\nallocated: bytes after the forward pass ({kept}); peak: the most at once; inputs are not counted. "
        f"time: the {how} of the rounds, with masks made, as layers share them.",
        "dim",
    )


def _attention_rows(rows: list[attention.Row]) -> Iterator[Any]:
    from anyformer.specs.number_format import data

    for length, alike in groupby(rows, key=lambda row: row.tokens):
        shown, same = f"{length:,}", list(alike)
        base = next((row.seconds for row in same if row.kernel == "sdpa"), None)
        for row in same:
            if row.seconds is None or row.allocated_bytes is None or row.peak_bytes is None:
                yield shown, text(row.kernel), text("-", "yellow"), "", "", ""
            else:
                against = f"x {row.seconds / base:.3g}" if base and row.kernel != "sdpa" else ""
                sizes = data(row.allocated_bytes), data(row.peak_bytes)
                yield shown, text(row.kernel), clock(row.seconds), against, *sizes
            shown = ""


BENCHES = (
    Command(
        "generate", "prefill, first token and tokens/s by batch and length, against what memory allows",
        GENERATE_EXAMPLES, _generate_arguments, _run_generate,
    ),
    Command(
        "attention", "time and bytes of attention by kernel, kv heads and length", ATTENTION_EXAMPLES,
        _attention_arguments, _run_attention,
    ),
)  # fmt: skip
COMMAND = group("bench", "what generating and attention cost on this machine", "measurements", "WHAT", BENCHES)
