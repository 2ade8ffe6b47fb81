"""Argument parsing: what a command declares, and errors that name the nearest right word."""

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from anyformer.errors import DataError, InputError, SpecError, nearest

Container = argparse._ActionsContainer
"""A parser, or a group of its options."""
Kind = Callable[[str], Any] | tuple[str, ...] | str | None
BAD_INPUT = (SpecError, InputError, DataError)
"""Errors of the input, which the user can correct."""
WRONG = ()
"""In place of a value that is wrong; options that gather values take it for none."""


@dataclass(frozen=True)
class Command:
    """A command. Its module imports nothing heavy: `anyformer --help` reads them all."""

    name: str
    summary: str
    """One line for the list of commands."""
    doc: str | None
    """The docstring of its module: a sentence, and below it examples."""
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Any], int]
    """Does the work; the exit status."""

    def add_to(self, commands: Any) -> None:
        """Make its parser."""
        lines = (f"  {line.strip()}" for line in (self.doc or "").splitlines()[1:] if line.strip())
        epilog = "\n".join(("examples:", *lines))
        made: Parser = commands.add_parser(self.name, help=self.summary, description=self.summary, epilog=epilog)
        self.arguments(made)
        made.set_defaults(run=self.run, parser=made)


class Parser(argparse.ArgumentParser):
    """Full option names only, and a hint at the right spelling."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **rest)
        self.wrong: list[str] = []
        """What was found wrong with values so far: all of it is reported at once."""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self.wrong.append(str(error))
            return WRONG

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            if value != WRONG:
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
        if wrong := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            message = f"{wrong[1]} is no option of this command{nearest(wrong[1], known)}"
        if choice := re.match(r"argument COMMAND: invalid choice: '([^']*)'", message):
            commands = [name for action in self._actions if action.dest == "command" for name in action.choices or ()]
            message = f"{choice[1]!r} is no command{nearest(choice[1], commands)}"
        lines = "\n  ".join(filter(None, [*self.wrong, message]))
        self.exit(2, f"{self.prog}: {lines}\n  see {self.prog} --help\n")


def together(*tries: Callable[[], Any]) -> list[Any]:
    """What each of these gives. Where the input of several is bad, one error tells all of it."""
    found, wrong = list[Any](), list[Exception]()
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


def group(name: str, summary: str, title: str, metavar: str, commands: Sequence[Command]) -> Command:
    """A command that consists of others, with the first example of each."""

    def arguments(parser: argparse.ArgumentParser) -> None:
        parts = parser.add_subparsers(title=title, metavar=metavar, dest=title, required=True, parser_class=Parser)
        for command in commands:
            command.add_to(parts)

    examples = "\n".join((command.doc or "").splitlines()[1] for command in commands)
    # Whichever of them was chosen sets what is run.
    return Command(name, summary, f"\n{examples}", arguments, run=lambda given: 2)


def option(where: Container, name: str, help: str, kind: Kind = None, **more: Any) -> None:
    """Declare an option or argument; `kind` is a type, a tuple of choices, or of a text what it is called in the help.

    A number is called N unless `metavar` says otherwise, and a default is shown.
    """
    if isinstance(kind, tuple):
        more["choices"] = kind
    elif isinstance(kind, str):
        more["metavar"] = kind
    elif kind is not None:
        more = {"metavar": "N"} | more | {"type": kind}
    shown = " (%(default)s)" if more.get("default") not in (None, [], "") and "%(default)s" not in help else ""
    where.add_argument(name, help=help + shown, **more)


def flag(where: Container, name: str, help: str) -> None:
    """Declare an option without a value."""
    where.add_argument(name, action="store_true", help=help)


def number(
    *, above: float | None = None, least: float | None = None, most: float | None = None, kind: type = float
) -> Callable[[str], Any]:
    """A type of argument: a finite number within bounds."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' * (kind is int)}number") from None
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not finite")
        if above is not None and value <= above:
            raise argparse.ArgumentTypeError(f"{text} is not above {above:g}")
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"{text} is not at least {least:g}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"{text} is more than {most:g}")
        return value

    return read


def whole(least: int) -> Callable[[str], int]:
    """A type of argument: a whole number of at least this."""
    return number(least=least, kind=int)


def add_set(parser: argparse.ArgumentParser, what: str = "the spec", example: str = "attention.kv_heads=1") -> None:
    """The option `--set a.b=v`, as often as one likes."""
    words = f"change any field of {what} by its dotted name, e.g. --set {example}"
    option(parser, "--set", words, _change, action="append", default=[], metavar="NAME=VALUE", dest="changes")


def add_ignore_keys(parser: argparse.ArgumentParser) -> None:
    """The option `--ignore-keys a,b.c`, for every command that reads the folder of a model."""
    words = "take these keys of a published config.json as absent, though they would be refused; at your own risk "
    words += "(but for auto_map, which names code)"
    option(parser, "--ignore-keys", words, _names, action="extend", default=[], metavar="A,B.C")


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
        pairs = (f"{json.dumps(key, ensure_ascii=False)} = {_toml(inner)}" for key, inner in value.items())
        return f"{{ {', '.join(pairs)} }}"
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
