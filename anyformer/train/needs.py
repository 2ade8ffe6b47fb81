"""What a config needs outside of itself: data, weights, and an architecture that fits them; every problem, none raised alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anyformer.data.shards import INDEX, Index, open_index
from anyformer.errors import AnyformerError, DataError, InputError, SpecError
from anyformer.specs.model import ModelSpec
from anyformer.train.config import Config, in_familiar_words
from anyformer.train.resolve import resolved, specs_of


@dataclass
class Needs:
    """What was found so far, and what is wrong."""

    index: Index | None = None
    spec: ModelSpec | None = None
    specs: list[ModelSpec] = field(default_factory=list)
    errors: list[AnyformerError] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """What the errors say, each with the name in the config."""

    @contextmanager
    def noting(self, path: str, spec: str = "") -> Iterator[None]:
        """Note what goes wrong inside: as a problem of `path` in the config, or of a spec that stands at `spec`."""
        try:
            yield
        except SpecError as error:
            self.add(error, [in_familiar_words(f"{spec}.{line}" if spec else line) for line in error.problems])
        except (InputError, DataError) as error:
            self.add(error, [str(error) if str(error).startswith(f"{path}:") else f"{path}: {error}"])

    def add(self, error: AnyformerError, lines: Sequence[str]) -> None:
        """Note an error, and what it says line by line."""
        self.errors.append(error)
        self.lines += lines

    def ready(self) -> tuple[Index, ModelSpec, list[ModelSpec]]:
        """The data, the architecture and that of each stage, if nothing is wrong."""
        self.settle()
        if self.index is None or self.spec is None:
            raise DataError("data.folder: is not made yet; make it with anyformer tokenize, as data.make says")
        return self.index, self.spec, self.specs

    def settle(self) -> None:
        """Raise what was found: the error itself if there is one, else all of them in one message."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise InputError("\n  ".join(["the config can't be used:", *self.lines]))


def needs(config: Config, wrong: Callable[[str], bool] = lambda path: False) -> Needs:
    """Look for all that a config names. `wrong` says of a dotted name that it is known to be wrong, and not looked at."""
    found = Needs()
    made_later = bool(config.data.make) and not (Path(config.data.folder) / INDEX).is_file()
    if not wrong("data.folder") and not made_later:
        with found.noting("data.folder"):
            found.index = open_index(config.data.folder)
    if found.index is not None:
        for name, part in (("train", config.data.train), ("valid", config.data.valid)):
            if part and not wrong(f"data.{name}") and part not in found.index.parts:
                _missing(found, found.index, name, part)
    if wrong("model"):
        return found
    if config.model.weights and not Path(config.model.weights).is_dir():
        line = f"model.weights: {config.model.weights}: there is no such folder; give one with a model"
        found.add(InputError(line), [line])
        return found
    with found.noting("model.base", "model.spec"):
        index = found.index
        if index is None:
            found.spec = resolved(config.model, vocab=None, ids={})
        else:
            found.spec = resolved(
                config.model, vocab=index.vocab, ids=index.ids, source_vocab=index.source_vocab,
                source_ids=index.source_ids,
            )  # fmt: skip
    if found.spec is not None and not wrong("stages"):
        with found.noting("stages"):
            found.specs = specs_of(found.spec, config.stages)
    return found


def _missing(found: Needs, index: Index, name: str, part: str) -> None:
    """A part that the data doesn't have."""
    with found.noting(f"data.{name}"):
        if name == "valid":
            raise DataError(
                f"{index.folder}: has no part {part!r} to measure on, only {', '.join(index.parts)}; tokenize with --valid "
                'or --hold-out, or set data.valid to ""'
            )
        raise DataError(f"{index.folder}: has no part {part!r} to learn from, only {', '.join(index.parts)}")
