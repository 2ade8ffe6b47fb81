"""Command A and Command R7B (Cohere 2024-25): three layers with a window and RoPE to one that sees all, without positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.cohere import BASE, KEYS, read_common, state_map, write_common
from anyformer.families.config_keys import Values, must, texts, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.families.window_keys import FULL, LOCAL, arranged, checked, each_layer, window_of
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec

NOWHERE = {"position.kind": "none"}
"""What a layer without a window has."""

CYCLE = {"order": "3 local, global", "local": {"attention.pattern": "window(4096)"}, "global": NOWHERE}


class Cohere2(Family, kind="cohere2"):
    """Command A and Command R7B."""

    base = BASE
    presets = (
        Preset(
            name="command-r7b", title="Command R7B (2024)",
            changes=sizes(4096, 32, 32, 8, 14336, 256000, 131072)
            | {"position.theta": 5e4, "head.scale": 0.25, "layers": CYCLE},
            params=8_028_033_024,
            published="8,028,033,024 in released files",
            evidence="the log of a conversion in a public issue, and the defaults of one other project",
            note="its file said 8192 positions at first, its card promises 131072",
        ),
        Preset(
            name="command-a", title="Command A (2025)",
            changes=sizes(12288, 64, 96, 8, 36864, 256000, 262144)
            | {"position.theta": 5e4, "head.scale": 0.25, "layers": CYCLE},
            params=111_057_580_032,
            published="111B on its card, 111.058B in the log of another project",
            evidence="the header of a converted file in a public issue",
        ),
    )  # fmt: skip
    architectures = ("Cohere2ForCausalLM",)
    model_type = "cohere2"
    keys = KEYS | {
        "head_dim": whole(None),
        "sliding_window": whole(4096, null=True),
        "sliding_window_pattern": whole(4),
        "layer_types": texts(),
        # What released files say and the public class takes for granted.
        "layer_switch": whole(4),
        "order_of_interleaved_layers": must("local_attn_first"),
        "position_embedding_type": must("rope_gptj"),
        "rotary_pct": must(1.0),
        "use_embedding_sharing": must(True),
        "use_gated_activation": must(True),
        "use_parallel_block": must(True),
        "use_parallel_embedding": must(False, True),
        "use_qk_norm": must(False),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        width, heads = c["hidden_size"], c["num_attention_heads"]
        if c["head_dim"] is not None and c["head_dim"] * heads != width:
            c.refuse(
                "head_dim", f"{c['head_dim']} is not hidden_size / num_attention_heads, which the public class takes"
            )
        every, types = c["sliding_window_pattern"], c["layer_types"]
        if every < 1:
            c.problems.add("sliding_window_pattern", f"{every} is not at least 1")
            every = 1
        if types is None:
            types = each_layer(c, lambda i: LOCAL if (i + 1) % every else FULL)
        turned = read_rope(c, context=c["max_position_embeddings"]) | {"position.layout": "interleaved"}
        names = checked(c, types, c["sliding_window"])
        own = {"attention.pattern": f"window({c['sliding_window']})"}
        return (
            read_common(c) | (turned if "local" in names else {}) | arranged(names, {"local": own, "global": NOWHERE})
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        layers = spec.stacks[-1].layers
        window, types = window_of(spec)
        turning = next((layer.position for layer in layers if isinstance(layer.position, Rope)), layers[0].position)
        return write_common(spec) | write_rope(turning) | {"sliding_window": window, "layer_types": types}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return state_map()

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        made = like.tiny(
            layer_norm_eps=1e-3, logit_scale=0.3, rope_theta=500.0, sliding_window=5, num_hidden_layers=5
        )  # fmt: skip
        return {name: value for name, value in made.items() if name != "rms_norm_eps"}
