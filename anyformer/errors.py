"""The exceptions that anyformer raises on purpose.

A message says where (a dotted path), what was given, what is allowed, and what to do.
"""

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path


class AnyformerError(Exception):
    """Everything that anyformer raises on purpose."""


class SpecError(AnyformerError, ValueError):
    """A spec that can't be: every problem found, not only the first."""

    def __init__(self, problems: Sequence[str], source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        title = f"invalid spec ({source}):" if source else "invalid spec:"
        super().__init__("\n  ".join([title, *self.problems]))

    def __reduce__(self) -> "tuple[type[SpecError], tuple[tuple[str, ...], str]]":
        # An exception is pickled by its message, from which the problems could not be told apart.
        return type(self), (self.problems, self.source)


class InputError(AnyformerError, ValueError):
    """A call whose arguments don't fit each other or the model."""


class NothingLeftError(InputError):
    """A request whose own options leave no token that may come next."""


class CapabilityError(AnyformerError, RuntimeError):
    """A request that this build, device or dtype can't serve."""


class CheckpointError(AnyformerError, RuntimeError):
    """A checkpoint that is missing, damaged or of another model."""


class TrainingError(AnyformerError, RuntimeError):
    """A run that can't go on."""


class DataError(AnyformerError, ValueError):
    """A corpus or a tokenizer that can't be used."""


ADVICE: dict[int, str] = {
    errno.ENOSPC: "make room on that disk, or choose another place",
    errno.EDQUOT: "your quota there is used up: make room, or choose another place",
    errno.EACCES: "this user has no permission there: change it (chmod, chown), or choose another place",
    errno.EPERM: "this user has no permission there: change it (chmod, chown), or choose another place",
    errno.EROFS: "nothing can be written there: choose another place, or mount it for writing",
    errno.EIO: "the disk reports a fault: check it, or choose another place",
    errno.EFBIG: "its file system, or a limit of this process (ulimit -f), allows no file of that size",
    errno.EMFILE: "this process has too many files open: raise the limit (ulimit -n)",
    errno.ENAMETOOLONG: "choose a shorter name",
}
"""What to do about an error of the file system, by its number; of others there is nothing to be said."""


def file_fault(error: OSError, place: str | Path | None = None) -> str:
    """An error of the file system as text: which file, what happened, and advice that fits."""
    named = error.filename if error.filename is not None else place
    what = error.strerror or str(error)
    where = "" if named is None or str(named) in what else f"{os.fsdecode(named)}: "
    advice = ADVICE.get(error.errno or 0, "")
    return f"{where}{what}{f'; {advice}' if advice else ''}"


def fault_of(text: str, place: str | Path) -> OSError | None:
    """The error of the file system that another library tells in words, such as "... (os error 28)"; None: it is none."""
    match = re.search(r"os error (\d+)", text)
    number = int(match[1]) if match else next((each for each in ADVICE if os.strerror(each) in text), None)
    return None if number is None else OSError(number, os.strerror(number), str(place))


@contextlib.contextmanager
def naming(place: str | Path, *, instead: str | Path | None = None) -> Generator[None, None, None]:
    """Let errors of the file system that name no file, as those of a write do, or only `instead`, name this one."""
    try:
        yield
    except OSError as error:
        # One without a number has its words only, which a name would take the place of.
        if error.errno is not None and error.filename in (None, None if instead is None else str(instead)):
            error.filename = str(place)
        raise


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that names the nearest right spelling, in any case, and lists what is known."""
    options = sorted(known)
    by_lower = {option.lower(): option for option in options}
    match = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    hint = f"; did you mean {by_lower[match[0]]!r}?" if match else ""
    return f"{hint} (known: {', '.join(options) or 'nothing'})"
