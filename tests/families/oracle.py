"""The published classes as oracles: built offline from a small config, every tensor random, everything in fp64."""

import contextlib
import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers.core_model_loading import revert_weight_conversion

from anyformer.families.family import Family
from anyformer.families.statemap import StateMap
from anyformer.specs.embed_head import PatchEmbed
from anyformer.specs.model import ModelSpec
from tests.families.references import REFERENCES

with warnings.catch_warnings():
    # This module compiles functions in a way that torch has come to warn about, once, when it is first looked at.
    warnings.simplefilter("ignore", DeprecationWarning)
    _ = transformers.GPTBigCodeForCausalLM

ROUNDED = tuple(f"{name}SinusoidalPositionalEmbedding" for name in ("Marian", "Pegasus", "RoFormer"))
"""Tables of sines that a class rounds to fp32."""


class Lift(TorchFunctionMode):
    """The public classes keep norms, angles and softmax in fp32 even in a double model; here their fp32 is fp64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.float, torch.Tensor.bfloat16):
            return args[0].double()
        wide = [torch.float64 if a is torch.float32 else a for a in args]
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*wide, **named)


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """Everything in fp64, numbers that a class makes from whole ones too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Lift():
            yield
    finally:
        torch.set_default_dtype(before)


def public_class(family: type[Family], named: str = "") -> Any:
    """The class that a family is held against: its first, unless another one is named."""
    name = named or family.architectures[0]
    return REFERENCES[name] if name in REFERENCES else getattr(transformers, name)


def oracle(family: type[Family], config: dict[str, Any], seed: int = 0, named: str = "") -> Any:
    """A model of the family's public class. Only what is computed rather than learned keeps its values."""
    cls = public_class(family, named)
    # Scores are capped in this implementation only.
    eager = any(layer.attention.softcap for layer in family.spec_from(config).stacks[-1].layers)
    with lifted():
        made = cls.config_class(**config, **({"attn_implementation": "eager"} if eager else {}))
        # The grouped product of experts, their default, has no fp64.
        made._experts_implementation = "eager"
        model = cls(made).double().eval()
    if not named and not config.get("tie_word_embeddings", True) and made.tie_word_embeddings:
        # This release ties the head of every T5, mT5 and UMT5 when it makes one; one that it loads stays as its file is.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        for module in model.modules():
            if type(module).__name__ in ROUNDED:
                module.weight.copy_(sines(*module.weight.shape))
    spec = family.spec_from(config | ({"architectures": [named]} if named else {}))
    randomise(model, family.table(spec), seed)
    return model


def sines(rows: int, width: int) -> torch.Tensor:
    """What stands in them."""
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * rate
    return torch.cat((angle.sin(), angle.cos()), -1)


def is_ignored(name: str, table: StateMap) -> bool:
    """Whether a tensor holds nothing learned, or nothing that is used."""
    return any(re.fullmatch(pattern, name) for pattern in table.ignored)


@torch.no_grad()
def randomise(model: Any, table: StateMap, seed: int) -> None:
    """Random numbers for everything learned: gains of 1 and biases of 0 would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        if is_ignored(name, table):
            continue
        spread = 0.5 if tensor.dim() == 1 else 0.25
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * spread)


def in_files(model: Any) -> dict[str, torch.Tensor]:
    """The tensors of a public model under their names in files; in memory, all experts of a layer are one tensor."""
    return revert_weight_conversion(model, model.state_dict())


def inputs(spec: ModelSpec, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a model reads, by the name that the public class and ours share: these ids, or as many random images."""
    if not isinstance(spec.embed, PatchEmbed):
        return {"input_ids": ids}
    generator = torch.Generator().manual_seed(9)
    side = spec.embed.image
    size = (ids.shape[0], spec.embed.channels, side, side)
    return {"pixel_values": torch.randn(size, generator=generator, dtype=torch.float64)}


def answer(model: Any, **given: Any) -> torch.Tensor:
    """Logits of the public class. With a cache, FSMT's decoder would look ahead."""
    known = inspect.signature(model.forward).parameters
    given = {"use_cache": False} | given
    with lifted(), torch.no_grad():
        out = model(**{name: value for name, value in given.items() if name in known})
    return torch.stack((out.start_logits, out.end_logits), -1) if "start_logits" in out else out.logits
