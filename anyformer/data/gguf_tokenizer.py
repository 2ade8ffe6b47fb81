"""The tokenizer in the metadata of a GGUF file, and the metadata of one: byte-level BPE, and SentencePiece's BPE.

llama.cpp builds the steps around a vocabulary itself, from the names that a file has for them: `tokenizer.ggml.model`
says which model it is, and `tokenizer.ggml.pre` how texts are split before merges.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from anyformer.data.tokenizer import WORDS, Tokenizer
from anyformer.data.tokenizer_classes import QWEN, UNDERLINE, sentencepiece_decoder
from anyformer.data.tokenizer_files import guarded
from anyformer.errors import DataError
from anyformer.families.gguf.header import Header, read_header
from anyformer.specs.model import ModelSpec

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""Types of tokens."""
NAMED = {
    "bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id", "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
}  # fmt: skip
"""Special tokens -> the keys of their ids; the fourth is spelled so there."""
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASED = r"[^\r\n\p{{L}}\p{{N}}]?{0}*{1}+{2}|[^\r\n\p{{L}}\p{{N}}]?{0}+{1}*{2}|"
GPT4O = CASED.format(UPPER, LOWER, ENDING) + r"\p{N}{1,3}|" + SIGNS
TEKKEN = CASED.format(UPPER, LOWER, "") + r"\p{N}|" + SIGNS


class Split(NamedTuple):
    """How a file of this `pre` is tokenized."""

    pattern: str | None
    """None: that of GPT-2."""
    whole: bool = False
    """Whether a piece that is a token is taken whole, whatever the merges say."""
    bos: bool = False
    """Whether a text begins with bos unless the file says otherwise."""


SPLITS: dict[str, Split] = {
    **dict.fromkeys(("gpt-2", "default"), Split(None)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), Split(LLAMA3, whole=True, bos=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Split(QWEN)),
    "gpt-4o": Split(GPT4O),
    "tekken": Split(TEKKEN, whole=True, bos=True),
    "anyformer": Split(WORDS),
}
"""Names that llama.cpp has, and ours."""


