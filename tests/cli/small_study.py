"""A config that trains in a second, and commands run in this process outside of a test's own capture."""

import contextlib
import io
from pathlib import Path

from anyformer.cli.main import main
from tests.cli.command import Ran

TEXT = "".join(f"line {i}: the quick brown fox jumps over {i % 7} lazy dogs\n" for i in range(60))
CONFIG = """
[model.spec]
width = 16
depth = 1
context = 32
attention = { heads = 2 }
head = { kind = "lm", tied = true }
[data]
folder = "data/foxes"
make = "foxes.txt --lines --train chars --hold-out 0.2"
rows = "stream"
[[stages]]
steps = 6
length = 16
batch = 4
[compute]
threads = 1
[run]
folder = "runs/small"
eval_every = 3
eval_batches = 1
"""


def write_base(folder: Path, **sizes: int) -> None:
    """foxes.txt and small.toml, with other sizes if told so."""
    (folder / "foxes.txt").write_text(TEXT)
    config = CONFIG
    for name, old in (("width", 16), ("depth", 1), ("heads", 2), ("steps", 6)):
        config = config.replace(f"{name} = {old}", f"{name} = {sizes.get(name, old)}")
    (folder / "small.toml").write_text(config)


def ran(*argv: str) -> Ran:
    """Run a command; what it left. For fixtures of a module, which can't use `capsys`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(argv)
        except SystemExit as stop:
            status = int(stop.code or 0)
    return Ran(status, out.getvalue(), err.getvalue())
