"""From a config and its data to the architecture that is trained: a base, its changes, and the data's vocabulary."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyformer.data.shards import INDEX, Index, open_index
from anyformer.errors import AnyformerError, DataError, InputError, SpecError
from anyformer.families.io import spec_of
from anyformer.families.zoo import named
from anyformer.specs.codec import Table, as_table, nest
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights
from anyformer.train.config import Config, ModelPart, Stage, in_familiar_words

NO_VALID = '; tokenize with --valid or --hold-out, or set data.valid to ""'
UNKNOWN = 2**20
"""A vocabulary that no special token is beyond."""
Ids = Mapping[str, int]
NO_IDS: Table = {f"ids.{name}": None for name in ("pad", "bos", "start", "source_pad", "source_eos")} | {"ids.eos": []}


def resolved(
    part: ModelPart, *, vocab: int | None, ids: Ids, source_vocab: int = 0, source_ids: Ids | None = None
) -> ModelSpec:
    """The spec of a run. `vocab` and `ids` are the tokenizer's; what the config says itself goes first.

    Where there are no data yet (None), the vocabulary that the config leaves to them is taken for a large one.
    `source_vocab` and `source_ids` are those of a tokenizer that the source has of its own; 0: it has none.
    """
    known, vocab = vocab is not None, UNKNOWN if vocab is None else vocab
    base, changes = part.base or part.weights, part.spec.written()
    fresh = not part.weights and not Path(base).is_dir()
    if base:
        found = _base(base)
        # Fresh weights know no tokens yet, so a published model's vocabulary and ids need not be kept.
        own = {"vocab": vocab} | NO_IDS if fresh and found.vocab and vocab and "vocab" not in changes else {}
        if own and "source_vocab" not in changes:
            two = source_vocab and found.topology == "encoder-decoder"
            # Two vocabularies need two tables.
            own |= {"source_vocab": source_vocab, "embed.shared": False} if two else {"source_vocab": None}
        spec = found.vary(own | changes) if own or changes else found
    else:
        table = nest(changes)
        if vocab and as_table(table.get("embed", "tokens")).get("kind", "tokens") == "tokens":
            table.setdefault("vocab", vocab)
            if source_vocab and table.get("topology") == "encoder-decoder" and "source_vocab" not in table:
                table["source_vocab"] = source_vocab
                table["embed"] = {"shared": False} | as_table(table.get("embed", "tokens"))
        spec = ModelSpec.from_data(table, "[model.spec]")
    if spec.ids == type(spec.ids)() and ids:
        spec = spec.vary({"ids": _ids(spec, ids, source_ids or {})})
    wrong = list(_misfits(spec, vocab if known else 0, source_vocab, source_ids or {}))
    if wrong:
        raise SpecError(wrong, "[model]")
    return spec


def _misfits(spec: ModelSpec, vocab: int, source_vocab: int, source_ids: Ids) -> Iterator[str]:
    """What of the data's tokenizers a spec can't read."""
    advice = "leave it out of [model.spec], or tokenize with the model's own tokenizer"
    if vocab and spec.vocab < vocab:
        yield f"vocab: {spec.vocab} is less than the {vocab} tokens of the data's tokenizer; {advice}"
    if source_vocab and spec.source_vocab is None:
        if spec.topology == "encoder-decoder":
            yield (
                f"source_vocab: is missing, and the sources of the data have a tokenizer of their own ({source_vocab} "
                "tokens); set it, with embed.shared = false, or tokenize without --source-vocab"
            )
        return
    read = source_vocab or vocab
    if spec.source_vocab is not None and spec.source_vocab < read:
        yield f"source_vocab: {spec.source_vocab} is less than the {read} tokens of the source's tokenizer; {advice}"
    if source_vocab and spec.ids.source_eos is None and "eos" not in source_ids:
        yield (
            "ids.source_eos: is missing, and the source's tokenizer has no token such as </s>; give its id, or train the "
            "tokenizer with --special '</s>'"
        )


def specs_of(spec: ModelSpec, stages: Sequence[Stage]) -> list[ModelSpec]:
    """The architecture of each stage, or all that is wrong with them in one SpecError."""
    wrong, found = list[str](), list[ModelSpec]()
    shapes = {name: weight.shape for name, weight in weights(spec).items()}
    for i, stage in enumerate(stages):
        try:
            changed = spec.vary(stage.spec.written()) if stage.spec.items else spec
        except SpecError as error:
            wrong += [f"stages[{i}].spec.{problem}" for problem in error.problems]
            continue
        have = {name: weight.shape for name, weight in weights(changed).items()}
        differ = sorted(name for name in shapes.keys() | have.keys() if shapes.get(name) != have.get(name))
        if differ:
            wrong.append(f"stages[{i}].spec: changes the shape of {', '.join(differ[:3])}; a stage keeps all weights")
        if stage.length > changed.context:
            wrong.append(f"stages[{i}].length: {stage.length} is more than the context, {changed.context}")
        found.append(changed)
    if wrong:
        raise SpecError(wrong, "the stages of a run")
    return found


def _base(name: str) -> ModelSpec:
    place = Path(name)
    if place.suffix == ".toml":
        return ModelSpec.from_file(place)
    if place.is_dir():
        return spec_of(place)
    if place.exists():
        raise InputError(f"model.base: {name} is a file; give a preset's name, a .toml, or a folder with a model")
    return named(name)


def _ids(spec: ModelSpec, ids: Ids, source_ids: Ids) -> Table:
    """The tokenizer's special tokens as a spec says them; a decoder that reads an encoder is started with pad or bos."""
    found: dict[str, Any] = {name: ids[name] for name in ("pad", "bos") if name in ids}
    found |= {"eos": [ids["eos"]]} if "eos" in ids else {}
    start = next((ids[name] for name in ("start", "bos", "pad", "eos") if name in ids), None)
    if spec.topology == "encoder-decoder" and start is not None:
        found["start"] = start
    if spec.source_vocab is not None:
        # Those that have the target's number need not be said.
        found |= {f"source_{n}": i for n, i in source_ids.items() if n in ("pad", "eos") and i != ids.get(n)}
        if "pad" in ids and "pad" not in source_ids and ids["pad"] >= spec.source_vocab:
            # The source's tokenizer has no padding; what fills its rows is masked, and must be some token.
            found["source_pad"] = 0
    return found


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
                what, advice = ("learn from", "") if name == "train" else ("measure on", NO_VALID)
                with found.noting(f"data.{name}"):
                    there = f"has no part {part!r} to {what}, only {', '.join(found.index.parts)}"
                    raise DataError(f"{found.index.folder}: {there}{advice}")
    if wrong("model"):
        return found
    if config.model.weights and not Path(config.model.weights).is_dir():
        with found.noting("model.weights"):
            raise InputError(f"model.weights: {config.model.weights}: there is no such folder; give one with a model")
        return found
    with found.noting("model.base", "model.spec"):
        known: dict[str, Any] = {"vocab": None, "ids": {}}
        if found.index is not None:
            known = {name: getattr(found.index, name) for name in ("vocab", "ids", "source_vocab", "source_ids")}
        found.spec = resolved(config.model, **known)
    if found.spec is not None and not wrong("stages"):
        with found.noting("stages"):
            found.specs = specs_of(found.spec, config.stages)
    return found
