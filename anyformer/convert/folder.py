"""Converting a model's folder: from one format to the other, with other weights if surgery is asked for.

The new folder is filled out of sight and takes its place as a whole: a kill leaves what was there before, or the new one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
import torch
from tokenizers import processors

from anyformer.convert.surgery import Surgery, operate
from anyformer.convert.unpickle import unpickled
from anyformer.data.gguf_tokenizer import gguf_metadata
from anyformer.data.tokenizer import SOURCE, Tokenizer, tokenizer
from anyformer.data.tokenizer_classes import BPE_FILES, WORDPIECE_FILE
from anyformer.data.tokenizer_files import ADDED, FILE, MARK, NAMED, PUBLISHED, SETTINGS, SETTINGS_BYTES, special_tokens
from anyformer.data.tokenizer_files import NAMES as TOKEN_NAMES
from anyformer.errors import InputError, SpecError
from anyformer.families.checkpoint import family_for, save_published, was_written_here
from anyformer.families.gguf.files import TYPES, WRITER, save_gguf, written_as
from anyformer.families.gguf.header import is_gguf, read_header
from anyformer.families.io import FORMATS, known_numbers, load, quantisation_of, stored_dtype
from anyformer.families.shards import CONFIG, CONFIG_BYTES, INDEX, SENTENCE, SINGLE, read_json
from anyformer.files import NewFolder, inside
from anyformer.generation.chat.template import read_template
from anyformer.generation.pipelines.sentence import PROMPTS, sentence_files
from anyformer.model.native_checkpoint import SPEC, save
from anyformer.model.native_checkpoint import load as load_own
from anyformer.model.quantize import quantize as quantise
from anyformer.parts.quantized import check_kind
from anyformer.specs.model import ModelSpec
from anyformer.train.perplexity import Score, read_documents, score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyformer.model.model import Model

OLDER = (TOKEN_NAMES, ADDED, *BPE_FILES, WORDPIECE_FILE)
COPIED = (SOURCE, "chat_template.jinja", "generation_config.json")
"""Files that go along as they are, whatever becomes of the tokenizer."""
CLASS = "PreTrainedTokenizerFast"
"""The class of transformers, old and new, that takes a tokenizer.json as it is."""
KEPT = ("chat_template", "model_max_length")
"""Settings that may stand in a run's folder and go along: those that change no ids."""
NAMES = (
    SPEC,
    CONFIG,
    SINGLE,
    INDEX,
    "model-?????-of-?????.safetensors",
    FILE,
    SETTINGS,
    *OLDER,
    *COPIED,
    *SENTENCE,
    PROMPTS,
    "[0-9]_*",
)
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
    type: str | None = None
    """What matrices of the format "gguf" are stored in (f32, f16, bf16, q8_0); unless given, f16."""
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
        stored = stored_dtype(source, plan.ignore_keys)
        exact = torch.promote_types(stored, torch.float32) if plan.surgery or plan.text is not None else stored
        if not plan.unsafe_pickle and quantisation_of(source) is not None:
            model = load_own(source, "cpu", exact, dequantise=plan.dequantize).eval()
        else:
            model = load(source, "cpu", exact, ignore_keys=plan.ignore_keys)
        taken = plan.quantize is not None and not plan.surgery
        known = known_numbers(source, plan.quantize or "", plan.ignore_keys) if taken else {}
    changed = operate(model, plan.surgery) if plan.surgery else model
    family = architecture = None
    if plan.format == "hf":
        try:
            found, config = family_for(changed.spec, plan.family, changed.family)
        except SpecError as error:
            ways = "no file of a published class says this; --format anyformer keeps it as it is"
            raise SpecError([*error.problems, ways], error.source) from error
        family, architecture = found.kind, config["architectures"][0]
    elif plan.format == "gguf":
        kind, _ = written_as(changed.spec, changed.family)
        family, architecture = kind.family, kind.name
    # All are read in windows that the smaller one can hold, or the figures could not be compared.
    context = min(model.spec.context, changed.spec.context)

    def scored(name: str, model: Model, words: Tokenizer, length: int | None = context) -> Score:
        with progress(name) as report:
            return score(model, words, plan.text or "", context=length, report=report)

    words = tokenizer(plan.source) if plan.text is not None else None
    before = scored("before", model, words) if words is not None else None
    after = scored("after", changed, words) if words is not None and plan.surgery else None
    written: Score | None = None
    dtype = stored if plan.dtype is None else plan.dtype
    result = changed.to(dtype)
    if plan.quantize is not None:
        result = quantise(result, plan.quantize, known)
        if words is not None:
            after = scored("after", result.to(exact), words)
            result = result.to(dtype)
    if plan.format == "gguf":
        return _to_gguf(plan, result, (family, architecture, before, after), scored if words is not None else None)
    with NewFolder(plan.place, NAMES) as folder:
        if plan.format == "hf":
            save_published(result, folder.path, family=family)
        else:
            save(result, folder.path)
        _write_tokenizer(plan.source, folder.path, result.spec, format=plan.format)
        if words is not None and plan.text is not None:
            own = tokenizer(folder.path)
            rounded = plan.quantize is None and torch.promote_types(dtype, stored) != dtype
            ids, new_ids = (read_documents(result, each, plan.text).ids for each in (words, own))
            if rounded or context != result.spec.context or ids != new_ids:
                written = scored("as written", result.to(exact), own, None)
        folder.commit()
    held = quantisation_of(plan.place) if plan.format == "anyformer" else None
    return Converted(
        place=plan.place, format=plan.format, family=family, architecture=architecture, dtype=dtype,
        params=changed.spec.count().params, quantized=None if held is None else held.kind,
        bytes=sum(file.stat().st_size for file in plan.place.glob("*.safetensors")),
        before=before, after=after, written=written,
    )  # fmt: skip


