"""What commands share: devices, the folder of a trained model, and progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anyformer.cli.terminal import errors
from anyformer.errors import InputError
from anyformer.files import settle

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress

    from anyformer.data.tokenizer import Tokenizer
    from anyformer.model.model import Model

FOLDER = "a trained model: the folder of a run of anyformer's, a Hugging Face directory, org/name, or a .gguf file"
DTYPES = ("float64", "float32", "bfloat16", "float16")
STDIN = "-"
PATIENCE = 2.0
"""Seconds after which somebody wants to see that something happens."""


def device_of(given: str | None) -> str:
    """The device that was given, if it is there; by default cuda where there is one."""
    import torch

    device = given or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise InputError(f"--device: {device!r} is neither cpu nor cuda (or cuda:1 ...)")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError("--device: torch finds no CUDA device here; leave it out to measure the CPU")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device: {device!r} is not there; the last one is cuda:{torch.cuda.device_count() - 1}")
    return device


def clock(seconds: float) -> str:
    """A time for people: 12.3 ms."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if float(f"{seconds / unit:.3g}") >= 1:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def stdin_text(given: str) -> str:
    """A text, or with `-` standard input without the end of its last line, which belongs to the shell."""
    from anyformer.data.corpus import read_text

    return read_text(given).removesuffix("\n").removesuffix("\r") if given == STDIN else given


def check_folder(path: str, *, fetch: bool = True) -> Path:
    """The folder of a model, or an error that says what is there instead. Without `fetch`, a name of the hub is left to
    whoever reads it.
    """
    from anyformer.families.gguf.header import is_gguf
    from anyformer.families.io import HUB_NAME, check_weights, find_folder

    folder = settle(path)
    if is_gguf(path) and folder.is_file():
        return folder
    if not folder.is_dir():
        check_weights(path)
        # One that is missing among others is a folder; a name whose owner is no folder here is one of the hub.
        if folder.exists() or folder.parent.is_dir() or not HUB_NAME.fullmatch(path):
            what = "is a file" if folder.exists() else "there is no such folder"
            raise InputError(f"{path}: {what}; give {FOLDER}")
        if not fetch:
            return folder
        folder = find_folder(path)
    if not any((folder / name).is_file() for name in ("spec.toml", "config.json", "model.safetensors")):
        raise InputError(f"{path}: holds no model (no spec.toml and no config.json); give {FOLDER}")
    return folder


def open_model(path: str, **place: Any) -> tuple[Model, Tokenizer]:
    """The model and the tokenizer in a folder; `place` says on which device and in which dtype, as `load` takes it."""
    folder = check_folder(path)
    with working(f"reading {path}"):
        from anyformer.data.tokenizer import tokenizer
        from anyformer.families.io import load

        return load(folder, **place), tokenizer(folder)


def open_reader(path: str, model: Model, own: Tokenizer) -> Tokenizer:
    """The tokenizer of what a model reads: its own, unless the source has a vocabulary of its own."""
    if model.spec.source_vocab is None:
        return own
    from anyformer.data.tokenizer import SOURCE, source_tokenizer

    found = source_tokenizer(check_folder(path))
    if found is None:
        raise InputError(
            f"{path}: the source of this model has a vocabulary of its own, and there is no {SOURCE}; put it beside the weights"
        )
    return found


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.markup import escape

    with errors().status(escape(what)):
        yield


class Bar:
    """A progress bar on a terminal, which appears only once patience is over."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.began = time.monotonic()
        self.progress: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self.progress is None:
            if time.monotonic() - self.began < PATIENCE or not sys.stderr.isatty():
                return
            from rich.progress import Progress

            self.progress = Progress(console=errors(), transient=True)
            self.progress.start()
            self.progress.add_task(self.what, total=total)
        self.progress.update(self.progress.task_ids[0], completed=done)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()
