"""nanochat (Karpathy 2025): norms that learn nothing, on heads after their rotation too, squared ReLU, capped logits."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import number
from anyformer.families.statemap import Rule
from anyformer.families.tensor_ops import HalvesSwapped

NORM: dict[str, Any] = {"kind": "rmsnorm", "eps": 1e-6, "gain": "none"}
TURNED = tuple(
    Rule(
        f"model.layers.{{i}}.self_attn.{name}_proj.{{p}}",
        f"decoder.blocks.{{i}}.attention.body.{name}.{{p}}",
        HalvesSwapped(),
    )
    for name in "qk"
)
"""It rotates the other way round."""


class NanoChat(like.LlamaLike, kind="nanochat"):
    """nanochat."""

    base = like.BASE | {
        "attention": {"heads": 1, "qk_norm": NORM | {"when": "after"}},
        "norm": NORM | {"embedding": True},
        "ffn": {"kind": "relu2"},
    }
    architectures = ("NanoChatForCausalLM",)
    keys = {
        **like.keys(768, 12, 6, None, 8192, 50304, 2048, qk_norm=True, act="relu2", gated=False, attention_bias=False),
        **like.ids(0, 1, 1),
        "final_logit_softcapping": number(15.0, "head.softcap", null=True),
    }
    tensors = like.tensors(
        {name: like.ATTENTION[name] for name in "vo"} | {"up": "mlp.fc1", "down": "mlp.fc2"}, *TURNED
    )
    # A cap so low that it bends the numbers of a small model.
    small = like.small(rope_theta=500.0, final_logit_softcapping=2.0)
