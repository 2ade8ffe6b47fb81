"""A published folder's tokenizer files, read as transformers' AutoTokenizer (5.22) reads them: which ids a text becomes.

A tokenizer.json says it all, unless the folder names a class (`tokenizer_class`), or its type of model has one, that
builds its steps anew from the vocabulary: such a class takes them from tokenizer_config.json (`add_prefix_space`,
`legacy`, `do_lower_case`, ...), and some put their own template around a text. Those in `tokenizer_classes.py` are built
here in the same way; for the others that transformers has (`public_tokenizers.json`) a warning says that the file was
taken as it is. `add_bos_token` and `add_eos_token` count where there is no tokenizer.json.
"""

import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, processors

from anyformer.data.tokenizer_classes import BPE_FILES, CLASSES, WORDPIECE_FILE, Class, Settings
from anyformer.errors import AnyformerError, DataError
from anyformer.families.shards import CONFIG, CONFIG_BYTES, read_json
from anyformer.files import inside

FILE, SETTINGS, NAMES, ADDED = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
RUN = "spec.toml"
MARK, PUBLISHED = "anyformer", {"published": True}
"""What `convert` writes into the settings of a folder in our own format that it made from a published one."""
LARGEST = 256 * 2**20
"""Bytes of the largest tokenizer.json or vocabulary that is read."""
SETTINGS_BYTES = 8 * 2**20
MOST_SENTINELS = 10_000
SENTENCEPIECE = re.compile(r".*\.(model|spm)|tekken\.json|tiktoken.*")
PLAIN = "TokenizersBackend"
"""The class that takes a tokenizer.json as it is."""
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names by which settings and templates speak of special tokens, in the order in which they are added."""
LISTED, EXTRA, ADDITIONAL = "added_tokens_decoder", "extra_special_tokens", "additional_special_tokens"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def content(value: Any) -> str | None:
    """The text of a token, which may be a table with flags."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def special_tokens(settings: Settings) -> dict[str, str]:
    """Special tokens by name, from a tokenizer_config.json."""
    return {name: found for name in NAMED if (found := content(settings.get(name))) is not None}


def _is_token(value: Any) -> bool:
    return content(value) is not None


def flagged(token: Any, **more: bool) -> AddedToken:
    """A token with its flags; one that is only a text is special."""
    if not isinstance(token, dict):
        return AddedToken(token, **({"special": True} | more))
    kept = {flag: bool(token[flag]) for flag in FLAGS if flag in token}
    return AddedToken(content(token) or "", **(kept | more))


def _specials(settings: Settings, older: Settings, built: Class) -> tuple[dict[str, AddedToken], list[AddedToken]]:
    """Special tokens by name and those without one, of both files, else a class's own."""
    held = dict(settings)
    if ADDITIONAL in held and not held.get(EXTRA):
        held[EXTRA] = held.pop(ADDITIONAL)
    own = {key: held.pop(key) for key, value in settings.items() if _is_own(key) and isinstance(value, str)}
    if isinstance(held.get(EXTRA), dict):
        own |= held.pop(EXTRA)
    if LISTED not in settings:
        before = held.get(EXTRA) or []
        held |= older
        if isinstance(older.get(EXTRA), list):
            held[EXTRA] = [*before, *(token for token in older[EXTRA] if token not in before)]
        elif isinstance(held.get(EXTRA), dict):
            own |= held.pop(EXTRA)
    if built.sentinels:
        count = settings.get("extra_ids", 100)
        if not isinstance(count, int) or not 0 <= count <= MOST_SENTINELS:
            raise DataError(f"extra_ids: {count!r} is no number of tokens, which is 0 to {MOST_SENTINELS}")
        if EXTRA not in held:
            given = list(held.get(ADDITIONAL) or [])
            numbered = sum("<extra_id_" in (content(token) or "") for token in given)
            if numbered and count and numbered != count:
                lists = f"{ADDITIONAL} lists {numbered} <extra_id_...>"
                raise DataError(f"extra_ids: is {count}, but {lists}; make them agree")
            held[ADDITIONAL] = given if numbered else [*given, *(f"<extra_id_{i}>" for i in range(count))]
    if built.extras and EXTRA not in held and (built.joins or held.get(ADDITIONAL) is None):
        given = held.get(ADDITIONAL) or []
        held[ADDITIONAL] = [*given, *(token for token in built.extras if token not in map(content, given))]
    more = held.get(EXTRA, held.get(ADDITIONAL))
    if more is not None and not isinstance(more, list):
        raise DataError(f"{EXTRA}: is {type(more).__name__}; it must be a list of tokens, or a table of named ones")
    known = {**built.named, **held}
    named = {key: known.get(key) for key in NAMED} | {key: known[key] for key in known if _is_own(key)} | own
    # One with a name is special, whatever its flags say.
    flags = {
        key: {"special": True, **(built.flags.get(key, {}) if isinstance(named[key], str) else {})} for key in named
    }
    found = {key: flagged(token, **flags[key]) for key, token in named.items() if _is_token(token)}
    return found, [flagged(token) for token in more or [] if _is_token(token)]


