"""Phi-1 to Phi-2 (Microsoft 2023): attention and feed-forward in parallel on one norm, RoPE on part of a head, biases."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import usual
from anyformer.families.family import Preset, sizes
from anyformer.families.gpt2 import GELU_NEW
from anyformer.families.gptj import PARALLEL
from anyformer.families.key_groups import RopeKeys


class Phi(like.LlamaLike, kind="phi"):
    """Phi-1, Phi-1.5 and Phi-2."""

    base = PARALLEL | {
        "vocab": 51200,
        "context": 2048,
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.5},
    }
    presets = (
        Preset("phi-1.5", "Phi-1.5 (2023)", sizes(2048, 24, 32), 1_418_270_720,
               also=("phi-1_5",), hub=("microsoft/phi-1_5",),
               evidence="configs in training and serving code of two other projects",
               note="Phi-1 has the same shapes, as generally known"),
        Preset("phi-2", "Phi-2 (2023)",
               sizes(2560, 32, 32) | {"position.fraction": 0.4, "ids.bos": 50256, "ids.eos": [50256]}, 2_779_683_840,
               hub=("microsoft/phi-2",),
               evidence="configs in training, serving and analysis code of three other projects",
               note="32 of a head's 80 dimensions turn; ids as generally known"),
    )  # fmt: skip
    architectures = ("PhiForCausalLM",)
    keys = {
        **like.keys(2048, 24, 32, None, 8192, 51200, 2048, eps=1e-5, eps_key="layer_norm_eps"),
        **usual(resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=1, eos_token_id=2),
        "hidden_act": GELU_NEW,
        "qk_layernorm": like.qk_norm_key({"kind": "layernorm"}),
    }
    groups = (RopeKeys(fraction=0.5),)
    tensors = like.tensors(
        like.ATTENTION
        | {"o": "self_attn.dense", "q_norm": "self_attn.q_layernorm", "k_norm": "self_attn.k_layernorm"}
        | {"up": "mlp.fc1", "down": "mlp.fc2", "attention_inner": "input_layernorm", "final": "final_layernorm"}
    )
    small = {
        "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": None, "rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
    }  # fmt: skip
