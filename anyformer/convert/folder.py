"""Converting a model's folder: from one format to the other, with other weights if surgery is asked for.

The new folder is filled out of sight and takes its place as a whole: a kill leaves what was there before, or the new one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from anyformer.convert.surgery import Surgery, operate
from anyformer.convert.unpickle import unpickled
from anyformer.convert.words import WRITTEN, write_words
from anyformer.data.tokenizer import Tokenizer, tokenizer
from anyformer.errors import InputError, SpecError
from anyformer.families.checkpoint import family_for, save_published, was_written_here
from anyformer.families.io import FORMATS, load, quantisation_of, stored_dtype
from anyformer.families.shards import CONFIG, INDEX, SINGLE
from anyformer.files import NewFolder, inside
from anyformer.model.native_checkpoint import SPEC, save
from anyformer.model.native_checkpoint import load as load_own
from anyformer.model.quantize import quantize as quantise
from anyformer.parts.quantized import check_kind
from anyformer.train.perplexity import Score, read_documents, score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyformer.model.model import Model

NAMES = (SPEC, CONFIG, SINGLE, INDEX, "model-?????-of-?????.safetensors", *WRITTEN)
"""What the folder of a model may hold and still be replaced."""
Report = Callable[[int, int], None]
Progress = Callable[[str], AbstractContextManager[Report | None]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is converted, into what."""

    source: Path
    place: Path
    format: str = "anyformer"
    family: str | None = None
    """The published class that files of the format "hf" are for; unless given, the one that the model was read from, or
    else the first that can hold the spec."""
    dtype: torch.dtype | None = None
    """Unless given, the widest that the source has."""
    quantize: str | None = None
    """int8 or int4: weights of large products in whole numbers, in our own format."""
    dequantize: bool = False
    """The weights of a quantised source as the floating-point numbers that they stand for."""
    surgery: Surgery = field(default_factory=Surgery)
    text: str | None = None
    """Scored before and after."""
    unsafe_pickle: bool = False
    ignore_keys: tuple[str, ...] = ()
    """Keys of the source's config.json that are taken as absent (see `load`)."""


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What came of it."""

    place: Path
    format: str
    family: str | None
    architecture: str | None
    dtype: torch.dtype
    params: int
    quantized: str | None
    bytes: int
    """Of the new weights on disk."""
    before: Score | None
    """Of the source."""
    after: Score | None
    """Of what surgery or quantisation made of it, with the source's ids: it may be held against `before`."""
    written: Score | None
    """Of the new folder as it reads the text itself, where its ids or its weights are others than those of the figure
    before this one."""


def convert(plan: Plan, progress: Progress = lambda _: nullcontext()) -> Converted:
    """Read, change, write. Whatever can be known to fail does so before anything is written.

    `progress` gives what is told how much of a text is scored, for as long as it is.
    """
    _check(plan)
    with readable(plan) as source:
        stored = stored_dtype(source)
        exact = torch.promote_types(stored, torch.float32) if plan.surgery or plan.text is not None else stored
        if not plan.unsafe_pickle and quantisation_of(source) is not None:
            model = load_own(source, "cpu", exact, dequantise=plan.dequantize).eval()
        else:
            model = load(source, "cpu", exact, ignore_keys=plan.ignore_keys)
    changed = operate(model, plan.surgery) if plan.surgery else model
    family, architecture = _family(plan, changed)
    words = tokenizer(plan.source) if plan.text is not None else None
    scores: list[Score | None] = [None, None]
    # Both are read in windows that the smaller one can hold, or the figures could not be compared.
    context = min(model.spec.context, changed.spec.context)
    if words is not None and plan.text is not None:
        pairs = [("before", model)] + ([("after", changed)] if plan.surgery else [])
        for i, (name, each) in enumerate(pairs):
            with progress(name) as report:
                scores[i] = score(each, words, plan.text, context=context, report=report)
    dtype = stored if plan.dtype is None else plan.dtype
    result = changed.to(dtype)
    if plan.quantize is not None:
        result = quantise(result, plan.quantize)
        if words is not None and plan.text is not None:
            with progress("after") as report:
                scores[1] = score(result.to(exact), words, plan.text, context=context, report=report)
            result = result.to(dtype)
    with NewFolder(plan.place, NAMES) as folder:
        if plan.format == "hf":
            save_published(result, folder.path, family=family)
        else:
            save(result, folder.path)
        write_words(plan.source, folder.path, result.spec, format=plan.format)
        written = None
        if words is not None and plan.text is not None:
            own = tokenizer(folder.path)
            rounded = plan.quantize is None and torch.promote_types(dtype, stored) != dtype
            if (
                rounded
                or context != result.spec.context
                or _ids(own, result, plan.text) != _ids(words, result, plan.text)
            ):
                with progress("as written") as report:
                    written = score(result.to(exact), own, plan.text, report=report)
        folder.commit()
    held = quantisation_of(plan.place) if plan.format == "anyformer" else None
    return Converted(
        place=plan.place, format=plan.format, family=family, architecture=architecture, dtype=dtype,
        params=changed.spec.count().params, quantized=None if held is None else held.kind,
        bytes=sum(file.stat().st_size for file in plan.place.glob("*.safetensors")), before=scores[0], after=scores[1], written=written,
    )  # fmt: skip


