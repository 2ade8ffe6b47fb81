"""ModernBERT as a decoder: the same layers, windows that look back only, and separate projections."""

from anyformer.families import modernbert


class ModernBertDecoder(modernbert.ModernBertLike, kind="modernbert_decoder"):
    """ModernBERT with a causal mask. A window of n in its files lets a token see the n / 2 last ones, itself included."""

    base = modernbert.BASE
    architectures = ("ModernBertDecoderForCausalLM",)
    model_type = "modernbert-decoder"
    window = "window({})"
    head = "lm_head"
    projections = {name: f"attn.{name}_proj" for name in "qkv"}
