"""Folders of sentence-transformers: one vector for each text, by the modules that follow the model.

modules.json lists them: the model itself (Transformer), how the states of its tokens become one vector (Pooling), and
what is done to that (Dense, LayerNorm, Normalize). Other modules compute something else, and are refused by name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.data.tokenizer_files import SETTINGS
from anyformer.errors import CheckpointError, InputError, nearest
from anyformer.families.shards import CONFIG, CONFIG_BYTES, SENTENCE, SINGLE, opened, read_any_json, read_json

MODULES, READING = SENTENCE
PROMPTS = "config_sentence_transformers.json"
MODES: dict[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The flag of each mode in older files -> its name, in the order in which several are put together."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "activation.Tanh": torch.tanh,
    "linear.Identity": lambda x: x,
    "activation.GELU": F.gelu,
    "activation.ReLU": F.relu,
    "activation.SiLU": F.silu,
    "activation.Sigmoid": torch.sigmoid,
}
"""Classes of torch.nn.modules -> what they compute."""


@dataclass(frozen=True)
class Pooling:
    """The states of a text's tokens as one vector, or as several of them side by side."""

    modes: tuple[str, ...]
    include_prompt: bool

    def __call__(self, states_TD: Tensor, prompt: int) -> Tensor:
        """Of one text without padding. `prompt`: tokens at its front that are those of a prompt."""
        skip = 0 if self.include_prompt or prompt >= states_TD.shape[0] else prompt
        places_T = torch.arange(1 + skip, 1 + states_TD.shape[0], dtype=states_TD.dtype, device=states_TD.device)
        states_TD = states_TD[skip:]
        return torch.cat([_pooled(states_TD, mode, places_T) for mode in self.modes])


def _pooled(states_TD: Tensor, mode: str, places_T: Tensor) -> Tensor:
    match mode:
        case "cls":
            return states_TD[0]
        case "lasttoken":
            return states_TD[-1]
        case "max":
            return states_TD.amax(0)
        case "weightedmean":
            return places_T @ states_TD / places_T.sum()
        case "mean_sqrt_len_tokens":
            return states_TD.sum(0) / len(states_TD) ** 0.5
        case _:
            return states_TD.mean(0)


@dataclass(frozen=True)
class Dense:
    """A linear layer and its activation."""

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.activation(F.linear(x, self.weight, self.bias))


