"""ERNIE 4.5 with experts (Baidu 2025): a bias for the choice of experts beside a softmax, RoPE in pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import must, number, whole
from anyformer.families.config_values import Values
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import Rule
from anyformer.families.tensor_ops import Shaped

FIRST, LAST, STEP = "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"


def _is_dense(c: Values, i: int) -> bool:
    last = c["num_hidden_layers"] - 1 if c[LAST] == -1 else c[LAST]
    return bool((i + 1) % c[STEP]) or not c[FIRST] <= i <= last


def _said(dense: Sequence[bool]) -> Mapping[str, int]:
    sparse = [i for i, yes in enumerate(dense) if not yes]
    if not sparse:
        return {FIRST: len(dense), LAST: -1, STEP: 1}
    # Reading back shows if they are no such sequence.
    step = sparse[1] - sparse[0] if len(sparse) > 1 and (sparse[0] + 1) % (sparse[1] - sparse[0]) == 0 else 1
    return {FIRST: sparse[0], LAST: sparse[-1], STEP: step}


class Ernie45Moe(moe.MoeLike, kind="ernie4_5_moe"):
    """ERNIE 4.5 with experts, text only."""

    base: Mapping[str, Any] = moe.BASE | {
        "ffn": {"kind": "moe", "selection_bias": True, "exact_router": True},
        "position": {"kind": "rope", "theta": 5e5, "layout": "interleaved"},
        "head": {"kind": "lm", "tied": True},
    }
    architectures = ("Ernie4_5_MoeForCausalLM",)
    keys = {
        **like.keys(
            2560, 28, 20, 4, 12288, 103424, 131072, eps=1e-5, tied=True, head_dim=None, pad_token_id=0, bos_token_id=1,
            eos_token_id=2,
        ),
        **moe.expert_keys(64, 6, count="moe_num_experts", chosen="moe_k", width=1536, dense=12288),
        "moe_num_shared_experts": moe.shared_width(2, each="moe_intermediate_size"),
        # The class drops nothing.
        "attention_dropout": number(0.0),
        # The shared expert would have biases, and the others none.
        "use_bias": must(False, None),
        "moe_norm_min": must(1e-12),
    }  # fmt: skip
    groups = (
        RopeKeys(theta=5e5, layout="interleaved"),
        moe.DenseKeys(
            keys={FIRST: whole(1), LAST: whole(-1), STEP: moe.at_least_one(1)}, is_dense=_is_dense, said=_said
        ),
    )
    tensors = moe.tensors(
        like.LLAMA,
        bias="",
        more=(
            Rule(f"{moe.LAYER}.mlp.moe_statics.e_score_correction_bias", f"{moe.OURS}.selection_bias", Shaped((1, -1))),
        ),
        ignored=(r".*\bmtp.*",),
        forms={r"\.gate\.moe_statics\.": ".moe_statics."},
    )
    small = like.small(
        moe_num_experts=5, moe_k=3, moe_intermediate_size=12, intermediate_size=24, rope_theta=500.0, head_dim=12
    )
