"""OLMo (Groeneveld et al. 2024), the first: LLaMA with LayerNorms that learn nothing, and optional clipping."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import number, usual
from anyformer.families.family import Preset, sizes


class Olmo(like.LlamaLike, kind="olmo"):
    """The first OLMo."""

    base = like.BASE | {"norm": {"kind": "layernorm", "eps": 1e-5, "gain": "none", "bias": False}}
    presets = (
        Preset("olmo-1b", "OLMo 1B (2024)", sizes(2048, 16, 16, 16, 8192, 50304, 2048) | {"head.tied": True},
               1_176_764_416, evidence="the publisher's training file and two other projects",
               note="trained from an init that depends on the layer, which this spec does not repeat"),
        Preset("olmo-7b", "OLMo 7B (2024)", sizes(4096, 32, 32, 32, 11008, 50304, 2048), 6_888_095_744,
               published="6.9B by general knowledge of the paper; no exact count was found",
               evidence="the publisher's training file and two other projects", note="init as in OLMo 1B"),
        Preset("olmo-7b-0724", "OLMo 7B 0724 (2024)",
               sizes(4096, 32, 32, 32, 11008, 50304, 4096) | {"attention.clip_qkv": 8.0}, 6_888_095_744,
               published="6.9B by general knowledge; no exact count was found",
               evidence="the publisher's training file",
               note="queries, keys and values clipped at 8, and twice the context of the first 7B"),
    )  # fmt: skip
    architectures = ("OlmoForCausalLM",)
    # The class has a constant for eps.
    keys = {
        **like.keys(4096, 32, 32, None, 11008, 50304, 2048, eps=None, attention_bias=False),
        **usual(pad_token_id=1, eos_token_id=50279),
        "clip_qkv": number(None, "attention.clip_qkv"),
    }
    tensors = like.tensors(like.ATTENTION | like.FFN)
    # So low that it clips the numbers of a small model.
    small = like.small(clip_qkv=0.7)