def gguf_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a file."""
    return tokenizer_in(read_header(file))


def tokenizer_in(header: Header) -> Tokenizer:
    """The tokenizer that a header describes."""
    given = {key.removeprefix(PREFIX): value for key, value in header.metadata.items() if key.startswith(PREFIX)}
    tokens, types = given.get("tokens"), given.get("token_type")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise DataError(f"{header.file}: has no tokenizer ({PREFIX}tokens); give the model's tokenizer.json instead")
    types = [NORMAL] * len(tokens) if types is None else types
    if not isinstance(types, list) or len(types) != len(tokens):
        raise DataError(f"{header.file}: {PREFIX}token_type: is no list of {len(tokens)} types")
    named = {
        name: tokens[i] for name, key in NAMED.items() if isinstance(i := given.get(key), int) and 0 <= i < len(tokens)
    }
    kind, architecture = given.get("model"), header.metadata.get("general.architecture")
    with guarded(f"{header.file}: its tokenizer can't be built"):
        match kind:
            case "gpt2":
                inner, bos = _byte_level(tokens, given, header.file)
            case "llama":
                inner, bos = _sentencepiece(tokens, given, named, str(architecture), header.file), True
            case _:
                raise DataError(f"{header.file}: {PREFIX}model: {kind!r:.40} can't be read (known: gpt2, llama)")
        _add(inner, tokens, types, named)
        _surround(inner, named, bos=given.get("add_bos_token", bos), eos=given.get("add_eos_token", False))
    return Tokenizer(inner, published=True, named=named)


def _byte_level(tokens: Sequence[str], given: Mapping[str, Any], file: Path) -> tuple[tokenizers.Tokenizer, bool]:
    pre = given.get("pre", "default")
    if pre not in SPLITS:
        warnings.warn(
            f"{file}: {PREFIX}pre: {pre!r:.40} is a way to split texts that is not known here (known: {', '.join(SPLITS)}); "
            "GPT-2's is taken, and ids may differ from those of llama.cpp",
            stacklevel=4,
        )
    split = SPLITS.get(pre, SPLITS["default"])
    model: Any = models.BPE(_vocab(tokens), _pairs(given, file), ignore_merges=split.whole)
    inner = tokenizers.Tokenizer(model)
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None)
    steps: Any = inner
    steps.pre_tokenizer = spell
    if split.pattern is not None:
        steps.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split.pattern), "isolated"), spell])
    steps.decoder = decoders.ByteLevel()
    return inner, split.bos


def _sentencepiece(
    tokens: list[str], given: Mapping[str, Any], named: Mapping[str, str], architecture: str, file: Path
) -> tokenizers.Tokenizer:
    gemma = architecture.startswith("gemma")
    if gemma:
        # Files have tokens of several spaces as such, and the steps look them up with the sign for a space.
        tokens = [UNDERLINE * len(token) if token and not token.strip(" ") else token for token in tokens]
    scores: Any = given.get("scores")
    if "merges" not in given and (not isinstance(scores, list) or len(scores) != len(tokens)):
        raise DataError(f"{file}: {PREFIX}scores: is no list of {len(tokens)} numbers")
    # Gemma's scores do not follow its merges; the order of its tokens does.
    ranks = [-float(i) for i in range(len(tokens))] if gemma else scores
    merges = _pairs(given, file) if "merges" in given else merges_of(tokens, ranks)
    unk = named.get("unk_token")
    model: Any = models.BPE(_vocab(tokens), merges, unk_token=unk, fuse_unk=True, byte_fallback=True)
    inner = tokenizers.Tokenizer(model)
    steps: Any = inner
    blank = bool(given.get("add_space_prefix", True))
    space: Any = normalizers.Replace(" ", UNDERLINE)
    # llama.cpp puts a space before every text, whether it begins with one or not.
    steps.normalizer = normalizers.Sequence([normalizers.Prepend(UNDERLINE), space]) if blank and not gemma else space
    steps.decoder = sentencepiece_decoder(strip=blank and not gemma)
    return inner


def merges_of(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges by which SentencePiece makes tokens of others: of two pairs, that of the token with the higher score."""
    known = _vocab(tokens)
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [pair for pair in pairs if pair[0] in known and pair[1] in known]
        pairs.sort(key=lambda pair: (known[pair[0]], known[pair[1]]))
        found += [(score, len(pair[0]), len(pair[1]), pair) for pair in pairs]
    found.sort(key=lambda each: each[:3], reverse=True)
    return [pair for *_, pair in found]


def _vocab(tokens: Sequence[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(tokens)}


def _pairs(given: Mapping[str, Any], file: Path) -> list[tuple[str, str]]:
    merges = given.get("merges")
    if not isinstance(merges, list) or not all(isinstance(each, str) and " " in each for each in merges):
        raise DataError(f"{file}: {PREFIX}merges: is no list of pairs")
    return [(first, second) for first, _, second in (each.partition(" ") for each in merges)]


def _add(inner: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], named: Mapping[str, str]) -> None:
    """Tokens that are never split: control tokens, and those that users have added."""
    special = {token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL} | {*named.values()}
    inner.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in tokens if token in special]
    )
    more = [token for token, kind in zip(tokens, types, strict=True) if kind == USER and token not in special]
    inner.add_tokens([AddedToken(token, normalized=False, special=False) for token in more])


def _surround(inner: tokenizers.Tokenizer, named: Mapping[str, str], *, bos: bool, eos: bool) -> None:
    """Put bos before a text and eos after it, if the file has them and says so."""
    first = [named["bos_token"]] if bos and "bos_token" in named else []
    last = [named["eos_token"]] if eos and "eos_token" in named else []
    if first or last:
        ids = [(token, inner.token_to_id(token)) for token in dict.fromkeys(first + last)]
        steps: Any = inner
        steps.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last], pair=[*first, "$A", *last, *(f"{t}:1" for t in first), "$B:1", *(f"{t}:1" for t in last)],
            special_tokens=ids,
        )  # fmt: skip


