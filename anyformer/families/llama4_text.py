"""Llama 4 (2025), its text models: top-1 experts, RoPE in chunks of tokens, and every fourth layer without positions."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import NUMBERS, TEXTS, Key, flag, number, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Preset, sizes
from anyformer.families.key_groups import FULL, LAYERS, Arrangement, RopeKeys, each_layer
from anyformer.parts.positions.rope import Rope
from anyformer.specs.layer import Layer
from anyformer.specs.model import ModelSpec

CHUNKED = "chunked_attention"
QK_NORM: dict[str, Any] = {"kind": "rmsnorm", "eps": 1e-5, "gain": "none", "when": "after"}


def _chunks(size: int | None) -> dict[str, Any]:
    return {"attention.pattern": f"causal & chunked({size})"}


def _without_rope(length: int, strength: float) -> dict[str, Any]:
    temperature = {"kind": "log1p", "length": length, "strength": strength}
    return {"position.kind": "none", "attention.temperature": temperature}


class ChunkKeys:
    """Which layers see chunks only and which have no RoPE: by a list for each, or every n-th is global without it."""

    keys: dict[str, Key] = {
        # A 1 for each layer with RoPE; the name says the opposite.
        "no_rope_layers": NUMBERS,
        "no_rope_layer_interval": moe.at_least_one(4),
        "layer_types": TEXTS,
        "attention_chunk_size": whole(8192, null=True),
        "attn_temperature_tuning": flag(True),
        "floor_scale": moe.at_least_one(8192),
        "attn_scale": number(0.1),
        "use_qk_norm": flag(True),
    }

    def read(self, c: Values) -> dict[str, Any]:
        every = c["no_rope_layer_interval"]
        rotary = [bool(yes) for yes in c["no_rope_layers"] or ()]
        rotary = rotary or [(i + 1) % every != 0 for i in range(len(each_layer(c, str)))]
        types = c["layer_types"]
        types = [CHUNKED if yes else FULL for yes in rotary] if types is None else types
        for name, listed in (("no_rope_layers", rotary), ("layer_types", types)):
            if len(listed) != c["num_hidden_layers"]:
                c.problems.add(name, f"lists {len(listed)} layers, but num_hidden_layers is {c['num_hidden_layers']}")
        if odd := sorted({*types} - {CHUNKED, FULL}):
            c.refuse("layer_types", f"{odd[0]!r} is a kind of layer that this family does not have")
        if CHUNKED in types and (c["attention_chunk_size"] or 0) < 1:
            c.problems.add("attention_chunk_size", f"is missing or not above 0; layer_types has {CHUNKED!r}")
        turned = {"attention.qk_norm": QK_NORM | {"eps": float(c["rms_norm_eps"])}} if c["use_qk_norm"] else {}
        plain = _without_rope(c["floor_scale"], float(c["attn_scale"]))
        plain = plain if c["attn_temperature_tuning"] else {"position.kind": "none"}
        kinds = {
            "local": _chunks(c["attention_chunk_size"]) | turned,
            "global": turned,
            "local_nope": _chunks(c["attention_chunk_size"]) | plain,
            "global_nope": plain,
        }
        names = [
            ("local" if kind == CHUNKED else "global") + ("" if yes else "_nope")
            for kind, yes in zip(types, rotary, strict=False)
        ]
        return {LAYERS: Arrangement(names, kinds)}

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        layers = spec.stacks[-1].layers

        def size(layer: Layer) -> int | None:
            text = str(layer.attention.pattern)
            return int(text.partition("chunked(")[2].partition(")")[0]) if "chunked(" in text else None

        sizes = [size(layer) for layer in layers]
        rotary = [isinstance(layer.position, Rope) for layer in layers]
        tuned = [layer.attention.temperature for layer in layers if layer.attention.temperature is not None]
        return {
            "no_rope_layers": [int(yes) for yes in rotary],
            "layer_types": [FULL if found is None else CHUNKED for found in sizes],
            "attention_chunk_size": next((found for found in sizes if found is not None), None),
            # Where all layers turn, it has no meaning.
            "attn_temperature_tuning": bool(tuned) or all(rotary),
            **({"floor_scale": tuned[0].length, "attn_scale": tuned[0].strength} if tuned else {}),
            "use_qk_norm": any(layer.attention.qk_norm is not None for layer in layers),
        }


SPARSE = moe.DenseKeys(
    keys={"moe_layers": NUMBERS, "interleave_moe_layer_step": moe.at_least_one(1)},
    is_dense=lambda c, i: (
        (i + 1) % c["interleave_moe_layer_step"] if c["moe_layers"] is None else i not in c["moe_layers"]
    ),
    said=lambda dense: {"moe_layers": [i for i, yes in enumerate(dense) if not yes]},
    width="intermediate_size_mlp",
)
LOCAL, GLOBAL = _chunks(8192), _without_rope(8192, 0.1)
DENSE = {"ffn.kind": "swiglu", "ffn.width": 16384}
TRAITS = {"attention.head_dim": 128, "position.theta": 5e5, "ffn.top_k": 1, "ffn.shared_width": 8192}


class Llama4(moe.MoeLike, kind="llama4_text"):
    """Llama 4, text only."""

    base = moe.BASE | {
        "ffn": {"kind": "moe", "score": "sigmoid", "normalise": False, "gates": "input"},
        "position": {"kind": "rope", "theta": 5e5, "layout": "interleaved"},
    }
    presets = (
        Preset("llama-4-scout", "Llama 4 Scout (2025)", sizes(5120, 48, 40, 8, 8192, 202048, 10485760) | TRAITS
               | {"ffn.experts": 16,
                  "position.scaling": {"kind": "llama3", "factor": 16.0, "original": 8192, "low": 1.0, "high": 1.0},
                  "layers": {"order": "3 local, global", "local": LOCAL | {"attention.qk_norm": QK_NORM},
                             "global": GLOBAL}},
               107_769_861_120, hub=("meta-llama/Llama-4-Scout-17B-16E",),
               published="108,641,793,536 in released files, 871,932,416 of them in the vision tower",
               evidence="configs in code of two other projects", note="text only; 17.2B are used for each token"),
        Preset("llama-4-maverick", "Llama 4 Maverick (2025)", sizes(5120, 48, 40, 8, 8192, 202048, 1048576) | TRAITS
               | {"ffn.experts": 128,
                  "layers": {"order": "local_dense, local_sparse, local_dense, global_sparse",
                             "local_dense": LOCAL | DENSE, "local_sparse": LOCAL, "global_sparse": GLOBAL}},
               400_711_848_960, hub=("meta-llama/Llama-4-Maverick-17B-128E",),
               published="401,583,781,376 in released files, 871,932,416 of them in the vision tower",
               evidence="configs in code of two other projects",
               note="text only; every second layer is dense; no norms of queries and keys, unlike Scout"),
    )  # fmt: skip
    architectures = ("Llama4ForCausalLM",)
    exempt = "padding on the left: the class counts positions for the temperature by column, padding included"
    bodies = ("Llama4TextModel",)
    keys = {
        **like.keys(5120, 48, 40, 8, 8192, 202048, 131072, eps=1e-5, head_dim=128, bos_token_id=1, eos_token_id=2),
        **usual(attention_bias=False),
        **moe.expert_keys(16, 1, count="num_local_experts"),
        # The expert that all tokens go through is as wide as the others.
        "intermediate_size": whole(8192, ("ffn.width", "ffn.shared_width")),
        "intermediate_size_mlp": moe.dense_width(16384),
        # A note of released files.
        "for_llm_compressor": flag(False),
    }
    groups = (RopeKeys(theta=5e5, layout="interleaved"), ChunkKeys(), SPARSE)
    tensors = moe.tensors(
        like.ATTENTION | like.PRE_NORMS | {name: f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
        moe.fused("feed_forward.experts", transposed=True),
        at="feed_forward",
        router="router",
        shared="shared_expert",
    )
    small = like.small(
        num_hidden_layers=4, num_local_experts=5, intermediate_size=12, intermediate_size_mlp=24, head_dim=12,
        attention_chunk_size=6, floor_scale=4, moe_layers=[0, 3],
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 900.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
            "original_max_position_embeddings": 40,
        },
    )  # fmt: skip
