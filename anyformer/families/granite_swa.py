"""Granite with windows (IBM 2026): in three of four layers, with a learned sink in each head and a theta for each layer."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import NUMBERS, Key
from anyformer.families.config_values import Values
from anyformer.families.granite import Granite
from anyformer.families.key_groups import LAYERS, NOPE, Arrangement, RopeKeys, WindowKeys
from anyformer.families.statemap import Rule
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
        # The first one is that of the base.
        turned = list(dict.fromkeys(float(theta) for theta in thetas if theta))
        names = {theta: f"rope{i}" if i else "rope" for i, theta in enumerate(turned)} | {0.0: "nope"}
        groups = {name: {"position.theta": theta} for theta, name in names.items()}
        groups |= {"rope": {}, "nope": NOPE}
        found = {LAYERS: Arrangement([names[float(theta)] for theta in thetas], groups)}
        return found | ({"position.theta": turned[0]} if turned else {})

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        positions = [layer.position for layer in spec.stacks[-1].layers]
        return {"layer_rope_theta": [place.theta if isinstance(place, Rope) else 0 for place in positions]}


class GraniteSwa(Granite, kind="granite_swa"):
    """Granite with windows and sinks. A theta of 0 means that a layer has no position."""

    base = Granite.base | {"attention": Granite.base["attention"] | {"mixer": {"kind": "softmax", "sinks": True}}}
    architectures = ("GraniteSWAForCausalLM",)
    keys = {
        **Granite.keys,
        **like.keys(2560, 24, 20, 4, 8192, 100352, 8192, eps=1e-5, tied=True, head_dim=None),
        **like.ids(100257, 100257),
    }
    groups = (RopeKeys(), WindowKeys(window=128, needed=True, is_local=lambda c, i: i % 4), ThetaKeys())
    tensors = like.tensors(
        like.LLAMA, Rule("model.layers.{i}.self_attn.sinks", "decoder.blocks.{i}.attention.body.mixer.sink_H")
    )
    small = Granite.small | {"num_hidden_layers": 4, "sliding_window": 5, "layer_rope_theta": [0, 500.0, 500.0, 90.0]}