def _is_own(key: str) -> bool:
    """Whether a key names a special token that not every class has."""
    return key.endswith("_token") and key not in NAMED


def _listed(folder: Path, settings: Settings, special: Collection[str]) -> list[AddedToken]:
    """Tokens that the settings list by id, or an older added_tokens.json does."""
    listed = settings.get(LISTED)
    if isinstance(listed, dict):
        tokens = [listed[key] for key in sorted(listed, key=int) if _is_token(listed[key])]
        return [flagged(token) if isinstance(token, dict) else AddedToken(token) for token in tokens]
    older = {} if LISTED in settings else _table(folder, ADDED, SETTINGS_BYTES)
    names = sorted(older, key=older.__getitem__)
    return [AddedToken(name, normalized=name not in special, special=name in special) for name in names]


@cache
def public_tokenizers() -> dict[str, Any]:
    """What the pinned release of transformers has: the class for a type of model, and classes with steps of their own."""
    return json.loads(Path(__file__).with_name("public_tokenizers.json").read_text(encoding="utf-8"))


def is_published(folder: Path) -> bool:
    """Whether a folder's files say what a text becomes; otherwise it is a run of ours, and its spec does.

    A folder with a spec is a run, unless `anyformer convert` made it from a published one and marked its settings: a
    tokenizer_config.json that somebody put there for its chat template does not change what a text becomes.
    """
    if not (folder / RUN).is_file():
        return any((folder / name).is_file() for name in (CONFIG, SETTINGS))
    settings = _table(folder, SETTINGS, SETTINGS_BYTES)
    if settings.get(MARK) == PUBLISHED:
        return True
    if "tokenizer_class" in settings:
        warnings.warn(
            f"{folder}: {SETTINGS} names a tokenizer_class, but a folder with a {RUN} reads {FILE} as its training did. "
            "If it was converted from a published folder by an earlier version, convert that again; otherwise take "
            "tokenizer_class out",
            stacklevel=3,
        )
    return False


def read_published(folder: Path) -> dict[str, Any]:
    """The tokenizer of a published folder as arguments of `Tokenizer`: the library's own, names and `splits`."""
    settings, config = _table(folder, SETTINGS, SETTINGS_BYTES), _table(folder, CONFIG, CONFIG_BYTES)
    whole = (folder / FILE).is_file()
    text = read_file(folder / FILE) if whole else ""
    classes = (table.get("tokenizer_class") for table in (settings, config))
    declared = next((name for name in classes if isinstance(name, str)), "")
    name = class_name(declared, config.get("model_type"), byte_level='"ByteLevel"' in text)
    known = CLASSES.get(name)
    inner = parsed(text, folder / FILE) if whole else _from_older(folder, name, known)
    # A class that expects another model can't be built from this vocabulary; the file stands as it is.
    built = known if known is not None and type(inner.model).__name__ == known.model else Class()
    if built is not known and name in {*CLASSES, *public_tokenizers()["own steps"]}:
        why = f"{name} of transformers builds steps of its own, which are not known here"
        if known is not None:
            why = f"{name} of transformers builds a {known.model} model, and {FILE} holds {type(inner.model).__name__}"
        warnings.warn(
            f"{folder}: {why}: {FILE} is taken as it is, and ids may differ from those of AutoTokenizer. Where the file is "
            f'right, say so: "tokenizer_class": "PreTrainedTokenizerFast" in {SETTINGS}',
            stacklevel=3,
        )
    with guarded(f"{folder}: the steps of {name} can't be set"):
        special, more = _specials(settings, _table(folder, NAMES, SETTINGS_BYTES), built)
        named = {key: special[key].content for key in NAMED if key in special}
        known_by = {**built.named, **named}
        spoken = settings.get("src_lang")
        known_by |= {"src_lang": spoken} if isinstance(spoken, str) else {}
        around = built.older if settings.get("legacy_behaviour") and built.older[0] else built.around
        if built.keeps and inner.post_processor is not None:
            around = ("", "")
        if built.steps is not None:
            steps: Any = inner
            steps.normalizer, steps.pre_tokenizer, steps.decoder = built.steps(inner, settings, known_by)
        specials = [*special.values(), *more]
        texts = dict.fromkeys(token.content for token in specials)
        listed = _listed(folder, settings, texts)
        there = {token.content for token in (*inner.get_added_tokens_decoder().values(), *listed)}
        single, pair = (template.format(**known_by) for template in around)
        # AutoTokenizer would give tokens of a template that the model can't know ids beyond the vocabulary.
        lost = [each for each in _names_in(single) if inner.token_to_id(each) is None and each not in there]
        if lost:
            raise DataError(f"the vocabulary has no {', '.join(map(repr, lost))}, which stands around each text")
        # Tokens that are never split; one without an id gets the next.
        inner.add_tokens([*listed, *(token for token in specials if token.content not in there)])
        if built.plain:
            inner.add_tokens([AddedToken(text, special=True) for text in texts])
        if not single and (not whole or built.forgets):
            single, pair = _flagged({} if whole else settings, named)
        if single:
            ids = [(each, inner.token_to_id(each)) for each in _names_in(single)]
            inner.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    templates = [each.replace("{eos_token}", known_by.get("eos_token", "")) for each in around]
    return {
        "inner": inner, "named": named, "splits": bool(settings.get("split_special_tokens") or False),
        "spoken": templates[0] if "{src_lang}" in around[0] else "",
    }  # fmt: skip


