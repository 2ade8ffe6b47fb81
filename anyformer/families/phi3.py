"""Phi-3 mini and medium, and Phi-4 (2024): LLaMA's design, stored with fused projections; some heads turn in part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.family import Family, Preset
from anyformer.families.keys import Values, ids, must, number, whole
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.windows import LOCAL, read_windows, window_of
from anyformer.parts.positions.rope import Rope
from anyformer.parts.positions.rope_scaling import LongRope
from anyformer.specs.model import ModelSpec


class Phi3(Family, kind="phi3"):
    """Phi-3 mini and medium, Phi-4."""

    base = BASE
    presets = (
        Preset(
            name="phi-3-mini-4k", also=("phi-3-mini",), title="Phi-3 mini 4k (2024)",
            changes=sizes(3072, 32, 32, 32, 8192, 32064, 4096) | {"attention.pattern": "window(2047)", "ids.bos": 1, "ids.eos": [32000], "ids.pad": 32000},
            params=3_821_079_552,
            published="3,821,079,552 in released files",
            evidence="the released config as quoted in two other projects, and a third",
            note="a window of 2047 as in the released config; another project writes 2048, as the kernel it was "
            "trained with left the token itself out of the count",
        ),
    )  # fmt: skip
    architectures = ("Phi3ForCausalLM",)
    model_type = "phi3"
    keys = like.keys(
        vocab=32064, width=3072, ffn=8192, depth=32, heads=32, kv_heads=None, context=4096, eps=1e-5
    ) | {
        "resid_pdrop": number(0.0),
        "embd_pdrop": number(0.0),
        "original_max_position_embeddings": whole(4096),
        "sliding_window": whole(None),
        # Choices that some files state and the public class does not have.
        "attention_bias": must(False),
        "mlp_bias": must(False),
        "lm_head_bias": must(False),
        "full_attn_mod": must(1),
        "interpolate_factor": must(1),
        "pad_token_id": ids(32000),
        "bos_token_id": ids(1),
        "eos_token_id": ids(32000),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        context, window = c["max_position_embeddings"], c["sliding_window"]
        own = {"block.dropout": float(c["resid_pdrop"]), "embed.dropout": float(c["embd_pdrop"])}
        return (
            like.read(c)
            | read_rope(
                c,
                context=context,
                fraction=1.0,
                original=c["original_max_position_embeddings"],
                kinds=("default", "longrope"),
            )
            | read_windows(c, [] if window is None else [LOCAL], window)
            | own
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims, position = spec.dims(layer, stack), layer.position
        share, original = 1.0, spec.context
        if isinstance(position, Rope):
            share = position.rotated(dims.head_dim) / dims.head_dim
            original = position.scaling.original if isinstance(position.scaling, LongRope) else spec.context
        own = {
            "resid_pdrop": layer.block.dropout,
            "embd_pdrop": spec.embed.dropout,
            "original_max_position_embeddings": original,
            "sliding_window": window_of(spec)[0],
        }
        return like.write(spec) | write_rope(position, fraction=share) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        body = f"{like.BLOCK}.attention.body"
        return like.state_map(
            Rule(f"{like.LAYER}.self_attn.qkv_proj.weight", tuple(f"{body}.{name}.weight" for name in "qkv")),
            Rule(f"{like.LAYER}.self_attn.o_proj.weight", f"{body}.o.weight"),
            Rule(
                f"{like.LAYER}.mlp.gate_up_proj.weight",
                (f"{like.BLOCK}.ffn.body.gate.weight", f"{like.BLOCK}.ffn.body.up.weight"),
            ),
            Rule(f"{like.LAYER}.mlp.down_proj.weight", f"{like.BLOCK}.ffn.body.down.weight"),
            *like.PRE_NORMS,
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(partial_rotary_factor=0.5, sliding_window=6)