def gguf_metadata(words: Tokenizer, spec: ModelSpec, template: str | None = None) -> dict[str, Any]:
    """What a GGUF file says of a tokenizer; DataError if llama.cpp has no such one."""
    data = json.loads(words.to_json())
    model = data["model"]
    if model.get("type") != "BPE":
        raise DataError(f"tokenizer: a GGUF file holds BPE, and this is {model.get('type')}; write another format")
    added = {each["id"]: each for each in data["added_tokens"]}
    names = {i: token for token, i in model["vocab"].items()} | {i: each["content"] for i, each in added.items()}
    if max(names, default=0) >= spec.vocab:
        raise DataError(f"tokenizer: has id {max(names)}, and the model {spec.vocab} tokens; give the model's own")
    tokens = [names.get(i, f"[PAD{i}]") for i in range(spec.vocab)]
    pieces = model.get("byte_fallback", False)
    merges = [each.split(" ", 1) if isinstance(each, str) else each for each in model["merges"]]

    def type_of(i: int) -> int:
        if i in added:
            return CONTROL if added[i]["special"] else USER
        if i not in names:
            return UNUSED
        if pieces and names[i] == model.get("unk_token"):
            return UNKNOWN
        return BYTE if i in words.byte_tokens else NORMAL

    found: dict[str, Any] = {
        "model": "llama" if pieces else "gpt2", "tokens": tokens, "token_type": [type_of(i) for i in range(spec.vocab)],
        "merges": [" ".join(pair) for pair in merges], **_ids(words, spec),
    }  # fmt: skip
    plain, whole = words.encode("a"), words.encode("a", specials=True)
    found |= {"add_bos_token": whole[:1] != plain[:1], "add_eos_token": whole[-1:] != plain[-1:]}
    if pieces:
        rank = {"".join(pair): -float(i) for i, pair in reversed([*enumerate(merges, 1)])}
        # What no merge makes comes before all that some does.
        found["scores"] = [
            rank.get(token, 0.0 if i in added else -float(len(merges) + 1)) for i, token in enumerate(tokens)
        ]
        steps = json.dumps([data["normalizer"], data["pre_tokenizer"]])
        found["add_space_prefix"] = '"Prepend"' in steps or '"first"' in steps or '"always"' in steps
    else:
        found["pre"] = _name_of_split(data["pre_tokenizer"])
    made = {f"{PREFIX}{key}": value for key, value in found.items() if value != []}
    return made | ({TEMPLATE: template} if template else {})


def _ids(words: Tokenizer, spec: ModelSpec) -> dict[str, int]:
    """Ids of special tokens: those that the tokenizer names, and else those of the spec."""
    own = {"bos_token_id": spec.ids.bos, "padding_token_id": spec.ids.pad}
    own |= {"eos_token_id": spec.ids.eos[0]} if spec.ids.eos else {}
    named = {key: words.id_named(name) for name, key in NAMED.items() if key not in own or own[key] is None}
    return {key: i for key, i in (own | named).items() if i is not None}


def _name_of_split(given: Any) -> str:
    """The name that llama.cpp has for a pre-tokenizer."""
    steps = given.get("pretokenizers", [given]) if isinstance(given, dict) else []
    patterns = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    levels = [step for step in steps if step.get("type") == "ByteLevel"]
    known = [name for name, split in SPLITS.items() if [split.pattern] == (patterns or [None])]
    plain = len(levels) == 1 and not levels[0].get("add_prefix_space") and levels[0].get("use_regex") == (not patterns)
    if not known or not plain or len(steps) != len(levels) + len(patterns):
        raise DataError(
            "tokenizer: llama.cpp has no name for the way in which it splits texts before merges, so a GGUF file can't hold "
            "it; write the weights by themselves (af.save with format='gguf'), or another format"
        )
    if known[0] == "anyformer":
        warnings.warn(
            "tokenizer: it splits texts in a way that llama.cpp does not know (tokenizer.ggml.pre is 'anyformer'): anyformer "
            "reads the file, llama.cpp will not",
            stacklevel=4,
        )
    return known[0]
