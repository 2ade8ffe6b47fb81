"""RoFormer as a decoder: the same layers, each token seeing those before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import roformer
from anyformer.families.config_keys import Values, flag
from anyformer.families.family import Family
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


class RoFormerDecoder(Family, kind="roformer_decoder"):
    """RoFormer with a causal mask. No such model is published; its class is."""

    base = roformer.BASE | {"topology": "decoder"}
    architectures = ("RoFormerForCausalLM",)
    model_type = "roformer"
    second = True
    keys = roformer.KEYS | {"is_decoder": flag(False)}

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        if not c["is_decoder"]:
            c.refuse("is_decoder", "without it this class lets tokens see later ones", "true")
        return roformer.read(c)

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        return roformer.write(spec) | {"is_decoder": True}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return roformer.weights(spec)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return roformer.tiny(is_decoder=True)
