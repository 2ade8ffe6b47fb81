"""Granite 3 with experts (IBM 2024): Granite's constants, and all experts of a layer in one tensor."""

from anyformer.families import moe_like as moe
from anyformer.families.granite import Granite

KEYS = {name: key for name, key in Granite.keys.items() if name != "mlp_bias"} | moe.expert_keys(
    8, 2, count="num_local_experts"
)
BASE = dict(Granite.base) | {"ffn": {"kind": "moe"}}
PARTS = {name: f"self_attn.{name}_proj" for name in "qkvo"} | {
    "attention_inner": "input_layernorm",
    "ffn_inner": "post_attention_layernorm",
}
EXPERTS = (
    moe.fused("block_sparse_moe", "input_linear.weight", "output_linear.weight"),
    moe.fused("block_sparse_moe.experts"),
)
FORMS = {r"block_sparse_moe\.router\.weight": "block_sparse_moe.router.layer.weight"}
SMALL = {name: value for name, value in Granite.small.items() if name in KEYS} | {
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
}
"""What Granite's models with experts share."""


class GraniteMoe(moe.MoeLike, kind="granitemoe"):
    """Granite 3 with experts."""

    base = BASE
    architectures = ("GraniteMoeForCausalLM",)
    second = True
    keys = KEYS
    tensors = moe.tensors(PARTS, *EXPERTS, at="block_sparse_moe", router="router.layer", forms=FORMS)
    small = SMALL
