"""GPT-NeoX for Japanese (ABEJA 2022): branches in series and no biases, but for the attention's output in the last layer."""

from typing import Any

from anyformer.families.bloom import megatron
from anyformer.families.config_keys import activation, usual, whole
from anyformer.families.config_values import Values, without
from anyformer.families.gpt_neox import SPELLED, GPTNeoX
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import Rule, decoder_map
from anyformer.families.tensor_ops import PerHead
from anyformer.specs.model import ModelSpec

BLOCK, OURS = "gpt_neox_japanese.layers.{i}", "decoder.blocks.{i}.attention.body.o"


class GPTNeoXJapanese(GPTNeoX, kind="gpt_neox_japanese"):
    """GPT-NeoX Japanese 2.7B."""

    base = GPTNeoX.base | {
        "attention": {"heads": 1},
        "position": {"kind": "rope", "theta": 1e4},
        "ffn": {"kind": "gelu"},
        "block": {"wiring": "serial"},
    }
    architectures = ("GPTNeoXJapaneseForCausalLM",)
    keys = {
        **usual(vocab_size=32000, hidden_size=2560, num_hidden_layers=32, num_attention_heads=32),
        **usual(max_position_embeddings=2048, initializer_range=0.02, layer_norm_eps=1e-5, attention_dropout=0.1),
        **usual(hidden_dropout=0.0, tie_word_embeddings=True, bos_token_id=31996, eos_token_id=31999),
        "hidden_act": activation("gelu"),
        "intermediate_multiple_size": whole(4),
    }
    groups = (RopeKeys(fraction=1.0, spelled=SPELLED, flat=False),)
    tensors = decoder_map(
        "gpt_neox_japanese.layers",
        without(megatron("attention"), ["o"]) | {"tokens": "embed_in", "final": "final_layer_norm"},
        Rule(f"{BLOCK}.attention.dense.weight", f"{OURS}.weight"),
        Rule(f"{BLOCK}.attention.dense_bias", f"{OURS}.bias"),
        op=PerHead(),
        ignored=(r"(gpt_neox_japanese\.)?(layers\.\d+\.attention\.)?rotary_emb\.inv_freq",),
        head="embed_out",
    )
    small = {"num_attention_heads": 2, "rotary_pct": 0.5, "rotary_emb_base": 500, "intermediate_multiple_size": 2}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        times, last = c["intermediate_multiple_size"], c["num_hidden_layers"] - 1
        width = {"ffn.width": None if times == 4 else times * c["hidden_size"]}
        return super().read(c) | width | {f"layers.{last}.attention.bias": "o"}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        width = spec.dims(spec.stacks[-1].layers[0], spec.stacks[-1]).ffn_width
        return super().write(spec) | {"intermediate_multiple_size": width // spec.width}
