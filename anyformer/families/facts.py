"""What reaches the logits of a spec, by name, so that two specs can be compared whatever words they use."""

from collections.abc import Mapping
from typing import Any

from anyformer.parts.positions.rope import Rope
from anyformer.specs.codec import flatten, write
from anyformer.specs.embed_head import TokenEmbed, TokenHead
from anyformer.specs.formulas import Scale, evaluate
from anyformer.specs.layer import Layer
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import projects
from anyformer.specs.stacks import Stack, pattern_of

TRAINING = ("dropout",)
"""Fields that a forward pass does not read once a model is trained. `init` and `loss` are left out whole."""


def facts(spec: ModelSpec) -> dict[str, Any]:
    """Every choice of a spec that reaches the logits, by name, derived sizes filled in: two specs may say the same in
    different words. What belongs to a layer is called `<stack>/<layer>/<name>`.
    """
    found: dict[str, Any] = {name: getattr(spec, name) for name in ("topology", "vocab", "width", "context")}
    if spec.topology == "encoder-decoder":
        # Unset, or the target's size: the same tables.
        found["source_vocab"] = spec.input_vocab
    sizes = {"width": spec.width, "depth": spec.depth}
    embed, head = write(spec.embed), write(spec.head)
    if isinstance(spec.embed, TokenEmbed):
        embed |= {"width": spec.embed_width, "scale": _number(spec.embed.scale, sizes)}
        if not projects(spec):
            embed |= {"project": None, "project_bias": None}
    if isinstance(spec.head, TokenHead):
        head |= {"scale": _number(spec.head.scale, sizes)}
    found |= _flat("embed", embed) | _flat("head", head) | _flat("ids", write(spec.ids))
    for stack in spec.stacks:
        where = f"{stack.name}/"
        found |= {f"{where}/depth": stack.depth, f"{where}/layers.shared": stack.shared or None}
        found |= {f"{where}/norm.final": stack.norm.has_final(), f"{where}/norm.embedding": stack.norm.embedding}
        if stack.norm.has_final() or stack.norm.embedding:
            found |= _flat(f"{where}/norm.ends", write(stack.norm.leaf))
        for i, layer in enumerate(stack.layers):
            found |= _layer(spec, stack, layer, f"{where}{i}/")
    return {name: value for name, value in found.items() if value is not None}


def _layer(spec: ModelSpec, stack: Stack, layer: Layer, where: str) -> dict[str, Any]:
    dims = spec.dims(layer, stack)
    a = write(layer.attention) | {
        "kv_heads": dims.kv_heads,
        "head_dim": dims.head_dim,
        "pattern": str(pattern_of(stack, layer)),
        "scale": _number(layer.attention.scale, dims.names()),
        "bias": "".join(sorted(layer.attention.bias)),
    }
    position = write(layer.position)
    if isinstance(layer.position, Rope):
        position |= {"dims": layer.position.rotated(dims.head_dim), "fraction": None}
    ffn = write(layer.ffn) | {"width": dims.ffn_width, "multiple_of": None, "chunk": None}
    norm = write(layer.norm.leaf) | {
        "attention_placement": layer.norm.of_attention(),
        "ffn_placement": layer.norm.of_ffn(),
    }
    nodes = {"attention": a, "position": position, "ffn": ffn, "norm": norm, "block": write(layer.block)}
    return {name: value for node, data in nodes.items() for name, value in _flat(f"{where}{node}", data).items()}


def _flat(path: str, data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flatten(data, path) if name.rpartition(".")[2] not in TRAINING}


def _number(scale: Scale, names: Mapping[str, float]) -> float:
    # A formula and its number may differ in the last digit.
    return float(f"{evaluate(scale, names):.12g}")


def differences(spec: ModelSpec, other: ModelSpec) -> list[tuple[str, Any, Any]]:
    """What two specs disagree on: the name, and both values (None: not there), of each name's first layer only."""
    mine, theirs = facts(spec), facts(other)
    if mine["topology"] != theirs["topology"]:
        return [("topology", mine["topology"], theirs["topology"])]
    found: dict[str, tuple[str, Any, Any]] = {}
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        short = name.rpartition("/")[2]
        if mine.get(name) != theirs.get(name) and short not in found:
            found[short] = short, mine.get(name), theirs.get(name)
    # Where kinds differ, or one has no norm at an end, fields differ too, which is no news.
    if "norm.final" in found or "norm.embedding" in found:
        found = {short: line for short, line in found.items() if not short.startswith("norm.ends.")}
    kinds = [short.removesuffix("kind") for short in found if short.endswith(".kind")]
    return [
        line for short, line in found.items() if short.endswith(".kind") or not any(short.startswith(k) for k in kinds)
    ]
