"""Granite with experts, windows and sinks (IBM 2026): three of four layers have a window, and each may have its own theta."""

from anyformer.families import granitemoe as granite
from anyformer.families import moe_like as moe
from anyformer.families.granite_swa import GraniteSwa
from anyformer.families.granitemoeshared import SHARED


class GraniteMoeSwa(moe.MoeLike, kind="granitemoe_swa"):
    """Granite with experts, windows and sinks."""

    base = granite.BASE | {"attention": GraniteSwa.base["attention"]}
    architectures = ("GraniteMoeSWAForCausalLM",)
    keys = granite.KEYS | {"shared_intermediate_size": moe.shared_width(0)}
    groups = GraniteSwa.groups
    tensors = moe.tensors(
        granite.PARTS, moe.fused("block_sparse_moe.experts"), at="block_sparse_moe", router="router", shared="",
        more=(*SHARED, moe.SINKS),
    )  # fmt: skip
    small = granite.SMALL | {"shared_intermediate_size": 20, "sliding_window": 5, "layer_rope_theta": [0, 50.0, 500.0]}
