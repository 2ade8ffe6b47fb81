"""`anyformer explain`: a spec in words, numbers and pictures."""

from __future__ import annotations

import argparse

from anyformer.cli.parser import Command, add_set, whole
from anyformer.cli.terminal import console, print_all, print_json


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("spec", metavar="SPEC", help="the name of a preset, a .toml file or a directory")
    add_set(parser)
    parser.add_argument(
        "--context", type=whole(1), nargs="+", action="extend", default=[], metavar="N",
        help="lengths in tokens to count at (default: a few up to the spec's own)",
    )  # fmt: skip
    parser.add_argument("--layer", type=whole(0), metavar="N", help="only the layers that are like this one")
    parser.add_argument(
        "--machine", default="h200", metavar="NAME", help="whose speed says what sets the pace: a100, h100, h200"
    )
    parser.add_argument("--png", metavar="FILE", help="also draw block, patterns and costs into this file")
    parser.add_argument("--json", action="store_true", help="everything as one JSON document")


def run(given: argparse.Namespace) -> int:
    """Explain a spec."""
    import anyformer
    from anyformer.explain.machines import machine
    from anyformer.explain.report import preset_of, report

    found = report(
        anyformer.spec(given.spec, dict(given.changes)),
        machine(given.machine),
        name=given.spec,
        preset=preset_of(given.spec),
        varied=bool(given.changes),
        contexts=given.context,
        layer=given.layer,
    )
    if given.png:
        from anyformer.explain.figure import save

        save(found, given.png)
    if given.json:
        print_json(found.data())
        return 0
    from anyformer.explain.page import page

    out = console()
    print_all(out, page(found, out.width, ascii_only=out.options.ascii_only))
    if given.png:
        out.print(f"\nDrawn into {given.png}", markup=False)
    return 0


COMMAND = Command(
    name="explain",
    summary="what a model is, in words, numbers and pictures",
    example="""
anyformer explain llama-3-8b
anyformer explain llama-3-8b --set attention.kv_heads=1 --context 4096 65536
anyformer explain model.toml --png model.png
""",
    arguments=arguments,
    run=run,
)
