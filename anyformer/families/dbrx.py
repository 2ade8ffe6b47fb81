"""DBRX (Databricks 2024): 16 experts, four of them chosen, LayerNorms without biases, and clipped projections."""

from collections.abc import Mapping
from typing import Any

from anyformer.families import moe_like as moe
from anyformer.families.config_keys import COMMON, GATED, TABLE, Key, SpecView, flag, must, number, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import Rule, decoder_map
from anyformer.families.tensor_ops import Stacked
from anyformer.specs.codec import Problems
from anyformer.specs.model import ModelSpec

ATTENTION: dict[str, Key] = {
    "attn_pdrop": number(0.0),
    "clip_qkv": number(None),
    "kv_n_heads": whole(1),
    "rope_theta": number(None),
}
FFN: dict[str, Key] = {
    "hidden_size": whole(None),
    "ffn_act_fn": TABLE,
    "ffn_hidden_size": whole(3584),
    "moe_num_experts": whole(4),
    "moe_top_k": whole(1),
    "moe_normalize_expert_weights": must(1.0, None),
    # Of training only.
    "moe_jitter_eps": number(None),
    "moe_loss_weight": number(0.01),
    "uniform_expert_assignment": must(False),
}
"""The keys of `attn_config` and of `ffn_config`."""
BLOCK = "transformer.blocks.{i}"


class Dbrx(moe.MoeLike, kind="dbrx"):
    """DBRX."""

    base = moe.BASE | {"norm": {"kind": "layernorm", "eps": 1e-5, "bias": False}}
    architectures = ("DbrxForCausalLM",)
    keys = {
        **usual(d_model=2048, n_heads=16, n_layers=24, max_seq_len=2048, vocab_size=32000, initializer_range=0.02),
        "resid_pdrop": number(0.0, "block.dropout", null=True, empty=0.0),
        # The public class never drops here.
        "emb_pdrop": number(0.0, null=True),
        "attn_config": TABLE,
        "ffn_config": TABLE,
        "tie_word_embeddings": must(False),
        # A copy of what stands in attn_config, and of training only.
        "num_key_value_heads": whole(None),
        "output_router_logits": flag(False, null=True),
        "router_aux_loss_coef": number(0.05),
    }
    groups = (RopeKeys(),)
    tensors = decoder_map(
        "transformer.blocks",
        {"qkv": "norm_attn_norm.attn.Wqkv", "o": "norm_attn_norm.attn.out_proj", "tokens": "wte", "final": "norm_f"}
        | {"attention_inner": "norm_attn_norm.norm_1", "ffn_inner": "norm_attn_norm.norm_2"},
        Rule(f"{BLOCK}.ffn.router.layer.weight", f"{moe.OURS}.router.weight"),
        Rule(f"{BLOCK}.ffn.experts.mlp.w1", f"{moe.OURS}.experts.gate.weight", Stacked(flat=True)),
        Rule(f"{BLOCK}.ffn.experts.mlp.v1", f"{moe.OURS}.experts.up.weight", Stacked(flat=True)),
        Rule(f"{BLOCK}.ffn.experts.mlp.w2", f"{moe.OURS}.experts.down.weight", Stacked(flat=True, transposed=True)),
    )
    small = {
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "rope_theta": 500.0,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 500.0},
        "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 5, "moe_top_k": 3},
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        attention, ffn = _table(c, "attn_config", ATTENTION), _table(c, "ffn_config", FFN)
        # Keys of RoPE are read together with this one, which has another name here.
        c["max_position_embeddings"] = c["max_seq_len"]
        # This is where released files have it.
        if all(c[name] is None for name in ("rope_theta", "rope_parameters", "rope_scaling")):
            c["rope_theta"] = attention["rope_theta"]
        found = super().read(c)
        theta = attention["rope_theta"]
        if theta is not None and theta != found.get("position.theta", theta):
            c.refuse("attn_config.rope_theta", f"is {theta}, and {found['position.theta']} elsewhere; keep one of them")
        act = (ffn["ffn_act_fn"] or {}).get("name", "silu")
        if not isinstance(act, str) or act not in GATED:
            c.refuse("ffn_config.ffn_act_fn", f"{act!r} is an activation of the gate that we don't have")
            act = "silu"
        if ffn["hidden_size"] not in (None, c["d_model"]):
            c.refuse("ffn_config.hidden_size", f"{ffn['hidden_size']} is not d_model={c['d_model']}")
        clip, kv_heads = attention["clip_qkv"], attention["kv_n_heads"]
        return found | {
            "attention.kv_heads": None if kv_heads == c["n_heads"] else kv_heads,
            "attention.clip_qkv": None if clip is None else float(clip),
            "attention.dropout": float(attention["attn_pdrop"]),
            "ffn.width": ffn["ffn_hidden_size"],
            "ffn.experts": ffn["moe_num_experts"],
            "ffn.top_k": ffn["moe_top_k"],
            "ffn.normalise": ffn["moe_normalize_expert_weights"] is not None,
            "ffn.expert": GATED[act],
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        written, view = super().write(spec), cls.view(spec)
        attention = {
            "attn_pdrop": view.layer.attention.dropout,
            "clip_qkv": view.layer.attention.clip_qkv,
            "kv_n_heads": view.dims.kv_heads,
            "rope_theta": written.get("rope_theta"),
        }
        return written | {"attn_config": attention, "ffn_config": _experts(view)}


def _table(c: Values, name: str, keys: Mapping[str, Key]) -> Values:
    """The values of a nested table, which may hold what every config may."""
    found = Values(c[name] or {}, COMMON | dict(keys), Problems(), c.reads)
    c.take(name, found)
    return found


def _experts(view: SpecView) -> dict[str, Any]:
    return {
        "hidden_size": view.spec.width,
        "ffn_act_fn": {"name": moe.activation_name(view)},
        "ffn_hidden_size": view.dims.ffn_width,
        "moe_num_experts": view.get("ffn.experts", 4),
        "moe_top_k": view.get("ffn.top_k", 1),
        "moe_normalize_expert_weights": 1.0 if view.get("ffn.normalise") else None,
    }
