"""AFM (Arcee 2025): LLaMA with a feed-forward of squared ReLU and no gate."""

from anyformer.families import llama_like as like
from anyformer.families.llama import Llama


class Arcee(Llama, kind="arcee"):
    """AFM-4.5B."""

    base = Llama.base | {"ffn": {"kind": "relu2"}}
    architectures = ("ArceeForCausalLM",)
    keys = like.keys(
        2560, 32, 32, None, 18432, 32000, 4096, eps=1e-5, act="relu2", gated=False,
        head_dim=None, attention_bias=False, mlp_bias=False, bos_token_id=128000, eos_token_id=128001,
    )  # fmt: skip
    small = like.small(head_dim=12)