def _to_gguf(plan: Plan, model: Model, done: tuple[Any, ...], scored: Callable[..., Score] | None) -> Converted:
    """Write a GGUF file, with the tokenizer and the chat template of the source if it has them."""
    family, architecture, before, after = done
    has_words = is_gguf(plan.source) or any((plan.source / n).is_file() for n in (FILE, BPE_FILES[0], WORDPIECE_FILE))
    more: dict[str, Any] = {}
    if has_words:
        template = read_template(plan.source)
        words = tokenizer(plan.source)
        words = words if words.published else _templated(model.spec, words)
        more = gguf_metadata(words, model.spec, None if template is None else template.text)
    kind = plan.type or "f16"
    save_gguf(model, plan.place, kind, more)
    written = None
    if scored is not None:
        written = scored("as written", load(plan.place, "cpu", torch.float32), tokenizer(plan.place), None)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}.get(kind, torch.float16)
    return Converted(
        place=plan.place, format=plan.format, family=family, architecture=architecture, dtype=dtype,
        params=model.spec.count().params, quantized=kind if kind == "q8_0" else None,
        bytes=plan.place.stat().st_size, before=before, after=after, written=written,
    )  # fmt: skip


def _check_gguf(plan: Plan) -> None:
    """Refuse what a GGUF file can't be made of, or written over."""
    if plan.type is not None and plan.type not in TYPES:
        raise InputError(f"type: {plan.type!r} is unknown (known: {', '.join(TYPES)})")
    if plan.dtype is not None:
        raise InputError(f"dtype: a GGUF file has types of its own; give one of them with --type ({', '.join(TYPES)})")
    if not is_gguf(plan.place):
        raise InputError(f"{plan.place}: is no name of a GGUF file; give one that ends in .gguf")
    if plan.place.exists():
        ours = plan.place.is_file() and read_header(plan.place).metadata.get("general.quantized_by") == WRITER
        if not ours:
            raise InputError(f"{plan.place}: is there already, and anyformer did not write it; give another name")


def _check(plan: Plan) -> None:
    """Refuse what can't be done, before anything is read."""
    if plan.format not in FORMATS:
        raise InputError(f"format: {plan.format!r} is unknown (known: {', '.join(FORMATS)})")
    if plan.family is not None and plan.format != "hf":
        raise InputError(f"family: {plan.family!r} is for the format hf; our own holds every spec")
    if plan.dtype is not None and not plan.dtype.is_floating_point:
        raise InputError(f"dtype: {plan.dtype} can't hold weights; pick a floating-point one")
    if plan.type is not None and plan.format != "gguf":
        raise InputError("type: is for the format gguf; others have --dtype")
    if plan.format == "gguf":
        _check_gguf(plan)
    held = None if plan.unsafe_pickle else quantisation_of(plan.source)
    if plan.quantize is not None:
        check_kind(plan.quantize, torch.device("cpu"))
        if plan.format != "anyformer":
            raise InputError(
                f"quantize: files of published classes don't hold our whole numbers; leave out --format {plan.format}"
            )
    if plan.dequantize and held is None:
        raise InputError(f"dequantize: the weights of {plan.source} are not quantised; leave it out")
    options = {
        "--quantize": plan.quantize,
        f"--format {plan.format}": plan.format != "anyformer",
        "surgery": plan.surgery,
    }
    wrong = [name for name, value in options.items() if value]
    if held is not None and not plan.dequantize and wrong:
        raise InputError(
            f"{', '.join(wrong)}: {plan.source} holds {held.kind} weights; convert the model that it was made from, or "
            "add --dequantize, which takes the weights that its whole numbers stand for"
        )
    if plan.place.resolve() == plan.source.resolve():
        raise InputError(f"{plan.place}: is the source itself; give another folder")
    if plan.place.is_dir() and any(plan.place.iterdir()) and not was_written_here(plan.place):
        raise InputError(
            f"{plan.place}: is there already, and anyformer did not write it, so it is left alone; give another folder"
        )


