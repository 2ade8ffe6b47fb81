"""Granite with windows (IBM 2026): in three of four layers, with a learned sink in each head and a theta for each layer."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import NUMBERS
from anyformer.families.config_values import Values, without
from anyformer.families.granite import Granite
from anyformer.families.key_groups import (
    FULL,
    LOCAL,
    NOPE,
    RopeKeys,
    WindowKeys,
    arranged,
    each_layer,
    without_idle_rope,
)
from anyformer.families.statemap import Rule
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec


class GraniteSwa(Granite, kind="granite_swa"):
    """Granite with windows and sinks. A theta of 0 means that a layer has no position."""

    base = Granite.base | {"attention": Granite.base["attention"] | {"mixer": {"kind": "softmax", "sinks": True}}}
    architectures = ("GraniteSWAForCausalLM",)
    keys = {
        **Granite.keys,
        **like.keys(2560, 24, 20, 4, 8192, 100352, 8192, eps=1e-5, tied=True, head_dim=None),
        **like.ids(100257, 100257),
        "layer_rope_theta": NUMBERS,
    }
    groups = (RopeKeys(), WindowKeys(window=128, needed=True, is_local=lambda c, i: i % 4))
    tensors = like.tensors(
        like.LLAMA, Rule("model.layers.{i}.self_attn.sinks", "decoder.blocks.{i}.attention.body.mixer.sink_H")
    )
    small = Granite.small | {"num_hidden_layers": 4, "sliding_window": 5, "layer_rope_theta": [0, 500.0, 500.0, 90.0]}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        found, thetas = super().read(c), c["layer_rope_theta"]
        if thetas is None or c.problems.found:
            return found
        types = c["layer_types"] or each_layer(c, lambda i: LOCAL if i % 4 else FULL)
        if len(thetas) != len(types):
            c.problems.add("layer_rope_theta", f"has {len(thetas)} entries for {len(types)} layers")
            return found
        # The first theta is that of the model; a layer with another has a name of its own.
        used = [*dict.fromkeys(theta for theta in thetas if theta)] or [0]
        model = {"position.theta": float(used[0])} if used[0] else NOPE
        after = {0: "_nope"} | {theta: f"_{n}" if n else "" for n, theta in enumerate(used)}
        windows = {LOCAL: {"attention.pattern": f"window({c['sliding_window']})"}, FULL: {}}
        names, groups = list[str](), dict[str, dict[str, Any]]()
        for kind, theta in zip(types, thetas, strict=True):
            names.append(f"{'local' if kind == LOCAL else 'global'}{after[theta]}")
            other = {} if theta == used[0] else {"position.theta": float(theta)} if theta else NOPE
            groups[names[-1]] = windows[kind] | other
        return without_idle_rope(without(found, ["layers", "attention.pattern"]) | model | arranged(names, groups))

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        positions = [layer.position for layer in spec.stacks[-1].layers]
        thetas = [position.theta if isinstance(position, Rope) else 0 for position in positions]
        return super().write(spec) | {"layer_rope_theta": thetas}
