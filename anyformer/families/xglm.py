"""XGLM (Lin et al. 2021): GPT-2's design with sines for positions, scaled embeddings and OPT's names."""

from typing import Any

from anyformer.families import opt
from anyformer.families.config_keys import activation, each, flag, number, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family
from anyformer.families.gpt2 import BASE
from anyformer.families.statemap import decoder_map


class XGLM(Family, kind="xglm"):
    """XGLM 564M to 7.5B."""

    base = BASE | {
        "position": {"kind": "sinusoidal", "layout": "halves", "endpoint": True, "offset": 2},
        "ffn": {"kind": "gelu", "bias": True},
        "embed": {"kind": "tokens", "scale": "sqrt(width)"},
    }
    architectures = ("XGLMForCausalLM",)
    keys = {
        **usual(vocab_size=256008, max_position_embeddings=2048, d_model=1024, ffn_dim=4096, num_layers=24),
        **usual(dropout=0.1, attention_dropout=0.1, init_std=0.02, tie_word_embeddings=True),
        **usual(pad_token_id=1, bos_token_id=0, eos_token_id=2),
        "attention_heads": whole(16, "attention.heads"),
        "decoder_start_token_id": whole(2, null=True),
        "activation_function": activation("gelu", more={"ffn.bias": True}),
        "scale_embedding": flag(True, "embed.scale", on="sqrt(width)", off=1.0),
        # They act in training only.
        **each(number(0.0), "activation_dropout", "layerdrop"),
    }
    tensors = decoder_map(
        "model.layers",
        opt.PARTS | opt.norms("inner") | {"final": "layer_norm"},
        ignored=(r"(model\.)?embed_positions\.weights",),
    )
    small = {"pad_token_id": 1, "bos_token_id": 0}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        pad = c["pad_token_id"]
        if isinstance(pad, int) and pad > 1:
            c.refuse("pad_token_id", f"{pad} takes the sines of position {pad - 2} away in the public class", "0 or 1")
        return super().read(c)
