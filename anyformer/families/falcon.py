"""Falcon (Almazrouei et al. 2023): attention and feed-forward in parallel, few key heads, fused projections."""

from typing import Any

from anyformer.families.bloom import MEGATRON
from anyformer.families.config_keys import SpecView, activation, each, flag, must, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset, series, sizes
from anyformer.families.key_groups import RopeKeys
from anyformer.families.llama_like import BASE
from anyformer.families.statemap import StateMap, decoder_map
from anyformer.families.tensor_ops import PerHead
from anyformer.parts.positions.alibi import Alibi
from anyformer.specs.model import ModelSpec

SHARED: dict[str, Any] = {"vocab": 65024, "context": 2048, "ids.bos": 11, "ids.eos": [11], "loss.z": 1e-4}
TWICE = "in released files, which hold the table a second time as the head"


class Falcon(Family, kind="falcon"):
    """Falcon 1 and 2, and the RefinedWeb models with ALiBi.

    The public class rounds ALiBi's penalties to bf16 in every precision, which is noise that no spec says.
    """

    base = BASE | {
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "ffn": {"kind": "gelu"},
        "block": {"wiring": "parallel"},
        "head": {"kind": "lm", "tied": True},
    }
    presets = (
        *series("falcon-{}", "Falcon {SIZE} (2023)",
            ("7b", sizes(4544, 32, 71, 1), 6_921_720_704, f"7,217,189,760 {TWICE}",
             "71 heads, one key; both branches read one norm; the z-loss of all sizes is general knowledge",
             "configs of two other projects; that the head is tied is the public class's default"),
            ("40b", sizes(8192, 60, 128, 8) | {"block.wiring": "parallel2"}, 41_303_293_952, f"41,835,970,560 {TWICE}",
             "each branch has a norm of its own"),
            ("180b", sizes(14848, 80, 232, 8) | {"block.wiring": "parallel2"}, 178_557_088_768,
             f"179,522,565,120 {TWICE}"),
            changes=SHARED, evidence="the config of one other project and the public class"),
        Preset("falcon2-11b", "Falcon 2 11B (2024)",
               sizes(4096, 60, 32, 8) | SHARED | {"context": 8192, "position.theta": 500042.0, "head.tied": False},
               11_102_822_400, also=("falcon-11b", "falcon-2-11b"),
               published="only rounded, to 11.1B, as generally known",
               evidence="its config.json as quoted in a public issue; the depth follows from the count and general "
               "knowledge",
               note="that quotation types 71 layers, and only 60 give 11.1B; grouped keys, but one norm for both "
               "branches"),
    )  # fmt: skip
    # As code beside the weights the class was called otherwise, and so were some of its keys.
    architectures = ("FalconForCausalLM", "RWForCausalLM")
    also_types = ("RefinedWeb", "RefinedWebModel")
    keys = {
        **usual(vocab_size=65024, hidden_size=4544, n_embed=None, num_hidden_layers=32, n_layer=None),
        **usual(num_attention_heads=71, n_head=None, layer_norm_epsilon=1e-5, initializer_range=0.02),
        **usual(hidden_dropout=0.0, attention_dropout=0.0, max_position_embeddings=2048, ffn_hidden_size=None),
        **usual(tie_word_embeddings=True, bos_token_id=11, eos_token_id=11),
        **each(whole(None), "num_ln_in_parallel_attn", "num_kv_heads", "n_head_kv"),
        **each(flag(False), "alibi", "new_decoder_architecture"),
        **each(flag(True), "multi_query", "parallel_attn"),
        "bias": flag(False, ("attention.bias", "ffn.bias")),
        # What ffn_hidden_size says in other words; the public class does not read it.
        "ff_factor": whole(None),
        "activation": activation("gelu"),
        "apply_residual_connection_post_layernorm": must(False),
    }
    groups = (RopeKeys(),)
    small = {
        "hidden_size": 36, "num_attention_heads": 6, "num_kv_heads": 2, "new_decoder_architecture": True,
        "rope_theta": 500.0,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        renamed = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_head_kv": "num_kv_heads"}
        for old, new in renamed.items():
            if c[old] is not None and new in c.given:
                c.refuse(old, f"stands beside {new}; keep one of them")
        found, norms, parallel = super().read(c), c["num_ln_in_parallel_attn"], c["parallel_attn"]
        # Groups of heads and two norms; of the first releases only those that have them speak of `n_head_kv`.
        unsaid = "new_decoder_architecture" not in c.given
        if c["new_decoder_architecture"] or (c["n_head_kv"] is not None and unsaid):
            kv_heads = c["num_kv_heads"] if c["n_head_kv"] is None else c["n_head_kv"]
            if not parallel:
                c.refuse("parallel_attn", "false does not go with new_decoder_architecture")
            if norms not in (None, 1, 2):
                c.refuse("num_ln_in_parallel_attn", f"{norms} norms are more than a block has branches", "1 or 2")
            wiring = "parallel" if norms == 1 else "parallel2"
        else:
            kv_heads = 1 if c["multi_query"] else None
            if kv_heads is None and c["num_kv_heads"] not in (None, c["num_attention_heads"]):
                c.refuse("num_kv_heads", "groups of heads go with new_decoder_architecture only")
            if norms == 2 and parallel:
                c.refuse("num_ln_in_parallel_attn", "2 goes with new_decoder_architecture only")
            wiring = "parallel" if parallel else "serial"
        if c["alibi"]:
            found = {path: value for path, value in found.items() if not path.startswith("position.")}
            found |= {"position.kind": "alibi", "position.before_scale": True}
        own = {"attention.kv_heads": None if kv_heads == found["attention.heads"] else kv_heads}
        return found | own | {"block.wiring": wiring}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        view = SpecView.of(spec)
        dims, wiring, position = view.dims, view.layer.block.wiring, view.layer.position
        # Blocks in series have one key or as many as heads; reading back names what that leaves out.
        new = wiring == "parallel2" or (wiring == "parallel" and 1 < dims.kv_heads < dims.heads)
        return super().write(spec) | {
            "num_kv_heads": dims.kv_heads if new else None,
            "num_ln_in_parallel_attn": {"parallel": 1, "parallel2": 2}.get(wiring),
            "new_decoder_architecture": new,
            "multi_query": dims.kv_heads == 1,
            "parallel_attn": wiring != "serial",
            "alibi": isinstance(position, Alibi),
        }  # fmt: skip

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        two = spec.stacks[-1].layers[0].block.wiring == "parallel2"
        return decoder_map(
            "transformer.h",
            MEGATRON | ({"attention_inner": "ln_attn", "ffn_inner": "ln_mlp"} if two else {}),
            op=PerHead(),
            ignored=(r"(transformer\.)?h\.\d+\.self_attention\.(rotary_emb|maybe_rotary)\.inv_freq",),
        )
