"""`anyformer explain`: a spec in words, numbers and pictures; or what a trained model does with a prompt.

anyformer explain llama-3-8b
anyformer explain llama-3-8b --set attention.kv_heads=1 --context 4096 65536
anyformer explain gemma-3-4b --device cuda --layer 5
anyformer explain model.toml --png model.png
anyformer explain runs/quickstart --prompt "def main(" --html main.html
anyformer explain runs/quickstart --prompt "def main(" --layer 2 --head 1
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.cli.model import DTYPES, open_model, open_reader, stdin_text, working
from anyformer.cli.parser import Command, add_ignore_keys, add_set, flag, option, together, whole
from anyformer.cli.terminal import console, print_all, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.explain.kernels import KernelTable
    from anyformer.specs.model import ModelSpec

PAGE = "explain.html"


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "spec", "the name of a preset, a .toml file or a directory; with --prompt a trained model", "SPEC")
    add_set(parser)
    add_ignore_keys(parser)
    words = "lengths in tokens to count at (default: a few up to the spec's own)"
    option(parser, "--context", words, whole(1), nargs="+", action="extend", default=[])
    words = "only layers like this one, from 0 (of two stacks: the decoder's); with --prompt the one shown first"
    option(parser, "--layer", words, whole(0))
    option(parser, "--head", "with --prompt: the attention head that the page shows first, from 0", whole(0))
    option(parser, "--machine", "whose speed says what sets the pace: a100, h100, h200 (h200)", "NAME")
    option(parser, "--device", "where attention kernels are chosen for (cuda if there is one here)", ("cpu", "cuda"))
    option(parser, "--dtype", "in which they compute (float32 on a CPU, bfloat16 on CUDA)", DTYPES)
    option(parser, "--png", "also draw block, patterns and costs into this file", "FILE")
    flag(parser, "--json", "everything as one JSON document")
    words = "write a page: what the model expects after each token by layer, and where attention heads look; - is stdin"
    option(parser, "--prompt", words, "TEXT")
    option(parser, "--html", f"where that page goes ({PAGE})", "FILE")


def _run(given: argparse.Namespace) -> int:
    """Explain a spec, or a prompt."""
    if given.prompt is not None:
        return _explain_prompt(given)
    from anyformer.explain.costs import machine
    from anyformer.explain.report import preset_of, report

    spec, speed, *_ = together(
        lambda: _spec(given), lambda: machine(given.machine or "h200"), lambda: _refuse_idle(given)
    )
    found = report(
        spec, speed, name=given.spec, preset=preset_of(given.spec), varied=bool(given.changes), contexts=given.context,
        layer=given.layer,
    )  # fmt: skip
    if given.png:
        from anyformer.explain.figure import save

        save(found, given.png)
    if given.json:
        print_json(found.data() | {"kernels": _kernels(given, spec).data()})
        return 0
    from anyformer.explain.page import kernel_page, page

    out = console()
    print_all(out, page(found, out.width, ascii_only=out.options.ascii_only))
    # Last, as torch takes a second to load.
    print_all(out, kernel_page(_kernels(given, spec)))
    if given.png:
        out.print(f"\nDrawn into {given.png}", markup=False)
    return 0


def _spec(given: argparse.Namespace) -> ModelSpec:
    """The spec, which has the layer that was given."""
    import anyformer
    from anyformer.explain.groups import groups

    spec = anyformer.spec(given.spec, dict(given.changes), ignore_keys=given.ignore_keys)
    groups(spec, given.layer)
    return spec


def _kernels(given: argparse.Namespace, spec: ModelSpec) -> KernelTable:
    from anyformer.explain.kernels import kernel_table

    return kernel_table(spec, given.device, given.dtype, given.layer)


def _refuse_idle(given: argparse.Namespace) -> None:
    """Refuse what is for the page about a prompt only."""
    words = {"html": "--html: a page is about a prompt", "head": "--head: it is chosen on the page about a prompt"}
    if wrong := [why for name, why in words.items() if getattr(given, name) is not None]:
        raise InputError(f"{'; '.join(wrong)}; add --prompt TEXT")


def _explain_prompt(given: argparse.Namespace) -> int:
    """Write the page about a prompt, or its data."""
    options = {"--set": "changes"} | {f"--{name}": name for name in ("context", "machine", "png", "device", "dtype")}
    idle = [option for option, name in options.items() if getattr(given, name)]
    if idle:
        raise InputError(f"{', '.join(idle)}: not with --prompt, which looks at a trained model as it is")
    text = stdin_text(given.prompt)
    model, tokenizer = open_model(given.spec, ignore_keys=given.ignore_keys)
    from anyformer.explain.prompt import save, trace_prompt

    with working("tracing the prompt"):
        name, reader = Path(given.spec).resolve().name, open_reader(given.spec, model, tokenizer)
        found = trace_prompt(model, tokenizer, text, name=name, reader=reader, layer=given.layer, head=given.head)
    if given.json:
        print_json(found.data())
    place = given.html or (None if given.json else PAGE)
    if place is not None:
        save(found, place)
        if not given.json:
            console().print(f"{found.headline()}: open {place} in a browser", markup=False, soft_wrap=True)
    return 0


COMMAND = Command("explain", "what a model is, in words, numbers and pictures", __doc__, _arguments, _run)
