"""GLM-4-0414 (2025): GLM-4 with norms before and after each branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import glm
from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values
from anyformer.families.family import Family, Preset
from anyformer.families.llama import sizes
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.model import ModelSpec


class Glm4(Family, kind="glm4"):
    """GLM-4-0414."""

    base = glm.GLM | {"norm": {"kind": "rmsnorm", "eps": 1e-5, "placement": "sandwich"}}
    presets = (
        Preset(
            name="glm-4-9b-0414", title="GLM-4 9B 0414 (2025)",
            changes=sizes(4096, 40, 32, 2, 13696, 151552, 32768) | glm.IDS,
            params=9_400_279_040,
            published="9,400,279,040 in released files",
            evidence="a training script of another project; that queries, keys and values have biases follows from the "
            "count; ids are the defaults of the public class",
            note="the 32B of the same series has no biases",
        ),
    )  # fmt: skip
    architectures = ("Glm4ForCausalLM",)
    model_type = "glm4"
    keys = glm.KEYS

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return glm.read(c)

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        return glm.write(spec)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        norms = (
            *like.PRE_NORMS,
            Rule(f"{like.LAYER}.post_self_attn_layernorm.weight", f"{like.BLOCK}.attention.outer.weight"),
            Rule(f"{like.LAYER}.post_mlp_layernorm.weight", f"{like.BLOCK}.ffn.outer.weight"),
        )
        return like.state_map(*like.ATTENTION, *like.FUSED_FFN, *norms)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(head_dim=12, rope_theta=500.0)
