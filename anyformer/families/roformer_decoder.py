"""RoFormer as a decoder: the same layers, each token seeing those before it."""

from __future__ import annotations

from typing import Any

from anyformer.families import bert_like as like
from anyformer.families import roformer
from anyformer.families.config_keys import flag
from anyformer.families.config_values import Values
from anyformer.specs.model import ModelSpec


class RoFormerDecoder(roformer.RoFormerLike, kind="roformer_decoder"):
    """RoFormer with a causal mask. No such model is published; its class is."""

    base = roformer.BASE | {"topology": "decoder"}
    architectures = ("RoFormerForCausalLM",)
    second = True
    keys = roformer.KEYS | {"is_decoder": flag(False)}
    small = like.small(embedding_size=20, is_decoder=True)

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        if not c["is_decoder"]:
            c.refuse("is_decoder", "without it this class lets tokens see later ones", "true")
        return super().read(c)

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | {"is_decoder": True}
