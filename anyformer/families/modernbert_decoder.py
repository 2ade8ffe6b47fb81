"""ModernBERT as a decoder: the same layers, windows that look back only, and separate projections."""

from __future__ import annotations

from anyformer.families import modernbert
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


class ModernBertDecoder(modernbert.ModernBertLike, kind="modernbert_decoder"):
    """ModernBERT with a causal mask. A window of n in its files lets a token see the n / 2 last ones, itself included."""

    base = modernbert.BASE
    architectures = ("ModernBertDecoderForCausalLM",)
    model_type = "modernbert-decoder"
    window = "window({})"

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return modernbert.weights(spec, "lm_head", {name: f"attn.{name}_proj" for name in "qkv"})
