"""Metrics of a run: metrics.jsonl, one JSON object on a line, and loggers that are told the same."""

import contextlib
import json
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from anyformer.errors import AnyformerError, CapabilityError, InputError, naming, nearest
from anyformer.files import finite, replace_file
from anyformer.registry import OpenAxis

GROUPS = {"step": "train", "look": "valid", "final": "final", "save": "save"}
"""Where the numbers of an event stand in a list of curves."""
SPENT = ("step", "stage", "labels", "rows", "all_rows", "final")
"""Numbers of an event that are no curve."""


class Logger(Protocol):
    """Three methods: begin, log, end. A logger that fails must not end a run: it is warned of and left out."""

    def begin(self, name: str, config: Mapping[str, Any], step: int) -> None:
        """A run of this name begins, or goes on after a step."""
        ...

    def log(self, event: str, values: Mapping[str, Any]) -> None:
        """An event at `values["step"]`: `step`, `look` (a held-out sample), `final` (all of it), `sample` or `save`."""
        ...

    def end(self) -> None:
        """The run is over, or stops here to go on later."""
        ...


class Service(OpenAxis, axis="logger", leaves="anyformer.train.loggers"):
    """A logger that `run.log` can name: it passes on to a package that the user has. Its leaf says which."""

    package: ClassVar[str] = ""
    """What pip calls it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, name: str, config: Mapping[str, Any], step: int) -> None:
        """Load the package and begin; ImportError if it is not there."""
        raise TypeError(f"logger {self.kind!r} defines no begin()")

    def log(self, event: str, values: Mapping[str, Any]) -> None:
        """Pass on what can be a curve, and what the model said."""
        step = int(values["step"])
        if event == "sample":
            self.text(str(values["text"]), step)
        elif found := dict(scalars(values, GROUPS.get(event, event))):
            self.numbers(found, step)

    def numbers(self, found: Mapping[str, float], step: int) -> None:
        raise TypeError(f"logger {self.kind!r} defines no numbers()")

    def text(self, text: str, step: int) -> None:
        raise TypeError(f"logger {self.kind!r} defines no text()")

    def end(self) -> None:
        raise TypeError(f"logger {self.kind!r} defines no end()")


def scalars(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Every number in an event by its path: train/loss, valid/figures/accuracy."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}/{name}")
        elif isinstance(value, bool | int | float) and name not in SPENT:
            yield f"{prefix}/{name}", float(value)


def unknown_services(names: Sequence[str]) -> Iterator[str]:
    """What is wrong with names of loggers."""
    for name in names:
        if Service.named(name) is None:
            yield f"{name!r} is no logger{nearest(name, Service.kinds())}"


def services(names: Sequence[str], folder: Path) -> list[Logger]:
    """The loggers that `run.log` names."""
    if wrong := list(unknown_services(names)):
        raise InputError(f"run.log: {'; '.join(wrong)}")
    return [leaf(folder) for name in dict.fromkeys(names) if (leaf := Service.named(name)) is not None]


class LoggerGroup:
    """Tells all loggers. One that can't begin is an error before anything is learned; one that fails later is left out."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)

    def begin(self, name: str, config: Mapping[str, Any], step: int) -> None:
        wrong, begun = list[str](), list[Logger]()
        for logger in self._loggers:
            try:
                logger.begin(name, config, step)
                begun.append(logger)
            except AnyformerError:
                raise
            except ImportError as error:
                package = getattr(logger, "package", "") or error.name or "its package"
                wrong.append(f"{_called(logger)} needs a package that is not here ({error}): pip install {package}")
            except Exception as error:
                wrong.append(f"{_called(logger)} can't begin: {type(error).__name__}: {error}")
        if wrong:
            self._loggers = begun
            self.end()
            title = "loggers that can't be used; mend them, or leave them out of run.log:"
            raise CapabilityError("\n  ".join([title, *wrong]))

    def log(self, event: str, values: Mapping[str, Any]) -> None:
        self._each(lambda logger: logger.log(event, values))

    def end(self) -> None:
        self._each(lambda logger: logger.end())
        self._loggers = []

    def _each(self, call: Callable[[Logger], None]) -> None:
        for logger in list(self._loggers):
            try:
                call(logger)
            except Exception as error:
                self._loggers.remove(logger)
                warnings.warn(
                    f"the logger {_called(logger)} failed and is left out from here on ({type(error).__name__}: {error}); "
                    "metrics.jsonl has everything",
                    stacklevel=4,
                )


def _called(logger: Logger) -> str:
    return getattr(logger, "kind", "") or type(logger).__name__


LOGGED_AS = ".logged-as"


def name_there(folder: Path, *, fresh: bool) -> str:
    """The name of this run elsewhere; a run that begins from its first step has a new one."""
    place = folder / LOGGED_AS
    if not fresh and place.is_file():
        return place.read_text(encoding="ascii").strip()
    name = uuid.uuid4().hex[:12]
    replace_file(place, lambda beside: beside.write_text(f"{name}\n", encoding="ascii"))
    return name


FILE = "metrics.jsonl"


class Metrics:
    """Appends records to metrics.jsonl, flushed one by one, and tells loggers; quiet on all ranks but the first."""

    def __init__(self, folder: Path, loggers: LoggerGroup | None = None, *, quiet: bool = False) -> None:
        self._file = None if quiet else (folder / FILE).open("a", encoding="utf-8")
        self._loggers = LoggerGroup([]) if loggers is None or quiet else loggers

    def write(self, event: str, **values: Any) -> None:
        """Add one record. JSON has no NaN: a number that is not finite is written as null."""
        if self._file is None:
            return
        with naming(self._file.name):
            self._file.write(json.dumps({"event": event, **finite(values)}, allow_nan=False) + "\n")
            self._file.flush()
        self._loggers.log(event, values)

    def tell(self, event: str, **values: Any) -> None:
        """Tell loggers of something that is no measurement."""
        self._loggers.log(event, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._loggers.end()


def read_metrics(folder: Path, event: str) -> list[dict[str, Any]]:
    """All records of one event. Lines that are no records, such as a last one cut short, are passed over."""
    return [record for record in records(folder) if record.get("event") == event]


def is_final(record: Mapping[str, Any]) -> bool:
    """Whether a record is of the whole held-out part: the event `final`, or in older runs a marked `look`."""
    return record.get("event") == "final" or (record.get("event") == "look" and bool(record.get("final")))


def points(folder: Path) -> list[dict[str, Any]]:
    """The held-out curve: measurements on a sample of the rows."""
    return [record for record in read_metrics(folder, "look") if not is_final(record)]


def finals(folder: Path) -> list[dict[str, Any]]:
    """Measurements on the whole held-out part: one, and one more for each time that a finished run was given steps."""
    return [record for record in records(folder) if is_final(record)]


def trim(folder: Path, step: int) -> None:
    """Forget what was measured after a step: a run that goes on from there will measure it again."""
    kept = [record for record in records(folder) if not (isinstance(at := record.get("step"), int) and at > step)]
    lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept)
    replace_file(folder / FILE, lambda beside: beside.write_text(lines, encoding="utf-8"))


def records(folder: Path) -> list[dict[str, Any]]:
    """All records, in the order in which they were written."""
    found: list[Any] = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in (folder / FILE).read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict)]
