"""GPT-BigCode (Allal et al. 2023): GPT-2 whose heads share one key, with fused projections stored (out, in)."""

from typing import Any

from anyformer.families.config_keys import SpecView, activation, each, flag, must, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset, sizes
from anyformer.families.gpt2 import BASE, ENDS, GPT2_INIT, MATRICES, NORMS, size_keys
from anyformer.families.statemap import decoder_map
from anyformer.families.tensor_ops import PerHead
from anyformer.specs.model import ModelSpec


class GPTBigCode(Family, kind="gpt_bigcode"):
    """SantaCoder and StarCoder."""

    base = BASE | {"attention": {"heads": 1, "kv_heads": 1, "bias": "qkvo"}, "init": GPT2_INIT}
    presets = (
        Preset("starcoder-15b", "StarCoder 15.5B (2023)", sizes(6144, 40, 48)
               | {"vocab": 49152, "context": 8192, "ids.bos": 0, "ids.eos": [0]}, 15_517_456_384, also=("starcoder",),
               published="only rounded, to 15.5B, in the paper as generally known",
               evidence="general knowledge of the paper, not read again; the count is of the public class"),
    )  # fmt: skip
    architectures = ("GPTBigCodeForCausalLM",)
    keys = {
        **size_keys(50257, n_inner=None, bos_token_id=50256, eos_token_id=50256),
        "activation_function": activation("gelu_pytorch_tanh", more={"ffn.bias": True}),
        "scale_attn_weights": flag(True),
        "multi_query": flag(True),
        # What multi_query says in other words.
        "num_key_value_heads": whole(None),
        # In which precision scores are computed, and how the first release ran them.
        **each(flag(True), "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "pad_key_length"),
        **each(flag(False), "pre_allocate_kv_cache", "validate_runner_input"),
        **each(whole(None), "inference_runner", "max_batch_size", "max_sequence_length"),
        "attention_type": must(None, 2),
    }
    tensors = decoder_map("transformer.h", MATRICES | NORMS | ENDS, op=PerHead())
    small = {"n_embd": 36, "n_head": 3}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        heads = c["n_head"]
        kv_heads = 1 if c["multi_query"] else heads
        if c["num_key_value_heads"] not in (None, kv_heads):
            c.refuse("num_key_value_heads", f"{c['num_key_value_heads']} is not what multi_query says, {kv_heads}")
        return super().read(c) | {
            "attention.kv_heads": None if kv_heads == heads else kv_heads,
            "attention.scale": "1/sqrt(head_dim)" if c["scale_attn_weights"] else 1.0,
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        view = SpecView.of(spec)
        return super().write(spec) | {
            "scale_attn_weights": view.dims.head_dim == 1 or view.get("attention.scale") != 1.0,
            "multi_query": view.dims.kv_heads == 1,
        }
