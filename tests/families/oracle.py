"""The published classes as oracles: built offline from a small config, every tensor random, everything in fp64."""

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode

from anyformer.families.family import Family
from anyformer.families.statemap import StateMap


class Lift(TorchFunctionMode):
    """The public classes keep norms, angles and softmax in fp32 even in a double model; here their fp32 is fp64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
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


def oracle(family: type[Family], config: dict[str, Any], seed: int = 0) -> Any:
    """A model of the family's public class. Only what is computed rather than learned keeps its values."""
    cls = getattr(transformers, family.architectures[0])
    eager = family.architectures[0] == "Gemma2ForCausalLM"  # its scores are capped in this implementation only
    with lifted():
        made = cls.config_class(**config, **({"attn_implementation": "eager"} if eager else {}))
        model = cls(made).double().eval()
    if not config.get("tie_word_embeddings", True) and isinstance(model, transformers.T5ForConditionalGeneration):
        # This release ties the head of every T5 when it makes one.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        for module in model.modules():
            if type(module).__name__ == "MarianSinusoidalPositionalEmbedding":
                module.weight.copy_(sines(*module.weight.shape))
    randomise(model, family.weights(family.spec_from(config)), seed)
    return model


def sines(rows: int, width: int) -> torch.Tensor:
    """Marian's table of positions, which its class rounds to fp32."""
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * rate
    return torch.cat((angle.sin(), angle.cos()), -1)


@torch.no_grad()
def randomise(model: Any, table: StateMap, seed: int) -> None:
    """Random numbers for everything learned: gains of 1 and biases of 0 would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        if any(re.fullmatch(pattern, name) for pattern in table.ignored):
            continue
        spread = 0.5 if tensor.dim() == 1 else 0.25
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * spread)


def answer(model: Any, **given: Any) -> torch.Tensor:
    """Logits of the public class."""
    known = inspect.signature(model.forward).parameters
    with lifted(), torch.no_grad():
        return model(**{name: value for name, value in given.items() if name in known}).logits
