"""`anyformer`: which commands there are, and how they end: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C."""

import os
import re
import sys
import warnings
from collections.abc import Sequence

import anyformer
from anyformer.cli import (
    ablate,
    bench,
    chat,
    convert,
    diff,
    evals,
    explain,
    generate,
    quickstart,
    scale,
    serve,
    sweep,
    tokenize,
    train,
    verify,
    zoo,
)
from anyformer.cli.parser import BAD_INPUT, Command, Parser
from anyformer.errors import AnyformerError, file_fault

MODULES = (
    quickstart,
    tokenize,
    train,
    generate,
    chat,
    serve,
    evals,
    ablate,
    sweep,
    scale,
    zoo,
    explain,
    diff,
    convert,
    verify,
    bench,
)
COMMANDS: tuple[Command, ...] = tuple(module.COMMAND for module in MODULES)
OUT_OF_MEMORY = re.compile(r"(?i)out of memory|not enough memory|can.t allocate")


def parser() -> Parser:
    """The parser of the whole command line."""
    made = Parser(prog="anyformer", description="Every Transformer language model, from one spec.")
    made.add_argument("--version", action="version", version=f"anyformer {anyformer.__version__}")
    made.set_defaults(parser=made)
    commands = made.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for command in COMMANDS:
        command.add_to(commands)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    top = parser()
    given, rest = top.parse_known_args(argv)
    if rest:
        given.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if given.command is None:
        top.print_help()
        return 0
    try:
        given.words = list(sys.argv[1:] if argv is None else argv)
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            return given.run(given)
    except AnyformerError as error:
        return _failed(str(error), 2 if isinstance(error, BAD_INPUT) else 1)
    except BrokenPipeError:
        # Whoever read our output has left (`| head`): nobody is there to be told, and the last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _failed(file_fault(error), 1)
    except (MemoryError, RuntimeError) as error:
        # torch reports a lack of memory as a RuntimeError, in words that depend on the device.
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
            raise
        return _failed("there is not enough memory for this; make the model, the batch or the context smaller", 1)
    except KeyboardInterrupt:
        return _failed("stopped", 130)


def _warned(message: Warning | str, *_: object, **__: object) -> None:
    """A warning in one line, without the place in our source that raised it."""
    sys.stderr.write(f"anyformer: {message}\n")


def _failed(message: str, status: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"anyformer: {message}\n")
    return status