@dataclass(frozen=True)
class LayerNorm:
    """A norm of the vector."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


def _normalize(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """What such a folder says beside its model."""

    pooling: Pooling
    after: tuple[Callable[[Tensor], Tensor], ...]
    """What is done to the pooled vector, in order."""
    most: int | None
    """Tokens that are read of a text; None: as many as the model reads."""
    lower: bool
    """Texts are read in small letters."""
    prompts: Mapping[str, str]
    default_prompt: str | None
    """The name of the prompt that stands before each text unless another one is asked for."""
    width: int | None
    """Numbers that are kept of each vector; None: all."""

    def prompt(self, given: str | None, name: str | None) -> str:
        """What stands before each text."""
        if given is not None and name is not None:
            raise InputError("prompt, prompt_name: give one of them, the text itself or its name")
        if given is not None:
            return given
        if name is None:
            return self.prompts.get(self.default_prompt or "", "")
        if name not in self.prompts:
            known = nearest(name, self.prompts) if self.prompts else "; this model has no prompts"
            raise InputError(f"prompt_name: {name!r} is unknown{known}")
        return self.prompts[name]

    def vector(self, states_TD: Tensor, prompt: int) -> Tensor:
        """The vector of a text from the states of its tokens, the first of which may be those of a prompt."""
        found = self.pooling(states_TD, prompt)
        for module in self.after:
            found = module(found)
        return found[: self.width]


def transformer_folder(folder: Path) -> Path:
    """Where the model itself is: the folder, or one in it in the older layout of sentence-transformers."""
    if not (folder / MODULES).is_file() or (folder / CONFIG).is_file():
        return folder
    return _listed(folder)[0][1]


def sentence_files(folder: Path) -> list[str]:
    """Files of such a folder beside those of the model itself, by their paths in it."""
    if not (folder / MODULES).is_file():
        return []
    inner = [place.relative_to(folder).as_posix() for _, place in _listed(folder)[1:]]
    return [MODULES, READING, PROMPTS, *(f"{place}/{name}" for place in inner for name in (CONFIG, SINGLE))]


def read_sentence(folder: Path | None, like: Tensor) -> SentenceModules | None:
    """The modules beside a model; None: there are none. Weights are made like the given tensor."""
    if folder is None:
        return None
    # In the older layout the model is one folder further in.
    home = next((place for place in (folder, folder.parent) if (place / MODULES).is_file()), None)
    if home is None or _listed(home)[0][1] != folder:
        return None
    pooling: Pooling | None = None
    after: list[Callable[[Tensor], Tensor]] = []
    for kind, place in _listed(home)[1:]:
        if kind == "Pooling" and pooling is None:
            pooling = _pooling(place / CONFIG)
        elif kind in READERS and pooling is not None:
            after.append(READERS[kind](place, like))
        elif kind != "Dropout":
            known = ", ".join(("Transformer", "Pooling", *READERS, "Dropout"))
            raise CheckpointError(
                f"{home / MODULES}: the module {kind} at this place is not one that is read here (known, in this order: "
                f"{known})"
            )
    if pooling is None:
        raise CheckpointError(f"{home / MODULES}: lists no Pooling, which makes one vector of the tokens of a text")
    reading, own, words = (_optional(file) for file in (folder / READING, home / PROMPTS, folder / SETTINGS))
    most = _whole(folder / READING, reading, "max_seq_length")
    return SentenceModules(
        pooling=pooling, after=tuple(after),
        most=_whole(folder / SETTINGS, words, "model_max_length") if most is None else most,
        lower=bool(reading.get("do_lower_case")), prompts=_prompts(home / PROMPTS, own),
        default_prompt=_default(home / PROMPTS, own), width=_whole(home / PROMPTS, own, "truncate_dim"),
    )  # fmt: skip


def _listed(home: Path) -> list[tuple[str, Path]]:
    """The class of each module and its folder; the first is the model."""
    file = home / MODULES
    given = read_any_json(file, CONFIG_BYTES)
    found: list[tuple[str, Path]] = []
    for row in given if isinstance(given, list) else []:
        kind, path = (row.get("type"), row.get("path", "")) if isinstance(row, dict) else (None, "")
        if not isinstance(kind, str) or not isinstance(path, str) or not re.fullmatch(r"[\w-]*/?", path):
            raise CheckpointError(f"{file}: {row!r} is no module with its type and its folder here")
        if not kind.startswith("sentence_transformers."):
            raise CheckpointError(f"{file}: the module {kind} is code beside the weights, which is never run")
        found.append((kind.rpartition(".")[2], home / path.rstrip("/")))
    if not found or found[0][0] != "Transformer":
        first = found[0][0] if found else "nothing"
        raise CheckpointError(f"{file}: begins with {first}; only a Transformer is read here")
    return found


def _pooling(file: Path) -> Pooling:
    config = read_json(file, CONFIG_BYTES)
    given = config.get("pooling_mode", [mode for flag, mode in MODES.items() if config.get(flag)] or "mean")
    modes: Sequence[Any] = [given] if isinstance(given, str) else given
    if not isinstance(modes, list) or not modes:
        raise CheckpointError(f"{file}: pooling_mode: {given!r} is no name of a pooling and no list of them")
    for mode in modes:
        if mode not in MODES.values():
            raise CheckpointError(f"{file}: pooling_mode: {mode!r} is unknown{nearest(str(mode), MODES.values())}")
    known = {"embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt", *MODES}
    others = [name for name in config if name not in known and config[name] not in (None, False)]
    if others:
        raise CheckpointError(f"{file}: {others[0]}: is not a key that we know here{nearest(others[0], known)}")
    return Pooling(tuple(modes), config.get("include_prompt", True) is not False)


def _weights(place: Path, like: Tensor, *names: str) -> list[Tensor | None]:
    """Tensors of a module by name; None: it has no such tensor. One that is not expected is named."""
    with opened(place) as stored:
        left = sorted(set(stored) - set(names))
        if left:
            raise CheckpointError(f"{place}: {left[0]}: is not a tensor of this module ({', '.join(names)})")
        return [stored[name].clone().to(like) if name in stored else None for name in names]


def _needed(place: Path, tensor: Tensor | None, name: str, *shape: int) -> Tensor:
    if tensor is None or tensor.shape != shape:
        given = "is missing" if tensor is None else f"has the shape {tuple(tensor.shape)}, not {shape}"
        raise CheckpointError(f"{place}: {name}: {given}")
    return tensor


def _dense(place: Path, like: Tensor) -> Dense:
    config = read_json(place / CONFIG, CONFIG_BYTES)
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    short = ".".join(str(name).split(".")[-2:])
    if short not in ACTIVATIONS or not str(name).startswith("torch.nn."):
        raise CheckpointError(f"{place}: activation_function: {name!r} is unknown (known: {', '.join(ACTIVATIONS)})")
    for key, usual in (("module_input_name", "sentence_embedding"), ("module_output_name", "sentence_embedding"), ("use_residual", False)):  # fmt: skip
        if config.get(key, usual) not in (None, usual):
            raise CheckpointError(f"{place}: {key}: {config[key]!r} can't be read; it must be {usual!r}")
    out, into = (_whole(place / CONFIG, config, key) or 0 for key in ("out_features", "in_features"))
    weight, bias = _weights(place, like, "linear.weight", "linear.bias")
    if bias is not None or config.get("bias", True) is not False:
        bias = _needed(place, bias, "linear.bias", out)
    return Dense(_needed(place, weight, "linear.weight", out, into), bias, ACTIVATIONS[short])


def _layer_norm(place: Path, like: Tensor) -> LayerNorm:
    size = _whole(place / CONFIG, read_json(place / CONFIG, CONFIG_BYTES), "dimension") or 0
    weight, bias = _weights(place, like, "norm.weight", "norm.bias")
    return LayerNorm(_needed(place, weight, "norm.weight", size), _needed(place, bias, "norm.bias", size))


READERS: dict[str, Callable[[Path, Tensor], Callable[[Tensor], Tensor]]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": lambda place, like: _normalize,
}
"""Modules that may follow the pooling -> how each is read."""


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file, CONFIG_BYTES) if file.is_file() else {}


def _whole(file: Path, config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise CheckpointError(f"{file}: {key}: {value!r} is not a whole number of at least 1")
    return value


def _prompts(file: Path, config: Mapping[str, Any]) -> dict[str, str]:
    given = config.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise CheckpointError(f"{file}: prompts: {given!r} is no table of texts")
    return {name: text or "" for name, text in given.items()}


def _default(file: Path, config: Mapping[str, Any]) -> str | None:
    name = config.get("default_prompt_name")
    if name is not None and name not in _prompts(file, config):
        raise CheckpointError(f"{file}: default_prompt_name: {name!r} is not the name of a prompt there")
    return name
