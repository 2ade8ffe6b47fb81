"""ModernBERT as a decoder: the same layers, windows that look back only, and separate projections."""

from anyformer.families import modernbert, tasks
from anyformer.families.config_keys import flag


class ModernBertDecoder(modernbert.ModernBertLike, kind="modernbert_decoder"):
    """ModernBERT with a causal mask. A window of n in its files lets a token see the n / 2 last ones, itself included."""

    base = modernbert.BASE
    architectures = ("ModernBertDecoderForCausalLM",)
    tasks = modernbert.heads(
        SequenceClassification=tasks.Task(
            kind="sequence", tensors={}, head={"pool": "last"},
            keys={"classifier_bias": flag(False, ("head.dense_bias", "head.bias"))},
        )
    )  # fmt: skip
    model_type = "modernbert-decoder"
    window = "window({})"
    head = "lm_head"
    projections = {name: f"attn.{name}_proj" for name in "qkv"}
