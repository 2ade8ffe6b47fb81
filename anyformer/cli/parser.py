"""Argument parsing: what a command declares, and errors that name the nearest right word."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from anyformer.errors import DataError, InputError, SpecError, nearest

BAD_INPUT = (SpecError, InputError, DataError)
"""Errors for which whoever asked can do something else."""


class Wrong(tuple[()]):
    """In place of a value that is wrong; options that gather values take it for none."""


WRONG = Wrong()


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command. Its module imports nothing heavy: `anyformer --help` reads them all."""

    name: str
    summary: str
    """One line for the list of commands."""
    example: str
    """Commands to try, one on a line."""
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Any], int]
    """Does the work; the exit status."""


class Parser(argparse.ArgumentParser):
    """Full option names only, and a hint at the right spelling."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **rest)
        self.wrong: list[str] = []
        """What was found wrong with values so far: all of it is told at once."""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self.wrong.append(str(error))
            return WRONG

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            if value is not WRONG:
                super()._check_value(action, value)
        except argparse.ArgumentError as error:
            # The list of commands is another parser's, which can't be chosen without one.
            if isinstance(action, argparse._SubParsersAction):
                raise
            self.wrong.append(str(error))

    def parse_known_args(self, *args: Any, **named: Any) -> Any:
        """As argparse does, but for values that are wrong: they are named together."""
        self.wrong = []
        found = super().parse_known_args(*args, **named)
        if self.wrong:
            self.error("")
        return found

    def error(self, message: str) -> NoReturn:
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        wrong = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if wrong:
            message = f"{wrong[1]} is no option of this command{nearest(wrong[1], known)}"
        choice = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if choice:
            commands = [name for action in self._actions if action.dest == "command" for name in action.choices or ()]
            message = f"{choice[1]!r} is no command{nearest(choice[1], commands)}"
        lines = "\n  ".join([*self.wrong, *([message] if message else [])])
        self.exit(2, f"{self.prog}: {lines}\n  see {self.prog} --help\n")


def together(*tries: Callable[[], Any]) -> list[Any]:
    """What each of these gives. Where the input of several is bad, one error tells all of it."""
    found: list[Any] = []
    wrong: list[Exception] = []
    for each in tries:
        try:
            found.append(each())
        except BAD_INPUT as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise InputError("\n  ".join(["there are several problems:", *map(str, wrong)]))
    return found


def add_command(commands: Any, command: Command) -> None:
    """Make a command's parser."""
    examples = "\n".join(f"  {line}" for line in command.example.strip().splitlines())
    made: Parser = commands.add_parser(
        command.name, help=command.summary, description=command.summary, epilog=f"examples:\n{examples}"
    )
    command.arguments(made)
    made.set_defaults(run=command.run, parser=made)


def whole(least: int) -> Callable[[str], int]:
    """A type of argument: a whole number of at least this."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is not at least {least}")
        return number

    return read


def number(
    *, above: float | None = None, least: float | None = None, most: float | None = None
) -> Callable[[str], float]:
    """A type of argument: a finite number within bounds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise argparse.ArgumentTypeError(f"{text!r} is not finite")
        if above is not None and value <= above:
            raise argparse.ArgumentTypeError(f"{text} is not above {above:g}")
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"{text} is not at least {least:g}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"{text} is more than {most:g}")
        return value

    return read


def add_set(parser: argparse.ArgumentParser, what: str = "the spec", example: str = "attention.kv_heads=1") -> None:
    """The option `--set a.b=v`, as often as one likes; read it with `changes`."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="changes", type=_change,
        help=f"change any field of {what} by its dotted name, e.g. --set {example}",
    )  # fmt: skip


def add_ignore_keys(parser: argparse.ArgumentParser) -> None:
    """The option `--ignore-keys a,b.c`, for every command that reads the folder of a model."""
    parser.add_argument(
        "--ignore-keys", action="extend", default=[], metavar="A,B.C", dest="ignore_keys", type=_names,
        help="take these keys of a published config.json as absent, though they would be refused; at your own risk "
        "(but for auto_map, which names code)",
    )  # fmt: skip


def _names(text: str) -> list[str]:
    """Names between commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of keys, such as attn_gate,rope_scaling.odd")
    return names


def change_text(name: str, value: Any) -> str:
    """A change as --set reads it back."""
    plain = f"{name}={value}"
    return plain if isinstance(value, str) and _change(plain) == (name, value) else f"{name}={_toml(value)}"


def _toml(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key, ensure_ascii=False)} = {_toml(inner)}" for key, inner in value.items())
            + " }"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # Texts, numbers and truth values are written alike in both; what is left are dates, inf and nan.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool | int) else str(value)


def _change(text: str) -> tuple[str, Any]:
    """One dotted name and its value, which is TOML if it reads as TOML (8, true, [1, 2], "x") and else a text."""
    import tomllib

    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as position.kind=alibi")
    try:
        return name.strip(), tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value
