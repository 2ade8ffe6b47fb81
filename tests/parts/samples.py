"""Small sizes, random numbers and small models for the tests of the parts."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import anyformer as af
from anyformer.model.model import Model
from anyformer.parts.leaf_module import LeafModule
from anyformer.specs import ModelSpec
from anyformer.specs.axes import Dims, Position


def random(*shape: int, seed: int = 0) -> Tensor:
    """N(0, 1) in fp64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dims(**sizes: Any) -> Dims:
    """The sizes of a small layer."""
    usual = {
        "width": 12, "heads": 4, "kv_heads": 4, "head_dim": 8, "ffn_width": 16, "depth": 2, "context": 64,
        "causal": True, "embed_width": 12,
    }  # fmt: skip
    return Dims(**(usual | sizes))


@torch.no_grad()
def randomised(module: Any, seed: int = 0) -> Any:
    """The module in fp64 with every parameter random: gains of 1 and biases of 0 hide mistakes."""
    module.double()
    for i, parameter in enumerate(module.parameters()):
        spread = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0
        parameter.copy_(spread * random(*parameter.shape, seed=seed + i))
    return module


def held(position: Position, sizes: Dims, seed: int = 0) -> dict[str, Tensor]:
    """A scheme's parameters, randomised, and its constants: what its hooks call `own`."""
    module = randomised(LeafModule(position, position.weights(sizes), position.constants(sizes)), seed)
    return module.tensors()


def small_spec(changes: dict[str, Any] | None = None) -> ModelSpec:
    """A decoder of two layers with grouped heads."""
    base = {"vocab": 31, "width": 16, "depth": 2, "context": 64, "attention": {"heads": 4, "kv_heads": 2}}
    return af.spec(base, changes or {})


def small_model(changes: dict[str, Any] | None = None) -> Model:
    """That decoder in fp64, randomised, in eval mode."""
    return randomised(af.build(small_spec(changes))).eval()


class _Lift(TorchFunctionMode):
    """Every request for float32 becomes one for float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        lift = {torch.float32: torch.float64}
        args = tuple(lift.get(a, a) if isinstance(a, torch.dtype) else a for a in args)
        kwargs = {k: lift.get(v, v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()}
        return func(*args, **kwargs)


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """A published function computes in fp64, though it is written to compute in fp32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Lift():
            yield
    finally:
        torch.set_default_dtype(before)
