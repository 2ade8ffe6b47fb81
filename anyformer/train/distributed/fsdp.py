"""A model spread over several processes: cut by FSDP2 in blocks, its products shared if that is asked for."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from anyformer.errors import InputError
from anyformer.model.model import Model
from anyformer.model.native_checkpoint import empty_model
from anyformer.parts.exact import Exact
from anyformer.parts.leaf_module import LeafModule
from anyformer.specs.model import ModelSpec
from anyformer.train.distributed.sharded_checkpoint import put, whole
from anyformer.train.distributed.tensor_parallel import constants, divided, share_products
from anyformer.train.ranks import Meshes

Values = Callable[[str], Tensor]


def spread(
    spec: ModelSpec, meshes: Meshes, values: Values, *, device: torch.device, dtype: torch.dtype, autocast: bool = False
) -> Model:
    """A model of a spec of which this process holds its part. `values` gives whole tensors by name, one at a time."""
    tensor = 1 if meshes.tensor is None else meshes.tensor.size()
    model = _fresh(spec, tensor).to(dtype)
    if meshes.tensor is not None:
        share_products(model, spec, meshes.tensor)
    # Each block is sharded, and the rest with the model. Under autocast: bf16 all-gather, fp32 reduction.
    policy = MixedPrecisionPolicy()
    if autocast:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    # What stays in fp32 is gathered by itself, or, if it is a part of something else and learns nothing, not cut at all.
    parts = [part for part in model.modules() if isinstance(part, Exact)]
    uncut = {p for part in parts if not _alone(part) for p in part.held_exactly()}
    # A reversible stack does not call its blocks, so they are gathered with the model.
    for name in [stack.name for stack in model.spec.stacks if not stack.reversible]:
        for block in model.get_submodule(f"{name}.blocks").children():
            for part in [part for part in block.modules() if isinstance(part, Exact) and _alone(part)]:
                # The engine marks what a module answers, and wants no view.
                part.register_forward_hook(lambda module, given, found: found.clone())
                fully_shard(part, mesh=meshes.data)
            fully_shard(block, mesh=meshes.data, mp_policy=policy, ignored_params=uncut)
    sharded: Any = fully_shard(model, mesh=meshes.data, ignored_params=uncut)
    # What is outside of blocks stays gathered for a backward pass; where none follows, parameters are parts again.
    sharded.register_forward_hook(lambda module, *_: None if torch.is_grad_enabled() else module.reshard())
    # Held constants know by themselves what they are.
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            put(parameter, values(name))
    return model


def _alone(part: Exact) -> bool:
    """Whether a module has nothing but parameters that stay in fp32."""
    own, kept = list(part.parameters()), list(part.held_exactly())
    return bool(own) and len(own) == len(kept)


def syncing(model: nn.Module) -> Callable[[bool], None]:
    """Tells a spread model whether the next backward pass is the last of a step: gradients meet only then."""
    if not isinstance(model, FSDPModule):
        raise TypeError("the model is not spread")
    found: Any = model

    def last(yes: bool) -> None:
        found.set_requires_gradient_sync(yes)
        found.set_is_last_backward(yes)

    return last


def assembled(model: Model, spec: ModelSpec, device: torch.device, *, keep: bool) -> Model | None:
    """A plain model with the weights of a spread one, on the process that keeps it. All processes take part."""
    dtype = next(model.parameters()).dtype
    plain = empty_model(spec, device, dtype) if keep else None
    room = {} if plain is None else dict(plain.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            full = whole(parameter)
            if name in room:
                room[name].copy_(full)
    return plain


KEPT = {"training", "wrapper"}
"""What belongs to the run and not to the spec."""


def check_stages(model: Model, specs: list[ModelSpec], tensor: int) -> None:
    """Refuse stages whose modules are others than the model's."""
    for i, spec in enumerate(specs):
        strange = _differing(model, _fresh(spec, tensor))
        if strange:
            raise InputError(
                f"stages[{i}].spec: over several processes a stage keeps the modules of the model, but {strange[0]} "
                f"would be another; train on one process, or leave it as it is"
            )


def _fresh(spec: ModelSpec, tensor: int) -> Model:
    with torch.device("meta"):
        return Model(divided(spec, tensor))


def _differing(model: nn.Module, made: nn.Module) -> list[str]:
    have, want = dict(model.named_modules()), dict(made.named_modules())
    found = sorted(have.keys() ^ want.keys())
    # The engine gives modules a class of its own, made from theirs.
    found += [name for name, module in want.items() if name in have and not isinstance(have[name], type(module))]
    held = {n: m for n, m in want.items() if isinstance(m, LeafModule)}
    found += [n for n, m in held.items() if n in have and m._buffers.keys() != have[n]._buffers.keys()]
    return found


def restage(model: Model, spec: ModelSpec, tensor: int, index: int) -> None:
    """Let the modules of a model compute another spec with their parameters, on tensor-parallel rank `index`."""
    if spec == model.spec:
        return
    mine = {(place, name): part for place, name, part in constants(spec, tensor, index) if tensor > 1}
    have: dict[str, nn.Module] = dict(model.named_modules())
    for place, new in _fresh(spec, tensor).named_modules():
        old = have[place]
        for name, value in vars(new).items():
            if name not in KEPT and not name.startswith("_") and not isinstance(value, nn.Module):
                vars(old)[name] = value
        if isinstance(old, LeafModule) and isinstance(new, LeafModule):
            values: dict[str, Any] = new._constants
            for name, numbers in values.items():
                old.replace(name, mine.get((place, name), numbers))
