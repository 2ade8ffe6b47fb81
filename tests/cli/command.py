"""Commands as a person runs them, in this process."""

import json
from collections.abc import Sequence

from anyformer.cli.main import main


class Ran:
    """What a command left: its status, what it printed, and what it complained of."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def json(self):
        return json.loads(self.out)


def run(capsys, *argv: str) -> Ran:
    capsys.readouterr()
    try:
        status = main(argv)
    except SystemExit as stop:
        status = stop.code
    printed = capsys.readouterr()
    return Ran(status, printed.out, printed.err)


def widest(lines: Sequence[str]) -> int:
    return max(map(len, lines))
