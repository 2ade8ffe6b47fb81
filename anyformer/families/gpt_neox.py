"""GPT-NeoX (Black et al. 2022): attention and feed-forward in parallel, a norm each; RoPE on a quarter of each head."""

from __future__ import annotations

from typing import Any

from anyformer.families.bloom import MEGATRON
from anyformer.families.config_keys import SpecView, activation, flag, number, special_ids, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset
from anyformer.families.gpt2 import BASE
from anyformer.families.rope_keys import ROPE_KEYS, read_rope, rotary_fraction, write_rope
from anyformer.families.statemap import PerHead, decoder_map
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec


def _pythia(
    size: str,
    width: int,
    depth: int,
    heads: int,
    params: int,
    vocab: int = 50304,
    *,
    by: str = "on its card",
    note: str = "",
) -> Preset:
    return Preset(
        name=f"pythia-{size}",
        hub=(f"EleutherAI/pythia-{size}",),
        title=f"Pythia {size.upper()} (2023)",
        changes={
            "width": width, "depth": depth, "attention.heads": heads, "vocab": vocab, "context": 2048,
            "ids.bos": 0, "ids.eos": [0],
        },
        params=params,
        published=f"{params:,} {by}",
        evidence="the authors' training files and tables and one other project",
        note=note,
    )  # fmt: skip


class GPTNeoX(Family, kind="gpt_neox"):
    """GPT-NeoX-20B, and the Pythia models in the same format."""

    base = BASE | {
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.25},
        "ffn": {"kind": "gelu", "bias": True},
        "block": {"wiring": "parallel2"},
        "head": {"kind": "lm"},
        "init": {"kind": "small"},
    }
    presets = (
        Preset("gpt-neox-20b", "GPT-NeoX 20B (2022)",
               {"width": 6144, "depth": 44, "attention.heads": 64, "vocab": 50432, "context": 2048,
                "ffn.kind": "gelu_tanh", "ffn.width": 24576, "ffn.bias": True},
               20_554_567_680, hub=("EleutherAI/gpt-neox-20b",), published="20,554,567,680 on its card",
               evidence="the authors' training file and one other project",
               note="trained with the fused kernel, whose GELU is the one by tanh; the public class reads 'gelu' by "
               "erf"),
        _pythia("14m", 128, 6, 4, 14_067_712, by="in released files",
                note="context 2048 by the training file; another project lists 512"),
        _pythia("31m", 256, 6, 8, 30_494_720, by="in released files",
                note="context 2048 by the training file; another project lists 1024"),
        _pythia("70m", 512, 6, 8, 70_426_624,
                note="trained with a fused GELU by tanh; released files say 'gelu', which the public class reads by erf"),
        _pythia("160m", 768, 12, 12, 162_322_944),
        _pythia("410m", 1024, 24, 16, 405_334_016),
        _pythia("1b", 2048, 16, 8, 1_011_781_632),
        _pythia("1.4b", 2048, 24, 16, 1_414_647_808),
        _pythia("2.8b", 2560, 32, 32, 2_775_208_960),
        _pythia("6.9b", 4096, 32, 32, 6_857_302_016, 50432),
        _pythia("12b", 5120, 36, 40, 11_846_072_320, 50688,
                note="36 layers, which the count confirms; a later copy of the training file says 40"),
    )  # fmt: skip
    architectures = ("GPTNeoXForCausalLM",)
    model_type = "gpt_neox"
    keys = {
        **ROPE_KEYS,
        **special_ids(bos=0, eos=2),
        "vocab_size": whole(50432, "vocab"),
        "hidden_size": whole(6144, "width"),
        "num_hidden_layers": whole(44, "depth"),
        "num_attention_heads": whole(64, "attention.heads"),
        "intermediate_size": whole(24576, "ffn.width"),
        "hidden_act": activation("gelu", more={"ffn.bias": True}),
        "attention_dropout": number(0.0, "attention.dropout"),
        # Older names, which the public class does not read.
        "attention_probs_dropout_prob": number(0.0),
        "hidden_dropout_prob": number(0.0),
        "hidden_dropout": number(0.0, ("block.dropout", "embed.dropout")),
        "max_position_embeddings": whole(2048, "context"),
        "initializer_range": number(0.02, "init.std"),
        "layer_norm_eps": number(1e-5, "norm.eps"),
        "tie_word_embeddings": flag(False, "head.tied"),
        "use_parallel_residual": flag(True, "block.wiring", on="parallel2", off="serial"),
        "attention_bias": flag(True, "attention.bias"),
        "rotary_pct": number(None),
        "rotary_emb_base": number(None),
    }
    tensors = decoder_map(
        "gpt_neox",
        "layers",
        {"qkv": "attention.query_key_value", "o": "attention.dense"} | MEGATRON,
        tokens="embed_in",
        final="final_layer_norm",
        op=PerHead(),
        ignored=(
            r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
            r"(gpt_neox\.)?rotary_emb\.inv_freq",
        ),
        # What the head was called before it was called like everybody's.
        renamed={"embed_out.weight": "lm_head.weight"},
    )
    small = {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 2, "max_position_embeddings": 64, "rotary_pct": 0.25, "rotary_emb_base": 500,
        "layer_norm_eps": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        # This family has spelled two keys in its own way.
        theta = 10000.0 if c["rotary_emb_base"] is None else c["rotary_emb_base"]
        share = 0.25 if c["rotary_pct"] is None else c["rotary_pct"]
        rope = read_rope(c, context=c["max_position_embeddings"], theta=theta, fraction=share)
        return super().read(c) | rope | {"init.kind": "normal"}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        view = SpecView.of(spec)
        position, share = view.layer.position, rotary_fraction(view.layer.position, view.dims.head_dim)
        own = {"rotary_pct": share, "rotary_emb_base": position.theta} if isinstance(position, Rope) else {}
        return super().write(spec) | write_rope(position, fraction=share) | own
