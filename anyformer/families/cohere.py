"""Command R (Cohere 2024): attention and a gated feed-forward in parallel on one norm without bias, RoPE in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Key, Values, flag, ids, number, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.formulas import evaluate
from anyformer.specs.model import ModelSpec

BASE: dict[str, Any] = {
    "attention": {"heads": 1},
    "norm": {"kind": "layernorm", "eps": 1e-5, "bias": False},
    "position": {"kind": "rope", "theta": 1e4, "layout": "interleaved"},
    "ffn": {"kind": "swiglu"},
    "block": {"wiring": "parallel"},
    "head": {"kind": "lm", "tied": True},
    "init": {"kind": "normal", "std": 0.02},
    "ids": {"pad": 0, "bos": 5, "eos": [255001]},
}
"""What Command R and Command A share."""

KEYS: dict[str, Key] = like.keys(
    vocab=256000, width=8192, ffn=22528, depth=40, heads=64, kv_heads=None, context=8192, eps=1e-5,
    eps_key="layer_norm_eps",
) | {
    "logit_scale": number(0.0625),
    "attention_bias": flag(False),
    # The length that a card promises, beside the one that the class reads.
    "model_max_length": whole(None),
    "tie_word_embeddings": flag(True),
    "pad_token_id": ids(0),
    "bos_token_id": ids(5),
    "eos_token_id": ids(255001),
}  # fmt: skip


def read_common(c: Values, head_dim: int | None = None) -> dict[str, Any]:
    """Those keys as changes of a spec."""
    return like.read(c, head_dim=head_dim, eps_key="layer_norm_eps") | {
        "attention.bias": "qkvo" if c["attention_bias"] else "",
        "head.scale": float(c["logit_scale"]),
    }


def write_common(spec: ModelSpec) -> dict[str, Any]:
    """Those keys of a spec."""
    head, names = spec.head, {"width": spec.width, "depth": spec.depth}
    return like.write(spec, eps_key="layer_norm_eps") | {
        "attention_bias": bool(spec.stacks[-1].layers[0].attention.bias),
        "logit_scale": evaluate(head.scale, names) if isinstance(head, TokenHead) else 1.0,
    }


def state_map(*rules: Rule) -> StateMap:
    """The table of both."""
    norm = Rule(f"{like.LAYER}.input_layernorm.weight", f"{like.BLOCK}.attention.inner.weight")
    return like.state_map(*like.ATTENTION, *like.FFN, norm, *rules)


class Cohere(Family, kind="cohere"):
    """Command R and R+."""

    base = BASE
    presets = (
        Preset(
            name="command-r", also=("command-r-v01",), title="Command R (2024)",
            changes=sizes(8192, 40, 64, 64, 22528, 256000, 131072) | {"position.theta": 8e6, "head.scale": 0.0625},
            params=34_980_831_232,
            published="only rounded, to 35B, on its card",
            evidence="values in conversion and serving code of three other projects",
            note="every head has keys of its own; its file says 8192 positions, its card promises 131072",
        ),
        Preset(
            name="command-r-08-2024", title="Command R 08-2024 (2024)",
            changes=sizes(8192, 40, 64, 8, 24576, 256000, 131072) | {"position.theta": 4e6, "head.scale": 0.0625},
            params=32_296_476_672,
            published="32,296,476,672 in released files of Aya Expanse 32B, of the same shapes",
            evidence="the config in one other project",
            note="grouped keys and a wider feed-forward than the first release",
        ),
        Preset(
            name="command-r-plus", also=("command-r+",), title="Command R+ (2024)",
            changes=sizes(12288, 64, 96, 8, 33792, 256000, 131072)
            | {
                "position.theta": 75e6, "head.scale": 0.8333333333333334,
                "attention.qk_norm": {"kind": "layernorm", "eps": 1e-5, "bias": False, "scope": "heads"},
            },
            params=103_810_674_688,
            published="only rounded, to 104B, on its card",
            evidence="the config in one other project; the norms on queries and keys from the public class and another project",
            note="that project leaves those norms out, which is wrong",
        ),
    )  # fmt: skip
    architectures = ("CohereForCausalLM",)
    model_type = "cohere"
    keys = KEYS | {
        "use_qk_norm": flag(False),
        # No released file has it; the public class takes it from one that does.
        "head_dim": whole(None),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        norms = {"kind": "layernorm", "eps": float(c["layer_norm_eps"]), "bias": False, "scope": "heads"}
        return (
            read_common(c, c["head_dim"])
            | read_rope(c, context=c["max_position_embeddings"], theta=500000.0)
            | {"position.layout": "interleaved", "attention.qk_norm": norms if c["use_qk_norm"] else None}
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        return (
            write_common(spec)
            | write_rope(layer.position)
            | {
                "use_qk_norm": layer.attention.qk_norm is not None,
                "head_dim": spec.dims(layer, stack).head_dim,
            }
        )

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return state_map(*(
            Rule(f"{like.LAYER}.self_attn.{name}_norm.weight", f"{like.BLOCK}.attention.body.{name}_norm.weight")
            for name in "qk"
        ))  # fmt: skip

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        made = like.tiny(layer_norm_eps=1e-3, use_qk_norm=True, logit_scale=0.3, rope_theta=500.0)
        return {name: value for name, value in made.items() if name != "rms_norm_eps"}
