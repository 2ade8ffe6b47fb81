"""Jais 2 (Inception 2025): LLaMA with LayerNorm, squared ReLU without a gate, and biases everywhere."""

from anyformer.families import llama_like as like
from anyformer.families.llama import Llama


class Jais2(Llama, kind="jais2"):
    """Jais 2."""

    base = Llama.base | {"norm": {"kind": "layernorm", "eps": 1e-5}, "ffn": {"kind": "relu2"}}
    architectures = ("Jais2ForCausalLM",)
    keys = like.keys(
        3328, 32, 26, None, 26624, 150272, 8192, eps=1e-5, eps_key="layer_norm_eps", act="relu2", gated=False,
        head_dim=None, attention_bias=True, mlp_bias=True, bos_token_id=0, eos_token_id=150024,
    )  # fmt: skip
