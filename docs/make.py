"""Write everything that is generated: `python docs/make.py`, or only what is named, `python docs/make.py spec axes`.

Tables and pages are made from the registries, dataclasses and tests themselves, so that a new leaf is in all of them
without an edit. All together take about four minutes, of which `parity` and `generation` take nearly all.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAKERS = {
    "spec": "the tables of docs/spec.md",
    "training": "the tables of docs/training.md",
    "serving": "the tables of docs/serving.md",
    "axes": "the README's table and picture of axes",
    "patterns": "docs/patterns.md and its pictures",
    "packed_rows": "docs/pictures/packed-rows.png",
    "public_keys": "anyformer/families/public_keys.json, from the source of the pinned transformers",
    "public_tokenizers": "anyformer/data/public_tokenizers.json, from the same",
    "parity": "docs/parity.md, from the parity tests",
    "generation": "docs/generation-equality.md, from `verify generation`",
    "claims": "docs/claims.md and the pages of studies/, from their results",
}


def main() -> int:
    """Make what is asked for; 1 if a page names something that fails."""
    lines = "\n".join(f"  {name:17} {what}" for name, what in MAKERS.items())
    reader = argparse.ArgumentParser("python docs/make.py", epilog=f"names:\n{lines}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    reader.add_argument("names", nargs="*", metavar="NAME", help="what to make; nothing: all")
    names = reader.parse_args().names or list(MAKERS)
    if unknown := sorted({*names} - MAKERS.keys()):
        reader.error(f"unknown: {', '.join(unknown)} (known: {', '.join(MAKERS)})")
    # The makers beside this file, and the tests that two of them run.
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    failed = 0
    for name in names:
        sys.stdout.write(f"{MAKERS[name]}\n")
        failed |= importlib.import_module(f"make_{name}").main() or 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
