"""Gemma 3 (2025), its text models: Gemma 2 without caps, norms on queries and keys, and two RoPEs by kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, must, number, text, texts, whole
from anyformer.families.family import Family, Preset
from anyformer.families.gemma import BASE, IDS, KEYS, NORM
from anyformer.families.gemma2 import SANDWICH, scalar_of
from anyformer.families.llama import sizes
from anyformer.families.rope_keys import read_ropes, write_ropes
from anyformer.families.statemap import StateMap
from anyformer.families.window_keys import FULL, LOCAL, each_layer, positions_of, read_windows, window_of
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

THETAS = {FULL: ("rope_theta", 1e6), LOCAL: ("rope_local_base_freq", 1e4)}


def _traits(window: int, *, long: bool) -> dict[str, Any]:
    """What depends on the size: the window, and whether the frequencies of global layers are stretched."""
    local = {"attention": {"pattern": f"window({window})"}, "position": {"kind": "rope", "theta": 1e4}}
    return {
        "position.theta": 1e6,
        "position.scaling": {"kind": "linear", "factor": 8.0} if long else None,
        "layers": {"order": "5 local, 1 global", "local": local, "global": {}},
    } | IDS


class Gemma3(Family, kind="gemma3"):
    """Gemma 3, text only."""

    base = BASE | {"attention": {"heads": 1, "qk_norm": NORM}, "norm": NORM | {"placement": "sandwich"}}
    presets = (
        Preset(
            name="gemma-3-270m", title="Gemma 3 270M (2025)",
            changes=sizes(640, 18, 4, 1, 2048, 262144, 32768) | _traits(512, long=False) | {"attention.head_dim": 256},
            params=268_098_176,
            published="268,098,176 in released files",
            evidence="the publisher's code and one other project",
            note="168M of them are the embedding",
        ),
        Preset(
            name="gemma-3-1b", title="Gemma 3 1B (2025)",
            changes=sizes(1152, 26, 4, 1, 6912, 262144, 32768) | _traits(512, long=False) | {"attention.head_dim": 256},
            params=999_885_952,
            published="999,885,952 in released files",
            evidence="the publisher's code and two other projects",
            note="one of the projects lists a context of 131072",
        ),
        Preset(
            name="gemma-3-4b", title="Gemma 3 4B (2025)",
            changes=sizes(2560, 34, 8, 4, 10240, 262208, 131072) | _traits(1024, long=True) | {"attention.head_dim": 256},
            params=3_880_263_168,
            published="3,880,263,168 in a copy of the released files without the vision tower; 4.30B with it",
            evidence="the publisher's code and three other projects",
            note="the table has 262208 rows as released, 262144 in another library's copy (3,880,099,328)",
        ),
        Preset(
            name="gemma-3-12b", title="Gemma 3 12B (2025)",
            changes=sizes(3840, 48, 16, 8, 15360, 262208, 131072) | _traits(1024, long=True) | {"attention.head_dim": 256},
            params=11_766_034_176,
            published="12,187,325,040 in released files, 421,290,864 of them in the vision tower",
            evidence="the publisher's code and three other projects",
        ),
        Preset(
            name="gemma-3-27b", title="Gemma 3 27B (2025)",
            changes=sizes(5376, 62, 32, 16, 21504, 262208, 131072)
            | _traits(1024, long=True)
            | {"attention.head_dim": 128, "attention.scale": "1/sqrt(168)"},
            params=27_009_346_304,
            published="27,009,346,304 in a copy of the released files without the vision tower",
            evidence="the publisher's code and three other projects",
            note="scores are scaled by 168 = width / heads, which one of the projects misses",
        ),
    )  # fmt: skip
    architectures = ("Gemma3ForCausalLM",)
    model_type = "gemma3_text"
    keys = (
        like.keys(vocab=262208, width=2304, ffn=9216, depth=26, heads=8, kv_heads=4, context=131072, eps=1e-6)
        | KEYS
        | {
            "hidden_activation": text("gelu_pytorch_tanh"),
            "hidden_act": must(None, "gelu_pytorch_tanh"),
            "query_pre_attn_scalar": number(256),
            "sliding_window": whole(4096, null=True),
            "sliding_window_pattern": whole(6),
            "layer_types": texts(),
            "rope_local_base_freq": number(None),
            "final_logit_softcapping": number(None),
            # The public class has the key and never reads it.
            "attn_logit_softcapping": must(None),
        }
    )

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        every = max(c["sliding_window_pattern"], 1)
        types = c["layer_types"] or each_layer(c, lambda i: LOCAL if (i + 1) % every else FULL)
        ropes = read_ropes(c, context=c["max_position_embeddings"], thetas=THETAS)
        own = {
            "attention.bias": "qkvo" if c["attention_bias"] else "",
            "attention.scale": f"1/sqrt({c['query_pre_attn_scalar']})",
            "attention.qk_norm.eps": float(c["rms_norm_eps"]),
            "head.softcap": c["final_logit_softcapping"],
        }
        return (
            like.read(c, head_dim=c["head_dim"], activation="hidden_activation")
            | ropes.get(FULL, {})
            | read_windows(c, types, c["sliding_window"], local=ropes.get(LOCAL))
            | own
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        window, types = window_of(spec)
        own = {
            "head_dim": spec.dims(layer, stack).head_dim,
            "attention_bias": bool(layer.attention.bias),
            "query_pre_attn_scalar": scalar_of(spec),
            "sliding_window": window,
            "layer_types": types,
            "final_logit_softcapping": spec.head.softcap if isinstance(spec.head, TokenHead) else None,
        }
        ropes = write_ropes(positions_of(spec), [key for key, _ in THETAS.values()])
        return like.write(spec, activation="hidden_activation") | ropes | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.HEAD_NORMS, *SANDWICH)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        # Seven layers: the sixth is global.
        return like.tiny(
            head_dim=12, query_pre_attn_scalar=7, sliding_window=5, num_hidden_layers=7, rope_theta=900.0,
            rope_local_base_freq=50.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
        )  # fmt: skip
