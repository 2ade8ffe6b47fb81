"""ModernBERT as a decoder: the same layers, windows that look back only, and separate projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import modernbert
from anyformer.families.config_keys import Values
from anyformer.families.family import Family
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.model import ModelSpec


class ModernBertDecoder(Family, kind="modernbert_decoder"):
    """ModernBERT with a causal mask. A window of n in its files lets a token see the n / 2 last ones, itself included."""

    base = modernbert.BASE
    architectures = ("ModernBertDecoderForCausalLM",)
    model_type = "modernbert-decoder"
    keys = modernbert.KEYS

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return modernbert.read(c, f"window({c['local_attention'] // 2})")

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        return modernbert.write(spec)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        rules = (
            Rule(f"model.layers.{{i}}.attn.{name}_proj.{{p}}", f"decoder.blocks.{{i}}.attention.body.{name}.{{p}}")
            for name in "qkv"
        )
        return modernbert.weights(spec, "lm_head", *rules)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return modernbert.tiny()
