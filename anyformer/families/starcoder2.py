"""StarCoder2 (Lozhkov et al. 2024): LayerNorm first, grouped keys, RoPE in halves, a window, biases everywhere."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import each, flag, must, number, text, whole
from anyformer.families.family import series, sizes
from anyformer.families.gpt2 import BASE
from anyformer.families.key_groups import RopeKeys, WindowKeys


class StarCoder2(like.LlamaLike, kind="starcoder2"):
    """StarCoder2."""

    base = BASE | {
        "position": {"kind": "rope", "theta": 1e4},
        "init": {"kind": "normal", "std": 0.018042},
        "ids": {"bos": 0, "eos": [0]},
    }
    presets = series("starcoder2-{}", "StarCoder2 {SIZE} (2024)",
        ("3b", sizes(3072, 30, 24, 2, 12288) | {"position.theta": 999999.4420358813}, 3_030_371_328, "",
         "theta is the released value to the last digit; ids as generally known",
         "the config in one other project and the log of a conversion in a public issue"),
        ("7b", sizes(4608, 32, 36, 4, 18432) | {"position.theta": 1e6}, 7_173_923_840, "", "ids as generally known",
         "configs in two other projects"),
        ("15b", sizes(6144, 40, 48, 4, 24576) | {"position.theta": 1e5, "head.tied": False}, 15_957_889_024,
         "only its name, which says 15B; lists say 15.7B, which would be a tied head: 15,655,899,136",
         "16.0B; ids as generally known", "the config in one other project; that the head is its own from a public "
         "issue, in which only 3B and 7B lack one"),
        changes={"vocab": 49152, "context": 16384, "attention.pattern": "window(4096)"},
    )  # fmt: skip
    architectures = ("Starcoder2ForCausalLM",)
    keys = {
        **like.keys(
            3072, 30, 24, 2, 12288, 49152, 4096, eps=1e-5, eps_key="norm_epsilon", act="gelu_pytorch_tanh",
            gated=False, std=0.018042, tied=True, residual_dropout=0.0, embedding_dropout=0.0,
            bos_token_id=50256, eos_token_id=50256,
        ),
        "num_key_value_heads": whole(2, "attention.kv_heads", derived=True),
        "use_bias": flag(True, ("attention.bias", "ffn.bias")),
        # What released files say besides, and the public class takes for granted or does not read.
        "activation_function": text(None),
        "layer_norm_epsilon": number(None),
        "mlp_type": must("default"),
        "norm_type": must("layer_norm"),
        "scale_attn_weights": must(True),
        **each(flag(True), "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
    }  # fmt: skip
    groups = (RopeKeys(), WindowKeys(listed=False))
    tensors = like.tensors(like.ATTENTION | {"up": "mlp.c_fc", "down": "mlp.c_proj"} | like.PRE_NORMS)
    small = like.small(hidden_size=36, num_attention_heads=6, rope_theta=500.0, sliding_window=5, pad_token_id=None)