def _ids(words: Tokenizer, model: Model, text: str) -> list[list[int]]:
    """What the documents of a text become."""
    return read_documents(model, words, text).ids


def _check(plan: Plan) -> None:
    if plan.format not in FORMATS:
        raise InputError(f"format: {plan.format!r} is unknown (known: {', '.join(FORMATS)})")
    if plan.family is not None and plan.format != "hf":
        raise InputError(f"family: {plan.family!r} is for the format hf; our own holds every spec")
    if plan.dtype is not None and not plan.dtype.is_floating_point:
        raise InputError(f"dtype: {plan.dtype} can't hold weights; pick a floating-point one")
    _check_quantised(plan)
    if plan.place.resolve() == plan.source.resolve():
        raise InputError(f"{plan.place}: is the source itself; give another folder")
    if plan.place.is_dir() and any(plan.place.iterdir()) and not was_written_here(plan.place):
        raise InputError(
            f"{plan.place}: is there already, and anyformer did not write it, so it is left alone; give another folder"
        )


def _check_quantised(plan: Plan) -> None:
    """Refuse what can't be done with whole numbers, before anything is read."""
    held = None if plan.unsafe_pickle else quantisation_of(plan.source)
    if plan.quantize is not None:
        check_kind(plan.quantize, torch.device("cpu"))
        if plan.format != "anyformer":
            raise InputError("quantize: files of published classes don't hold our whole numbers; leave out --format hf")
    if plan.dequantize and held is None:
        raise InputError(f"dequantize: the weights of {plan.source} are not quantised; leave it out")
    if held is None or plan.dequantize:
        return
    asked = {
        "--quantize": plan.quantize is not None, "--format hf": plan.format == "hf", "surgery": bool(plan.surgery),
    }  # fmt: skip
    wrong = [name for name, is_asked in asked.items() if is_asked]
    if wrong:
        raise InputError(
            f"{', '.join(wrong)}: {plan.source} holds {held.kind} weights; convert the model that it was made from, or "
            "add --dequantize, which takes the weights that its whole numbers stand for"
        )


def _family(plan: Plan, model: Model) -> tuple[str | None, str | None]:
    """Kind and class that the files are for, or the axis that stands in the way."""
    if plan.format != "hf":
        return None, None
    try:
        family, _ = family_for(model.spec, plan.family, model.family)
    except SpecError as error:
        ways = "no file of a published class says this; --format anyformer keeps it as it is"
        raise SpecError([*error.problems, ways], error.source) from error
    return family.kind, family.architectures[0]


@contextmanager
def readable(plan: Plan) -> Iterator[Path]:
    """The source, or, of pickled weights, a folder beside it for a while that holds them as safetensors."""
    if not plan.unsafe_pickle:
        yield plan.source
        return
    with tempfile.TemporaryDirectory(prefix="anyformer-") as made:
        folder = Path(made)
        unpickled(plan.source, folder)
        shutil.copyfile(inside(plan.source / CONFIG, plan.source), folder / CONFIG)
        yield folder


def summary(done: Converted) -> dict[str, Any]:
    """What a program may want to know of it."""

    def figures(found: Score | None) -> Any:
        if found is None:
            return None
        return {
            "tokens": found.tokens, "documents": found.documents, "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte, "rule": found.rule,
        }  # fmt: skip

    return {
        "folder": str(done.place), "format": done.format, "family": done.family, "architecture": done.architecture,
        "dtype": str(done.dtype).removeprefix("torch."), "params": done.params, "quantized": done.quantized,
        "bytes": done.bytes, "before": figures(done.before),
        "after": figures(done.after), "written": figures(done.written),
    }  # fmt: skip
