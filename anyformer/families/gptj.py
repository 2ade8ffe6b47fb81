"""GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward in parallel on one norm, RoPE in pairs on part of a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, activation_of, flag, ids, number, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.gpt2 import SIZE_KEYS, read_sizes, write_sizes
from anyformer.families.statemap import Rule, StateMap
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec

LAYER, BLOCK = "transformer.h.{i}", "decoder.blocks.{i}"


class GPTJ(Family, kind="gptj"):
    """GPT-J."""

    base = {
        "attention": {"heads": 1},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e4, "layout": "interleaved", "dims": 64},
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "block": {"wiring": "parallel"},
        "head": {"kind": "lm", "bias": True},
        "init": {"kind": "normal", "std": 0.02},
    }
    presets = (
        Preset(
            name="gpt-j-6b", hub=("EleutherAI/gpt-j-6b",), title="GPT-J 6B (2021)",
            changes={
                "width": 4096, "depth": 28, "attention.heads": 16, "vocab": 50400, "context": 2048,
                "ids.bos": 50256, "ids.eos": [50256],
            },
            params=6_050_882_784,
            published="6,053,381,344 on its card",
            evidence="the authors' training code and two other projects",
            note="the card counts what 8 shards each held again: 7 x (28 x 3 + 2) x 4096 for norms and output biases "
            "and 8 x 4096 for an input bias, which is the difference to the last number",
        ),
    )  # fmt: skip
    architectures = ("GPTJForCausalLM",)
    model_type = "gptj"
    keys = SIZE_KEYS | {
        "vocab_size": whole(50400),
        "n_positions": whole(2048),
        "n_embd": whole(4096),
        "n_layer": whole(28),
        "n_head": whole(16),
        "n_inner": whole(None),
        "rotary_dim": whole(64),
        "rotary": flag(True),
        "activation_function": text("gelu_new"),
        "resid_pdrop": number(0.0),
        "embd_pdrop": number(0.0),
        "attn_pdrop": number(0.0),
        "scale_attn_weights": flag(True),
        "tie_word_embeddings": flag(False),
        "bos_token_id": ids(50256),
        "eos_token_id": ids(50256),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        for name in ("rotary", "scale_attn_weights"):
            if not c[name]:
                c.refuse(name, "false has no effect in the public class, so this file can't mean what it says")
        return read_sizes(c) | {
            "ffn.kind": plain_ffn(c, "activation_function"),
            "ffn.bias": True,
            "ffn.width": None if c["n_inner"] == 4 * c["n_embd"] else c["n_inner"],
            "position.dims": c["rotary_dim"],
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims, position = spec.dims(layer, stack), layer.position
        return write_sizes(spec) | {
            "n_inner": dims.ffn_width,
            "activation_function": activation_of(layer.ffn, gated=False, prefer="gelu_new"),
            "rotary_dim": position.rotated(dims.head_dim) if isinstance(position, Rope) else dims.head_dim,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        matrices = {
            "attn.q_proj": "attention.body.q",
            "attn.k_proj": "attention.body.k",
            "attn.v_proj": "attention.body.v",
            "attn.out_proj": "attention.body.o",
            "mlp.fc_in": "ffn.body.up",
            "mlp.fc_out": "ffn.body.down",
            "ln_1": "attention.inner",
        }
        return StateMap(
            rules=(
                Rule("transformer.wte.weight", "embed.tokens.weight"),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in matrices.items()),
                Rule("transformer.ln_f.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.{p}", "head.{p}"),
            ),
            copies={"lm_head.weight": "transformer.wte.weight"},
            ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias|embed_positions)",),
            prefix="transformer.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 2, "n_inner": 40,
            "rotary_dim": 6, "layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
