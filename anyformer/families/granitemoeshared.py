"""Granite with experts, one of which all tokens go through (IBM 2025)."""

from anyformer.families import granitemoe as granite
from anyformer.families import moe_like as moe
from anyformer.families.statemap import Rule

SHARED = (
    Rule(f"{moe.LAYER}.shared_mlp.input_linear.weight", tuple(f"{moe.OURS}.shared.{x}.weight" for x in ("gate", "up"))),
    Rule(f"{moe.LAYER}.shared_mlp.output_linear.weight", f"{moe.OURS}.shared.down.weight"),
)


class GraniteMoeShared(moe.MoeLike, kind="granitemoeshared"):
    """Granite with experts, one of them shared."""

    base = granite.BASE
    architectures = ("GraniteMoeSharedForCausalLM",)
    second = True
    keys = granite.KEYS | {"shared_intermediate_size": moe.shared_width(0)}
    tensors = moe.tensors(
        granite.PARTS, *granite.EXPERTS, at="block_sparse_moe", router="router.layer", shared="", more=SHARED,
        forms=granite.FORMS,
    )  # fmt: skip
    small = granite.SMALL | {"shared_intermediate_size": 20}
