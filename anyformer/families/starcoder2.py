"""StarCoder2 (Lozhkov et al. 2024): LayerNorm first, grouped keys, RoPE in halves, a window, biases everywhere."""

from __future__ import annotations

from anyformer.families import llama_like as like
from anyformer.families.config_keys import flag, must, number, special_ids, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.gpt2 import BASE
from anyformer.families.llama_like import sizes
from anyformer.families.rope_keys import RopeKeys
from anyformer.families.window_keys import WindowKeys


def _preset(
    size: str, width: int, depth: int, heads: int, kv_heads: int, theta: float, params: int, published: str,
    evidence: str, note: str = "", tied: bool = True,
) -> Preset:  # fmt: skip
    return Preset(
        name=f"starcoder2-{size}",
        title=f"StarCoder2 {size.upper()} (2024)",
        changes=sizes(width, depth, heads, kv_heads, 4 * width, 49152, 16384)
        | {"position.theta": theta, "attention.pattern": "window(4096)", "head.tied": tied},
        params=params,
        published=published,
        evidence=evidence,
        note=note,
    )


class StarCoder2(Family, kind="starcoder2"):
    """StarCoder2."""

    base = BASE | {
        "position": {"kind": "rope", "theta": 1e4},
        "init": {"kind": "normal", "std": 0.018042},
        "ids": {"bos": 0, "eos": [0]},
    }
    presets = (
        _preset("3b", 3072, 30, 24, 2, 999999.4420358813, 3_030_371_328, "3,030,371,328 in released files",
                "the config in one other project and the log of a conversion in a public issue",
                "theta is the released value to the last digit; ids as generally known"),
        _preset("7b", 4608, 32, 36, 4, 1e6, 7_173_923_840, "7,173,923,840 in released files",
                "configs in two other projects", "ids as generally known"),
        _preset("15b", 6144, 40, 48, 4, 1e5, 15_957_889_024,
                "only its name, which says 15B; lists say 15.7B, which would be a tied head: 15,655,899,136",
                "the config in one other project; that the head is its own from a public issue, in which only 3B and 7B lack one",
                "16.0B; ids as generally known", tied=False),
    )  # fmt: skip
    architectures = ("Starcoder2ForCausalLM",)
    model_type = "starcoder2"
    keys = {
        **like.keys(
            3072,
            30,
            24,
            2,
            12288,
            49152,
            4096,
            eps=1e-5,
            eps_key="norm_epsilon",
            act="gelu_pytorch_tanh",
            gated=False,
            std=0.018042,
            tied=True,
        ),
        **special_ids(bos=50256, eos=50256),
        "num_key_value_heads": whole(2, "attention.kv_heads", derived=True),
        "residual_dropout": number(0.0, "block.dropout"),
        "embedding_dropout": number(0.0, "embed.dropout"),
        "use_bias": flag(True, ("attention.bias", "ffn.bias")),
        # What released files say besides, and the public class takes for granted or does not read.
        "activation_function": text(None),
        "layer_norm_epsilon": number(None),
        "mlp_type": must("default"),
        "norm_type": must("layer_norm"),
        "scale_attn_weights": must(True),
        "attention_softmax_in_fp32": flag(True),
        "scale_attention_softmax_in_fp32": flag(True),
    }
    groups = (RopeKeys(), WindowKeys(listed=False))
    tensors = like.tensors(like.ATTENTION | {"up": "mlp.c_fc", "down": "mlp.c_proj"} | like.PRE_NORMS)
    small = {
        "vocab_size": 61, "hidden_size": 36, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 500.0,
        "norm_epsilon": 1e-3, "sliding_window": 5, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
