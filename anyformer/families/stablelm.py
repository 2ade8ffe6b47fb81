"""StableLM (2023): LayerNorm, RoPE on a quarter of each head, SwiGLU; its largest runs both branches in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, must, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, share_of, write_rope
from anyformer.families.statemap import Rule, Slice, StateMap
from anyformer.specs.model import ModelSpec

EPS = "layer_norm_eps"


def _head_norm(eps: float) -> dict[str, Any]:
    """Queries and keys normed in each head, with a gain of its own."""
    return {"kind": "layernorm", "eps": eps, "bias": False, "scope": "heads"}


class StableLM(Family, kind="stablelm"):
    """StableLM 3B 4E1T and StableLM 2."""

    base = BASE | {
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.25},
    }
    presets = (
        Preset(
            name="stablelm-3b-4e1t", also=("stablelm-3b",), title="StableLM 3B 4E1T (2023)",
            changes=sizes(2560, 32, 32, 32, 6912, 50304, 4096),
            params=2_795_443_200,
            published="2,795,443,200 on the publisher's page and in released files",
            evidence="the publisher's training file and two other projects",
        ),
        Preset(
            name="stablelm-2-12b", title="StableLM 2 12B (2024)",
            changes=sizes(5120, 40, 32, 8, 13824, 100352, 4096)
            | {"block.wiring": "parallel", "attention.qk_norm": _head_norm(1e-5)},
            params=12_143_185_920,
            published="12,143,605,760 on its card, which counts the 41 norms twice, once for each half of the machine",
            evidence="the publisher's training file and card; feed-forward and vocabulary from general knowledge, which "
            "the count confirms",
            note="norms have biases, as the count says; the training file says that they have none",
        ),
    )  # fmt: skip
    architectures = ("StableLmForCausalLM",)
    model_type = "stablelm"
    keys = like.keys(
        vocab=50304, width=2560, ffn=6912, depth=32, heads=32, kv_heads=32, context=4096, eps=1e-5, eps_key=EPS
    ) | {
        "use_qkv_bias": flag(False),
        "qk_layernorm": flag(False),
        "use_parallel_residual": flag(False),
        # It would act on the feed-forward only, which a spec has no place for.
        "hidden_dropout": must(0.0),
        # Another word for the heads in released files; the public class only checks that it divides the width.
        "num_heads": whole(None),
        "bos_token_id": ids(0),
        "eos_token_id": ids(0),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        own = {
            "attention.bias": "qkv" if c["use_qkv_bias"] else "",
            "attention.qk_norm": _head_norm(float(c[EPS])) if c["qk_layernorm"] else None,
            "block.wiring": "parallel" if c["use_parallel_residual"] else "serial",
        }
        rope = read_rope(c, context=c["max_position_embeddings"], fraction=0.25)
        return like.read(c, eps_key=EPS) | rope | own

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        own = {
            "use_qkv_bias": bool(layer.attention.bias),
            "qk_layernorm": layer.attention.qk_norm is not None,
            "use_parallel_residual": layer.block.wiring == "parallel",
        }
        share = share_of(layer.position, spec.dims(layer, stack).head_dim)
        return like.write(spec, eps_key=EPS) | write_rope(layer.position, fraction=share) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        heads = max(layer.attention.heads for layer in spec.stacks[-1].layers)
        kv_heads = max(layer.attention.kv_heads or heads for layer in spec.stacks[-1].layers)
        norms = (
            Rule(
                f"{like.LAYER}.self_attn.{name}_layernorm.norms.{i}.weight",
                f"{like.BLOCK}.attention.body.{name}_norm.weight",
                Slice(i),
            )
            for name, count in (("q", heads), ("k", kv_heads))
            for i in range(count)
        )
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS, *norms)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        small = like.tiny(qk_layernorm=True, use_parallel_residual=True, rope_theta=500.0, partial_rotary_factor=0.25)
        return {EPS if name == "rms_norm_eps" else name: value for name, value in small.items()}
