"""GPT-BigCode (Allal et al. 2023): GPT-2 whose heads share one key, with fused projections stored (out, in)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, activation_of, flag, ids, must, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.gpt2 import BLOCK, LAYER, SIZE_KEYS, read_sizes, write_sizes
from anyformer.families.statemap import PerHead, Rule, StateMap
from anyformer.specs.formulas import evaluate
from anyformer.specs.model import ModelSpec


class GPTBigCode(Family, kind="gpt_bigcode"):
    """SantaCoder and StarCoder."""

    base = {
        "attention": {"heads": 1, "kv_heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "learned"},
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "gpt2", "std": 0.02},
    }
    presets = (
        Preset(
            name="starcoder-15b", also=("starcoder",), title="StarCoder 15.5B (2023)",
            changes={
                "width": 6144, "depth": 40, "attention.heads": 48, "vocab": 49152, "context": 8192,
                "ids.bos": 0, "ids.eos": [0],
            },
            params=15_517_456_384,
            published="only rounded, to 15.5B, in the paper as generally known",
            evidence="general knowledge of the paper, not read again; the count is of the public class",
        ),
    )  # fmt: skip
    architectures = ("GPTBigCodeForCausalLM",)
    model_type = "gpt_bigcode"
    keys = SIZE_KEYS | {
        "vocab_size": whole(50257),
        "n_inner": whole(None),
        "activation_function": text("gelu_pytorch_tanh"),
        "scale_attn_weights": flag(True),
        "multi_query": flag(True),
        # What multi_query says in other words.
        "num_key_value_heads": whole(None),
        # In which precision scores are computed, and how the first release ran them.
        "attention_softmax_in_fp32": flag(True),
        "scale_attention_softmax_in_fp32": flag(True),
        "inference_runner": whole(None),
        "max_batch_size": whole(None),
        "max_sequence_length": whole(None),
        "pad_key_length": flag(True),
        "pre_allocate_kv_cache": flag(False),
        "validate_runner_input": flag(True),
        "attention_type": must(None, 2),
        "bos_token_id": ids(50256),
        "eos_token_id": ids(50256),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        heads = c["n_head"]
        kv_heads = 1 if c["multi_query"] else heads
        if c["num_key_value_heads"] not in (None, kv_heads):
            c.refuse("num_key_value_heads", f"{c['num_key_value_heads']} is not what multi_query says, {kv_heads}")
        return read_sizes(c) | {
            "attention.kv_heads": None if kv_heads == heads else kv_heads,
            "attention.scale": "1/sqrt(head_dim)" if c["scale_attn_weights"] else 1.0,
            "ffn.kind": plain_ffn(c, "activation_function"),
            "ffn.bias": True,
            "ffn.width": None if c["n_inner"] == 4 * c["n_embd"] else c["n_inner"],
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims = spec.dims(layer, stack)
        return write_sizes(spec) | {
            "n_inner": dims.ffn_width,
            "activation_function": activation_of(layer.ffn, gated=False),
            "scale_attn_weights": dims.head_dim == 1 or evaluate(layer.attention.scale, dims.names()) != 1.0,
            "multi_query": dims.kv_heads == 1,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        stack = spec.stacks[-1]
        fused = PerHead(spec.dims(stack.layers[0], stack).kv_heads)
        parts = {
            "attn.c_proj": "attention.body.o",
            "mlp.c_fc": "ffn.body.up",
            "mlp.c_proj": "ffn.body.down",
            "ln_1": "attention.inner",
            "ln_2": "ffn.inner",
        }
        return StateMap(
            rules=(
                Rule("transformer.wte.weight", "embed.tokens.weight"),
                Rule("transformer.wpe.weight", "decoder.positions.0.table"),
                Rule(
                    f"{LAYER}.attn.c_attn.{{p}}",
                    tuple(f"{BLOCK}.attention.body.{name}.{{p}}" for name in "qkv"),
                    fused,
                ),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in parts.items()),
                Rule("transformer.ln_f.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.weight", "head.weight"),
            ),
            copies={"lm_head.weight": "transformer.wte.weight"},
            prefix="transformer.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "n_positions": 64, "n_embd": 36, "n_layer": 3, "n_head": 3, "n_inner": 40,
            "layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
