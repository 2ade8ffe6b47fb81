"""Hunyuan (Tencent 2025), its dense models: LLaMA with a norm on each head of queries and keys, after their rotation."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import whole
from anyformer.families.key_groups import STRETCHED, RopeKeys
from anyformer.families.llama import Llama

HEAD_NORMS = {"q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"}


class HunYuanDense(Llama, kind="hunyuan_v1_dense"):
    """Hunyuan 0.5B to 7B."""

    base = Llama.base | {"attention": {"heads": 1, "qk_norm": {"kind": "rmsnorm", "eps": 1e-5, "when": "after"}}}
    architectures = ("HunYuanDenseV1ForCausalLM",)
    keys = {
        **like.keys(
            4096, 32, 32, None, 11008, 290943, 2048, eps=1e-5, qk_norm=True, head_dim=None, attention_bias=False
        ),
        **like.ids(1, 2, 0),
        "eod_token_id": whole(3, null=True),
    }
    groups = (RopeKeys(more=STRETCHED),)
    tensors = like.tensors(like.LLAMA | HEAD_NORMS)
    small = like.small(head_dim=12, rope_theta=500.0)
