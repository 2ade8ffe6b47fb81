"""GPT-NeoX (Black et al. 2022): attention and feed-forward in parallel, a norm each; RoPE on a quarter of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, activation_of, flag, ids, number, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.rope_keys import ROPE_KEYS, read_rope, share_of, write_rope
from anyformer.families.statemap import PerHead, Rule, StateMap
from anyformer.parts.positions.rope import Rope
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

LAYER, BLOCK = "gpt_neox.layers.{i}", "decoder.blocks.{i}"


def _pythia(
    size: str,
    width: int,
    depth: int,
    heads: int,
    params: int,
    vocab: int = 50304,
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

    base = {
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.25},
        "ffn": {"kind": "gelu", "bias": True},
        "block": {"wiring": "parallel2"},
        "head": {"kind": "lm"},
        "init": {"kind": "small"},
    }
    presets = (
        Preset(
            name="gpt-neox-20b", hub=("EleutherAI/gpt-neox-20b",), title="GPT-NeoX 20B (2022)",
            changes={
                "width": 6144, "depth": 44, "attention.heads": 64, "ffn.kind": "gelu_tanh", "ffn.width": 24576,
                "ffn.bias": True, "vocab": 50432, "context": 2048,
            },
            params=20_554_567_680,
            published="20,554,567,680 on its card",
            evidence="the authors' training file and one other project",
            note="trained with the fused kernel, whose GELU is the one by tanh; the public class reads 'gelu' by erf",
        ),
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
    keys = ROPE_KEYS | {
        "vocab_size": whole(50432),
        "hidden_size": whole(6144),
        "num_hidden_layers": whole(44),
        "num_attention_heads": whole(64),
        "intermediate_size": whole(24576),
        "hidden_act": text("gelu"),
        "attention_dropout": number(0.0),
        # Older names, which the public class does not read.
        "attention_probs_dropout_prob": number(0.0),
        "hidden_dropout_prob": number(0.0),
        "hidden_dropout": number(0.0),
        "max_position_embeddings": whole(2048),
        "initializer_range": number(0.02),
        "layer_norm_eps": number(1e-5),
        "tie_word_embeddings": flag(False),
        "use_parallel_residual": flag(True),
        "attention_bias": flag(True),
        "rotary_pct": number(None),
        "rotary_emb_base": number(None),
        "bos_token_id": ids(0),
        "eos_token_id": ids(2),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        # This family has spelled two keys in its own way.
        theta, share = c["rotary_emb_base"], c["rotary_pct"]
        return read_rope(
            c,
            context=c["max_position_embeddings"],
            theta=10000.0 if theta is None else theta,
            fraction=0.25 if share is None else share,
        ) | {
            "vocab": c["vocab_size"],
            "width": c["hidden_size"],
            "depth": c["num_hidden_layers"],
            "context": c["max_position_embeddings"],
            "attention.heads": c["num_attention_heads"],
            "attention.bias": "qkvo" if c["attention_bias"] else "",
            "attention.dropout": float(c["attention_dropout"]),
            "block.dropout": float(c["hidden_dropout"]),
            "block.wiring": "parallel2" if c["use_parallel_residual"] else "serial",
            "embed.dropout": float(c["hidden_dropout"]),
            "ffn.kind": plain_ffn(c, "hidden_act"),
            "ffn.bias": True,
            "ffn.width": c["intermediate_size"],
            "norm.eps": float(c["layer_norm_eps"]),
            "head.tied": c["tie_word_embeddings"],
            "init.kind": "normal",
            "init.std": float(c["initializer_range"]),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims, position = spec.dims(layer, stack), layer.position
        own: dict[str, Any] = {}
        if isinstance(position, Rope):
            share = share_of(position, dims.head_dim)
            own = write_rope(position, fraction=share) | {"rotary_pct": share, "rotary_emb_base": position.theta}
        return own | {
            "vocab_size": spec.vocab,
            "hidden_size": spec.width,
            "num_hidden_layers": stack.depth,
            "num_attention_heads": dims.heads,
            "intermediate_size": dims.ffn_width,
            "hidden_act": activation_of(layer.ffn, gated=False),
            "attention_dropout": layer.attention.dropout,
            "hidden_dropout": layer.block.dropout,
            "max_position_embeddings": spec.context,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "layer_norm_eps": layer.norm.leaf.eps,
            "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
            "use_parallel_residual": layer.block.wiring != "serial",
            "attention_bias": bool(layer.attention.bias),
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        fused = PerHead(spec.stacks[-1].layers[0].attention.heads)
        parts = {
            "attention.dense": "attention.body.o",
            "mlp.dense_h_to_4h": "ffn.body.up",
            "mlp.dense_4h_to_h": "ffn.body.down",
            "input_layernorm": "attention.inner",
            "post_attention_layernorm": "ffn.inner",
        }
        return StateMap(
            rules=(
                Rule("gpt_neox.embed_in.weight", "embed.tokens.weight"),
                Rule(
                    f"{LAYER}.attention.query_key_value.{{p}}",
                    tuple(f"{BLOCK}.attention.body.{name}.{{p}}" for name in "qkv"),
                    fused,
                ),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in parts.items()),
                Rule("gpt_neox.final_layer_norm.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.weight", "head.weight"),
            ),
            copies={"lm_head.weight": "gpt_neox.embed_in.weight"},
            ignored=(
                r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
                r"(gpt_neox\.)?rotary_emb\.inv_freq",
            ),
            prefix="gpt_neox.",
            # What the head was called before it was called like everybody's.
            renamed={"embed_out.weight": "lm_head.weight"},
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
            "num_attention_heads": 2, "max_position_embeddings": 64, "rotary_pct": 0.25, "rotary_emb_base": 500,
            "layer_norm_eps": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
