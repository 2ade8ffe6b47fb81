"""The tokenizer files of a converted folder: in the new format too, a prompt becomes the ids that it was in the old one.

So does a document, but for one of a run of ours whose bos is an eos: published files have one template for both, and a
prompt of such a run begins without it. `convert --text` gives the figure of the written folder too.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import processors

from anyformer.data.tokenizer import SOURCE, Tokenizer, tokenizer
from anyformer.data.tokenizer_classes import BPE_FILES, WORDPIECE_FILE
from anyformer.data.tokenizer_files import (
    ADDED,
    FILE,
    MARK,
    NAMED,
    NAMES,
    PUBLISHED,
    SETTINGS,
    SETTINGS_BYTES,
    special_tokens,
)
from anyformer.families.shards import CONFIG, CONFIG_BYTES, read_json
from anyformer.files import inside

if TYPE_CHECKING:
    from anyformer.specs.model import ModelSpec

OLDER = (NAMES, ADDED, *BPE_FILES, WORDPIECE_FILE)
COPIED = (SOURCE, "chat_template.jinja", "generation_config.json")
"""Files that go along as they are, whatever becomes of the tokenizer."""
WRITTEN = (FILE, SETTINGS, *OLDER, *COPIED)
CLASS = "PreTrainedTokenizerFast"
"""The class of transformers, old and new, that takes a tokenizer.json as it is."""
KEPT = ("chat_template", "model_max_length")
"""Settings that may stand in a run's folder and go along: those that change no ids."""


def write_words(source: Path, place: Path, spec: ModelSpec, *, format: str) -> None:
    """Write tokenizer files into a new folder; where the source has none, there are none."""
    for name in COPIED:
        _copy(source, place, name)
    if not any((source / name).is_file() for name in (FILE, BPE_FILES[0], WORDPIECE_FILE)):
        _copy(source, place, SETTINGS)
        return
    words = tokenizer(source)
    if (format == "anyformer" and not words.published) or (format == "hf" and _alike(source, place)):
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
    told = settings | named | {"tokenizer_class": CLASS} | mark
    (place / SETTINGS).write_text(json.dumps(told, indent=2), encoding="utf-8")


def _alike(source: Path, place: Path) -> bool:
    """Whether both are published folders for one type of model."""
    if not (source / CONFIG).is_file():
        return False
    first, second = (read_json(folder / CONFIG, CONFIG_BYTES).get("model_type") for folder in (source, place))
    return first == second


def _named(spec: ModelSpec, words: Tokenizer, settings: dict[str, Any]) -> dict[str, str]:
    """Special tokens of a run of ours, by what they are for: those of its spec, and of its settings that it knows."""
    first = spec.ids.eos[0] if spec.ids.eos else None
    ids = {"bos_token": spec.ids.bos, "eos_token": first, "pad_token": spec.ids.pad}
    found = {name: words.inner.id_to_token(token) for name, token in ids.items() if token is not None}
    told = {name: text for name, text in special_tokens(settings).items() if text in words.specials}
    named = told | {name: text for name, text in found.items() if text is not None}
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
        shutil.copyfile(inside(source / name, source), place / name)