@contextmanager
def readable(plan: Plan) -> Iterator[Path]:
    """The source, or, of pickled weights, a folder beside it for a while that holds them as safetensors."""
    if not plan.unsafe_pickle:
        yield plan.source
        return
    with tempfile.TemporaryDirectory(prefix="anyformer-") as made:
        folder = Path(made)
        unpickled(plan.source, folder)
        for name in (CONFIG, *SENTENCE):
            _copy(plan.source, folder, name)
        yield folder


def _write_tokenizer(source: Path, place: Path, spec: ModelSpec, *, format: str) -> None:
    """Write tokenizer files into a new folder; where the source has none, there are none.

    A prompt becomes the same ids in both. So does a document, but for one of a run of ours whose bos is an eos: published
    files have one template for both, and a prompt of such a run begins without it.
    """
    if is_gguf(source):
        _write_from_gguf(source, place, format=format)
        return
    for name in (*COPIED, *sentence_files(source)):
        _copy(source, place, name)
    if not any((source / name).is_file() for name in (FILE, BPE_FILES[0], WORDPIECE_FILE)):
        _copy(source, place, SETTINGS)
        return
    words = tokenizer(source)
    configs = (read_json(folder / CONFIG, CONFIG_BYTES) for folder in (source, place))
    alike = format == "hf" and (source / CONFIG).is_file() and len({each.get("model_type") for each in configs}) == 1
    if alike or (format == "anyformer" and not words.published):
        for name in (FILE, SETTINGS, *OLDER):
            _copy(source, place, name)
        return
    # Which class reads a folder may depend on its config, which is another one now; the steps that it took are written.
    settings = read_json(source / SETTINGS, SETTINGS_BYTES) if (source / SETTINGS).is_file() else {}
    named: dict[str, Any] = dict(words.named) if words.published else _named(spec, words, settings)
    left = ("auto_map", "added_tokens_decoder", MARK) if words.published else (*set(settings) - {*KEPT},)
    settings = {name: value for name, value in settings.items() if name not in left}
    mark = {MARK: PUBLISHED} if format == "anyformer" else {}
    whole = words if words.published else _templated(spec, words)
    (place / FILE).write_text(whole.to_json(), encoding="utf-8")
    settings |= named | {"tokenizer_class": CLASS} | mark
    (place / SETTINGS).write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _write_from_gguf(source: Path, place: Path, *, format: str) -> None:
    """Write the files of a tokenizer that a GGUF file holds, if it holds one."""
    header = read_header(source)
    if "tokenizer.ggml.tokens" not in header.metadata:
        return
    words, template = tokenizer(source), read_template(source)
    (place / FILE).write_text(words.to_json(), encoding="utf-8")
    settings: dict[str, Any] = dict(words.named) | {"tokenizer_class": CLASS}
    settings |= {} if template is None else {"chat_template": template.text}
    settings |= {MARK: PUBLISHED} if format == "anyformer" else {}
    (place / SETTINGS).write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _named(spec: ModelSpec, words: Tokenizer, settings: dict[str, Any]) -> dict[str, str]:
    """Special tokens of a run of ours, by what they are for: those of its spec, and of its settings that it knows."""
    first = spec.ids.eos[0] if spec.ids.eos else None
    ids = {"bos_token": spec.ids.bos, "eos_token": first, "pad_token": spec.ids.pad}
    found = {name: words.inner.id_to_token(token) for name, token in ids.items() if token is not None}
    known = {name: text for name, text in special_tokens(settings).items() if text in words.specials}
    named = known | {name: text for name, text in found.items() if text is not None}
    return {name: named[name] for name in NAMED if name in named}


def _templated(spec: ModelSpec, words: Tokenizer) -> Tokenizer:
    """A run's tokenizer with the bos before each text that prompts of the run get from its spec."""
    bos = spec.ids.bos
    plain = words.encode("a", specials=True) == words.encode("a")
    name = None if bos is None else words.inner.id_to_token(bos)
    if spec.topology != "decoder" or name is None or bos in spec.ids.eos or not plain:
        return words
    inner = tokenizers.Tokenizer.from_str(words.to_json())
    inner.post_processor = processors.TemplateProcessing(single=[name, "$A"], special_tokens=[(name, bos)])
    return Tokenizer(inner)


def _copy(source: Path, place: Path, name: str) -> None:
    if (source / name).is_file():
        (place / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(inside(source / name, source), place / name)


def summary(done: Converted) -> dict[str, Any]:
    """The result as JSON data."""
    figures = ("tokens", "documents", "perplexity", "bits_per_byte", "rule")
    scores = {name: getattr(done, name) for name in ("before", "after", "written")}
    return {
        "folder": str(done.place),
        "dtype": str(done.dtype).removeprefix("torch."),
        **{name: getattr(done, name) for name in ("format", "family", "architecture", "params", "quantized", "bytes")},
        **{name: found and {figure: getattr(found, figure) for figure in figures} for name, found in scores.items()},
    }
