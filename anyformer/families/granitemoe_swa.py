"""Granite with experts, windows and sinks (IBM 2026): three of four layers have a window, and each may have its own theta."""

from typing import Any

from anyformer.families import granitemoe as granite
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import NUMBERS, Key
from anyformer.families.config_values import Values
from anyformer.families.granitemoeshared import SHARED
from anyformer.families.key_groups import LAYERS, Arrangement, RopeKeys, WindowKeys
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec


class ThetaKeys:
    """A theta for each layer; 0 stands for no position at all."""

    keys: dict[str, Key] = {"layer_rope_theta": NUMBERS}

    def read(self, c: Values) -> dict[str, Any]:
        thetas = c["layer_rope_theta"]
        if thetas is None:
            return {}
        if len(thetas) != c["num_hidden_layers"]:
            c.problems.add(
                "layer_rope_theta", f"lists {len(thetas)} layers; num_hidden_layers is {c['num_hidden_layers']}"
            )
        turned = sorted({theta for theta in thetas if theta})
        names = {theta: "rope" if len(turned) == 1 else f"rope{i}" for i, theta in enumerate(turned)} | {0: "nope"}
        groups = {name: {"position.theta": float(theta)} for theta, name in names.items()}
        return {LAYERS: Arrangement([names[theta] for theta in thetas], groups | {"nope": {"position.kind": "none"}})}

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        layers = spec.stacks[-1].layers
        return {
            "layer_rope_theta": [getattr(x.position, "theta", 0) if isinstance(x.position, Rope) else 0 for x in layers]
        }


class GraniteMoeSwa(moe.MoeLike, kind="granitemoe_swa"):
    """Granite with experts, windows and sinks."""

    base = granite.BASE | {
        "attention": {"heads": 1, "scale": "1/head_dim", "mixer": {"kind": "softmax", "sinks": True}}
    }
    architectures = ("GraniteMoeSWAForCausalLM",)
    keys = granite.KEYS | {"shared_intermediate_size": moe.shared_width(0)}
    groups = (RopeKeys(), WindowKeys(window=128, is_local=lambda c, i: i % 4), ThetaKeys())
    tensors = moe.tensors(
        granite.PARTS, moe.fused("block_sparse_moe.experts"), at="block_sparse_moe", router="router", shared="unused",
        more=(*SHARED, moe.SINKS),
    )  # fmt: skip
    small = granite.SMALL | {"shared_intermediate_size": 20, "sliding_window": 5, "layer_rope_theta": [0, 50.0, 500.0]}
