"""OLMo 3 (2025): OLMo 2 with windows in three of four layers, and stretched frequencies in the fourth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, must, texts, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import sizes
from anyformer.families.olmo2 import OLMO, OUTPUT_NORMS
from anyformer.families.rope_keys import read_ropes, write_ropes
from anyformer.families.statemap import StateMap
from anyformer.families.window_keys import FULL, LOCAL, each_layer, positions_of, read_windows, window_of
from anyformer.specs.model import ModelSpec

THETAS = {FULL: ("rope_theta", 5e5), LOCAL: ("rope_theta", 5e5)}
TRAITS: dict[str, Any] = {
    "position.theta": 5e5,
    "position.scaling": {
        "kind": "yarn", "factor": 8.0, "original": 8192, "beta_fast": 32.0, "beta_slow": 1.0,
        "attention_factor": 1.2079441541679836,
    },
    "layers": {
        "order": "3 local, 1 global",
        "local": {"attention": {"pattern": "window(4096)"}, "position": {"kind": "rope", "theta": 5e5}},
        "global": {},
    },
}  # fmt: skip
"""What both sizes have."""


class Olmo3(Family, kind="olmo3"):
    """OLMo 3."""

    base = OLMO
    presets = (
        Preset(
            name="olmo-3-7b", title="OLMo 3 7B (2025)",
            changes=sizes(4096, 32, 32, 32, 11008, 100278, 65536) | TRAITS,
            params=7_298_011_136,
            published="7,298,011,136 in released files",
            evidence="the publisher's training code and two other projects; z-loss and init are taken over from OLMo 2",
            note="the vocabulary is not padded as in OLMo 2; only the global layers have stretched frequencies",
        ),
        Preset(
            name="olmo-3-32b", title="OLMo 3 32B (2025)",
            changes=sizes(5120, 64, 40, 8, 27648, 100278, 65536) | TRAITS,
            params=32_233_522_176,
            published="32,233,522,176 in released files",
            evidence="the publisher's training code and two other projects; z-loss and init are taken over from OLMo 2",
            note="grouped heads, as in OLMo 2 32B",
        ),
    )  # fmt: skip
    architectures = ("Olmo3ForCausalLM",)
    model_type = "olmo3"
    keys = like.keys(
        vocab=50304, width=4096, ffn=11008, depth=32, heads=32, kv_heads=None, context=2048, eps=1e-5
    ) | {
        "attention_bias": flag(False),
        "sliding_window": whole(4096, null=True),
        "layer_types": texts(),
        # Beside the tables the public class reads another theta for one kind of layer only, which nobody can mean.
        "rope_theta": must(None, 500000.0),
        "pad_token_id": ids(1),
        "eos_token_id": ids(50279),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        types = c["layer_types"] or each_layer(c, lambda i: LOCAL if (i + 1) % 4 else FULL)
        ropes = read_ropes(c, context=c["max_position_embeddings"], thetas=THETAS)
        own = {
            "attention.qk_norm.eps": float(c["rms_norm_eps"]),
            "attention.bias": "qkvo" if c["attention_bias"] else "",
        }
        return (
            like.read(c)
            | ropes.get(FULL, {})
            | read_windows(c, types, c["sliding_window"], local=ropes.get(LOCAL))
            | own
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        window, types = window_of(spec)
        own = {
            "attention_bias": bool(spec.stacks[-1].layers[0].attention.bias),
            "sliding_window": window,
            "layer_types": types,
        }
        return like.write(spec) | write_ropes(positions_of(spec), ()) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.HEAD_NORMS, *OUTPUT_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3}
        return like.tiny(
            num_hidden_layers=5, sliding_window=5,
            rope_parameters={
                FULL: yarn | {"rope_theta": 900.0}, LOCAL: {"rope_type": "default", "rope_theta": 50.0},
            },
        )  # fmt: skip
