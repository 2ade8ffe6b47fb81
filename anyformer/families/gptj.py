"""GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward in parallel on one norm, RoPE in pairs on part of a head."""

from dataclasses import replace
from typing import Any

from anyformer.families.config_keys import SpecView, each, required, usual, whole
from anyformer.families.family import Family, Preset, sizes
from anyformer.families.gpt2 import BASE, GELU_NEW, size_keys
from anyformer.families.statemap import decoder_map
from anyformer.parts.positions.rope import Rope

PARALLEL: dict[str, Any] = BASE | {"block": {"wiring": "parallel"}, "head": {"kind": "lm", "bias": True}}
"""What GPT-J and Phi share."""
PARTS = {
    "o": "attn.out_proj", "up": "mlp.fc_in", "down": "mlp.fc_out", "attention_inner": "ln_1", "tokens": "wte",
    "final": "ln_f",
}  # fmt: skip
"""All parts but queries, keys and values."""
UNREAD = r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias|causal_mask|embed_positions)"
IDLE = "false has no effect in the public class, so this file can't mean what it says"


def _rotated(view: SpecView) -> int:
    """How many dimensions of a head turn; all where the position is no RoPE, which reading back will then name."""
    position, head_dim = view.layer.position, view.dims.head_dim
    return position.rotated(head_dim) if isinstance(position, Rope) else head_dim


class GPTJ(Family, kind="gptj"):
    """GPT-J."""

    base = PARALLEL | {
        "attention": {"heads": 1},
        "position": {"kind": "rope", "theta": 1e4, "layout": "interleaved", "dims": 64},
    }
    presets = (
        Preset("gpt-j-6b", "GPT-J 6B (2021)", sizes(4096, 28, 16)
               | {"vocab": 50400, "context": 2048, "ids.bos": 50256, "ids.eos": [50256]}, 6_050_882_784,
               hub=("EleutherAI/gpt-j-6b",), published="6,053,381,344 on its card",
               evidence="the authors' training code and two other projects",
               note="the card counts what 8 shards each held again: 7 x (28 x 3 + 2) x 4096 for norms and output "
               "biases and 8 x 4096 for an input bias, which is the difference to the last number"),
    )  # fmt: skip
    architectures = ("GPTJForCausalLM",)
    keys = {
        **size_keys(50400, 2048, 4096, 28, 16, dropout=0.0, tied=False, n_inner=None),
        **usual(bos_token_id=50256, eos_token_id=50256),
        "activation_function": GELU_NEW,
        "rotary_dim": replace(whole(64, "position.dims"), write=_rotated),
        **each(required(True, IDLE), "rotary", "scale_attn_weights"),
    }
    tensors = decoder_map(
        "transformer.h",
        PARTS | {name: f"attn.{name}_proj" for name in "qkv"},
        ignored=(UNREAD,),
    )
    small = {"n_head": 2, "rotary_dim": 6}
