"""What a pipeline runs on: a model, its tokenizer, and what its folder says besides."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from anyformer.data.tokenizer import Tokenizer, source_tokenizer, tokenizer
from anyformer.data.tokenizer_files import NAMED, SETTINGS, SETTINGS_BYTES, special_tokens
from anyformer.errors import InputError
from anyformer.families.gguf.header import is_gguf
from anyformer.families.hf_bridge import from_hf
from anyformer.families.io import find_folder, load
from anyformer.families.shards import CONFIG, CONFIG_BYTES, read_json
from anyformer.generation.chat.template import ChatTemplate, read_template
from anyformer.generation.pipelines.sentence import transformer_folder
from anyformer.model.model import Model

GENERATION = "generation_config.json"
FAIRSEQ = ("vocab-src.json", "vocab-tgt.json", "merges.txt")
"""Files of FSMT's tokenizer."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that can be given texts."""

    model: Model
    tokenizer: Tokenizer
    """Of what the model says; and of what it reads, unless the source has a vocabulary of its own."""
    source_tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()
    """Names of the classes; of all that the head has, or none."""
    template: ChatTemplate | None = None
    tokens: Mapping[str, str]
    """Special tokens by name: mask_token, ..."""
    stop: tuple[int, ...] = ()
    """Ids that end an answer."""
    config: Mapping[str, Any]
    """The config.json of a published model."""
    generation: Mapping[str, Any]
    """What its generation_config.json says about how to answer; without one, its config.json."""
    folder: Path | None = None
    """Where it was read from."""

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer of the texts that the model reads."""
        return self.source_tokenizer or self.tokenizer

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def label(self, index: int) -> str:
        """The name of a class."""
        return self.labels[index] if self.labels else f"LABEL_{index}"

    def token(self, name: str, *usual: str) -> int | None:
        """The id of a special token, by its name in the tokenizer's settings, or by a usual spelling."""
        for spelled in (self.tokens.get(name), *usual):
            if spelled is not None and (found := self.tokenizer.id_of(spelled)) is not None:
                return found
        return None

    def to_device(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Whole numbers, where the model is."""
        return torch.tensor(rows, dtype=torch.long, device=self.device)


def open_source(
    model: Any,
    given: Any,
    *,
    device: Any,
    dtype: torch.dtype | None,
    labels: Sequence[str] | None,
    quantize: str | None = None,
    ignore_keys: Sequence[str] = (),
) -> Source:
    """What `pipeline` was given, checked. `quantize` is for a model that is read here."""
    place, public = _device(device), sys.modules.get("transformers")
    folder: Path | None = None
    if isinstance(model, str | Path):
        folder = transformer_folder(find_folder(model))
        made = load(folder, place, dtype, quantize, ignore_keys=ignore_keys)
    elif isinstance(model, Model):
        made = model
    elif public is not None and isinstance(model, public.PreTrainedModel):
        made = from_hf(model)
    else:
        what = "nothing" if model is None else type(model).__name__
        raise InputError(f"model: expected a folder, a name on the hub or a model, got {what}")
    if folder is None and (place is not None or dtype is not None):
        made = made.to(device=place, dtype=dtype)
    own, given = _own(made, given, folder)
    read, tokens, template = _tokenizer(given, folder)
    for one, limit, which in ((read, made.spec.vocab, ""), (own, made.spec.input_vocab, "that of the source ")):
        if one is not None and min(one.vocab, one.texts) > limit:
            raise InputError(
                f"tokenizer: {which}has {one.vocab} tokens, and the model {limit}; give the one that it was trained with"
            )
    config = _table(folder, CONFIG, CONFIG_BYTES)
    generation = _generation(folder, config)
    if folder is not None:
        _set_start(made, generation)
    return Source(
        model=made, tokenizer=read, source_tokenizer=own, labels=_labels(labels, config, made), template=template, tokens=tokens,
        stop=stop_ids(made, folder), config=config, generation=generation, folder=folder,
    )  # fmt: skip


def _device(given: Any) -> torch.device | None:
    if given is None or isinstance(given, torch.device):
        return given
    try:
        return torch.device("cpu" if given == -1 else given)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: {given!r} is none; give 'cpu', 'cuda' or 'cuda:1'") from error


def _own(model: Model, given: Any, folder: Path | None) -> tuple[Tokenizer | None, Any]:
    """The tokenizer of the source, if it has a vocabulary of its own, and what was given for the target."""
    two = isinstance(given, tuple | list)
    if model.spec.source_vocab is None:
        if two:
            raise InputError(
                "tokenizer: two are for a model whose source has a vocabulary of its own (source_vocab); give one"
            )
        return None, given
    if two and len(given) == 2:
        return _tokenizer(given[0], None)[0], given[1]
    if folder is not None and given is None:
        found = source_tokenizer(folder)
        if found is not None:
            return found, None
        if (folder / FAIRSEQ[0]).is_file():
            raise InputError(
                f"tokenizer: {folder} holds {', '.join(FAIRSEQ)}: BPE after the Moses tokenizer, which is not served here. "
                "Encode texts with transformers' FSMTTokenizer (it needs sacremoses) and give the ids to generate, or give "
                "two tokenizers, tokenizer=(source, target)"
            )
    raise InputError(
        "tokenizer: the source of this model has a vocabulary of its own; give two tokenizers, tokenizer=(source, target)"
    )


def _tokenizer(given: Any, folder: Path | None) -> tuple[Tokenizer, dict[str, str], ChatTemplate | None]:
    """The tokenizer, its special tokens by name, and the chat template that comes with it."""
    if given is None and folder is None:
        raise InputError("tokenizer: a model has none of its own; give the path of a tokenizer.json, or a tokenizer")
    place = folder if given is None else given
    if isinstance(place, str | Path) and is_gguf(place):
        words = tokenizer(place)
        return words, words.named, read_template(folder or Path(place))
    if isinstance(place, str | Path):
        # A tokenizer that is given beside a folder speaks for itself, but the chat template is the model's.
        home = Path(place) if Path(place).is_dir() else Path(place).parent
        tokens = special_tokens(_table(home, SETTINGS, SETTINGS_BYTES))
        return tokenizer(place), tokens, read_template(folder or home)
    template = read_template(folder) if folder is not None else None
    if isinstance(place, Tokenizer):
        return place, special_tokens(_table(folder, SETTINGS, SETTINGS_BYTES)), template
    inner = getattr(place, "backend_tokenizer", place)
    if not isinstance(inner, tokenizers.Tokenizer):
        raise InputError(
            f"tokenizer: expected a path, a tokenizer of anyformer or of the tokenizers library, got {type(place).__name__}"
        )
    named = {name: str(text) for name in NAMED if (text := getattr(place, name, None)) is not None}
    text = getattr(place, "chat_template", None)
    if template is None and isinstance(text, str):
        template = ChatTemplate(text=text, tokens=named)
    # A copy: ours has other settings, and the given one stays as it is.
    copy = tokenizers.Tokenizer.from_str(inner.to_str())
    return Tokenizer(copy, published=True, named=named), named, template


def _table(folder: Path | None, name: str, most: int) -> dict[str, Any]:
    return {} if folder is None or not (folder / name).is_file() else read_json(folder / name, most)


def _labels(given: Sequence[str] | None, config: Mapping[str, Any], model: Model) -> tuple[str, ...]:
    count = getattr(model.spec.head, "labels", None)
    if given is not None:
        names = tuple(given)
        if isinstance(given, str) or not all(isinstance(name, str) for name in names) or len(names) != count:
            raise InputError(f"labels: expected {count or 'no'} names, one for each class of the head, got {given!r}")
        return names
    if names := getattr(model.spec.head, "names", ()):
        return names
    named = config.get("id2label")
    if not isinstance(named, dict) or count is None or sorted(named) != sorted(map(str, range(count))):
        return ()
    return tuple(str(named[str(i)]) for i in range(count))


def _generation(folder: Path | None, config: Mapping[str, Any]) -> dict[str, Any]:
    found = _table(folder, GENERATION, CONFIG_BYTES)
    if found:
        return found
    # Older files have such keys among the others, and an older way to say with what an answer begins.
    forced = config.get("force_bos_token_to_be_generated") and config.get("forced_bos_token_id") is None
    return dict(config) | ({"forced_bos_token_id": config.get("bos_token_id")} if forced else {})


def _set_start(model: Model, generation: Mapping[str, Any]) -> None:
    """Begin answers as the folder says: with a token of its own, or else with the spec's, or with bos."""
    spec = model.spec
    ids = (generation.get("decoder_start_token_id"), spec.ids.start, generation.get("bos_token_id"), spec.ids.bos)
    start = next((i for i in ids if type(i) is int and 0 <= i < spec.vocab), None)
    if spec.topology == "encoder-decoder" and start != spec.ids.start:
        model.spec = spec.vary({"ids.start": start})


def stop_ids(model: Model, folder: Path | None) -> tuple[int, ...]:
    """The spec's eos ids, and those with which a chat model ends its turn."""
    more = _table(folder, GENERATION, CONFIG_BYTES).get("eos_token_id")
    named = more if isinstance(more, list) else [more]
    known = [i for i in named if type(i) is int and 0 <= i < model.spec.vocab]
    return tuple(dict.fromkeys((*model.spec.ids.eos, *known)))
