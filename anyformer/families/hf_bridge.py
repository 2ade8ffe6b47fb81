"""Models of the public library and ours, from one to the other in memory. Dtype and device stay, storage is copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import CapabilityError, CheckpointError, InputError
from anyformer.families.checkpoint import (
    check_computed,
    differing,
    family_for,
    fill,
    matched,
    published,
    say_left_out,
    shapes_of,
    untying,
)
from anyformer.families.config_values import REMOTE
from anyformer.families.lookup import family_of
from anyformer.families.quantization import quantization_of

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.model.model import Model


def from_hf(hf_model: Any) -> Model:
    """Our model of one of the public classes, with the same weights, in the mode (training or not) that it is in."""
    from anyformer.model.native_checkpoint import empty_model

    own: Any = getattr(hf_model, "config", None)
    if not isinstance(own, library().PreTrainedConfig):
        raise TypeError(f"hf_model: expected a model of transformers, got {type(hf_model).__name__}")
    name = type(hf_model).__name__
    config = own.to_dict() | {"architectures": [name]}
    if type(hf_model).__module__.startswith("transformers."):
        # It is the library's own class, whatever code lay beside its weights.
        config.pop(REMOTE, None)
    if quantization_of(config) is not None:
        raise InputError(
            "hf_model: its weights are quantised; read its folder instead (load), or call its dequantize() first"
        )
    first = next(hf_model.parameters())
    if first.is_meta:
        raise InputError("hf_model: it is on the meta device and has no weights to take")
    tensors: dict[str, Tensor] = hf_model.state_dict()
    if config.get("tie_word_embeddings") and not _is_tied(hf_model):
        # Some classes say that they are tied whatever they hold.
        config["tie_word_embeddings"] = False
    family = family_of(config, name)
    spec = family.spec_from(config, name)
    if differ := differing(family, spec, tensors):
        # What the model holds counts, where a spec can say it: the config may say that tables are one that are not.
        changes = untying(family, config, tensors)
        if not changes:
            pairs = ", ".join(f"{copy} differs from {first}" for copy, first in differ.items())
            raise CheckpointError(
                f"{name}: {pairs}, and a spec of {family.kind} has one tensor for both; tie them, or train with them tied"
            )
        spec = family.spec_from(config | changes, name)
    shapes = shapes_of(tensors)
    placed = matched(family, spec, shapes, Path(name))
    table = family.table(spec).layout(spec, shapes)
    check_computed(table, tensors, name)
    model = empty_model(spec, first.device, first.dtype)
    fill(model, table.entries(spec), placed, tensors, name, copy=True)
    say_left_out(table, {held: tensor.nbytes for held, tensor in tensors.items()}, name)
    model.family = family.kind
    return model.train(hf_model.training)


def to_hf(model: Model, family: str | None = None) -> Any:
    """The public class's model of ours, with the same weights, in the mode that it is in.

    `family` is the kind of a family; unless given, the one that the model was read from, or else the first that can
    hold the spec.
    """
    found, config = family_for(model.spec, family, model.family)
    first = next(model.parameters())
    if first.is_meta:
        raise InputError("model: it is on the meta device and has no weights to take")
    cls = public_class(config["architectures"][0])
    tensors = {name: tensor.clone() for name, tensor in published(model, found)}
    made = cls.from_pretrained(None, config=cls.config_class.from_dict(config), state_dict=tensors, dtype=first.dtype)
    table = found.table(model.spec)
    for name, held in (*made.named_parameters(), *made.named_buffers()):
        # Some classes make a table in fp32, whatever they are asked for.
        stored = tensors.get(table.current(name, tensors.keys()))
        if stored is not None and held.dtype != first.dtype:
            held.data = stored.to(held.device)
    return made.to(first.device).train(model.training)


def _is_tied(hf_model: Any) -> bool:
    """Whether the output matrix is a table of the input; yes if the model has no such pair."""
    head = hf_model.get_output_embeddings()
    if head is None:
        return True
    tables = [
        module.weight
        for module in hf_model.modules()
        if "Embedding" in type(module).__name__ and "weight" in module._parameters
    ]
    return any(head.weight is table or head.weight.data_ptr() == table.data_ptr() for table in tables)


def public_class(name: str) -> Any:
    """A class of the public library by its name."""
    found = getattr(library(), name, None)
    if found is None:
        raise CapabilityError(
            f"transformers {library().__version__} has no class {name}: its code was published with its weights only. "
            "Such files are read and written here (load, save), but there is no class to compare or to convert with"
        )
    return found


def library() -> Any:
    """The public library, which is optional."""
    try:
        import transformers
    except ImportError as error:
        raise CapabilityError("this needs the library transformers: pip install 'anyformer[hf]'") from error
    return transformers