def _flagged(settings: Settings, named: Mapping[str, str]) -> tuple[str, str]:
    """The templates that `add_bos_token` and `add_eos_token` ask for."""
    bos = f"{named['bos_token']}:0 " if settings.get("add_bos_token") and "bos_token" in named else ""
    eos = f" {named['eos_token']}:0" if settings.get("add_eos_token") and "eos_token" in named else ""
    return f"{bos}$A:0{eos}", f"{bos}$A:0{eos} {bos.replace(':0 ', ':1 ')}$B:1{eos.replace(':0', ':1')}"


def _names_in(single: str) -> list[str]:
    """The tokens of a template."""
    return list(dict.fromkeys(re.sub(r":[01]$", "", each) for each in single.split() if not each.startswith("$")))


def class_name(declared: str, model_type: Any, *, byte_level: bool) -> str:
    """The class that reads a folder, of the one that it names and the one that is registered for its type of model."""
    own = declared.removesuffix("Fast")
    public = public_tokenizers()
    registered = public["registered"].get(model_type, "") if isinstance(model_type, str) else ""
    if own == "LlamaTokenizer" and byte_level:
        return PLAIN
    if own and registered and own != registered:
        chosen = registered if model_type in public["misnamed"] else own
        return chosen if registered != PLAIN and chosen in {*CLASSES, *public["own steps"]} else PLAIN
    return own or registered or PLAIN


def parsed(text: str, file: Path) -> tokenizers.Tokenizer:
    """What a tokenizer.json holds."""
    with guarded(f"{file}: is damaged, or of a kind that the tokenizers library does not know"):
        return tokenizers.Tokenizer.from_str(text)


def read_file(file: Path) -> str:
    """The text of a file of a tokenizer."""
    try:
        size = file.stat().st_size
        if size > LARGEST:
            raise DataError(f"{file}: has {size:,} bytes; a tokenizer of more than {LARGEST:,} is not read")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{file}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is damaged: byte {error.start} is not UTF-8") from error


def _from_older(folder: Path, name: str, known: Class | None) -> tokenizers.Tokenizer:
    """A tokenizer from the files that came before tokenizer.json, where its class can be built from them."""
    if known is None or not known.files or not all((folder / each).is_file() for each in known.files):
        raise DataError(missing(folder, name))
    for each in known.files:
        inside(folder / each, folder)
        read_file(folder / each)
    paths = [str(folder / each) for each in known.files]
    with guarded(f"{folder}: {' and '.join(known.files)} can't be read"):
        if known.model == "WordPiece":
            return tokenizers.Tokenizer(models.WordPiece(models.WordPiece.read_file(paths[0])))
        vocab, merges = models.BPE.read_file(*paths)
        return tokenizers.Tokenizer(models.BPE(vocab, merges))


def missing(folder: Path, name: str = "") -> str:
    """What to do about a folder without a tokenizer.json."""
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    older = [n for n in there if n in (*BPE_FILES, WORDPIECE_FILE) or SENTENCEPIECE.fullmatch(n)]
    if not older:
        return f"{folder}: there is no {FILE} in it; give a {FILE} or a directory that holds one"
    built = " or ".join(sorted(each for each, c in CLASSES.items() if c.files and set(c.files) <= set(there)))
    why = f"its class is {name or 'not named'}" + (f", and these files are read for {built}" if built else "")
    return (
        f"{folder}: there is no {FILE} in it, only {', '.join(older)}; {why}. Write one with transformers: "
        f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    )


def _table(folder: Path, name: str, most: int) -> dict[str, Any]:
    return read_json(folder / name, most) if (folder / name).is_file() else {}


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Errors of the library as ours. Its panics are no `Exception`, and Ctrl-C must still get through."""
    try:
        yield
    except (AnyformerError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        first: Any = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"tokenizer: {what}: {first[0]}") from error
