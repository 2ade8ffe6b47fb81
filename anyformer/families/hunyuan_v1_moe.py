"""Hunyuan-A13B (Tencent 2025): experts beside a shared one, and norms of each head after RoPE."""

from dataclasses import dataclass, replace
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import Key, are_whole, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.key_groups import RopeKeys


@dataclass(frozen=True, kw_only=True)
class AlphaRope(RopeKeys):
    """RoPE whose `dynamic` scaling with a fixed `alpha` means another theta: theta alpha^(d / (d - 2))."""

    def read(self, c: Values) -> dict[str, Any]:
        given = {name: c[name] for name in ("rope_parameters", "rope_scaling")}
        for name, table in given.items():
            kind = (table or {}).get("rope_type", (table or {}).get("type"))
            alpha = (table or {}).get("alpha")
            if kind != "dynamic" or not alpha or not isinstance(alpha, int | float) or isinstance(alpha, bool):
                continue
            dims, theta = c["head_dim"], table.get("rope_theta", c["rope_theta"])
            if dims is None or dims <= 2 or alpha < 0:
                c.problems.add(
                    f"{name}.alpha", f"needs a head_dim above 2 and no less than 0; they are {dims} and {alpha}"
                )
                continue
            base = self.theta if theta is None else theta
            c[name] = {"rope_theta": base * alpha ** (dims / (dims - 2))} if isinstance(base, int | float) else table
            c["rope_theta"] = None
        return dict(super().read(c))


def _listed(key: Key, what: str) -> Key:
    """A number that files may say for every layer, where all must be the same."""

    def read(c: Values, name: str) -> dict[str, Any]:
        value = c[name]
        if isinstance(value, list):
            if len({*value}) != 1:
                c.refuse(name, f"lists different numbers {what}, which this family does not read")
            value = value[0] if value else None
        return {key.sets[0]: value}

    return replace(key, what="a whole number or a list of them", fits=are_whole, read=read)


class HunyuanMoe(moe.MoeLike, kind="hunyuan_v1_moe"):
    """Hunyuan-A13B."""

    base = moe.BASE | {"attention": {"heads": 1, "qk_norm": moe.HEAD_NORM | {"when": "after"}}}
    architectures = ("HunYuanMoEV1ForCausalLM",)
    keys = {
        **like.keys(
            4096, 32, 32, None, 11008, 290943, 2048, eps=1e-5, qk_norm=True, head_dim=None, attention_bias=False,
        ),
        **usual(pad_token_id=0, bos_token_id=1, eos_token_id=2, eod_token_id=3),
        **moe.expert_keys(1, 1, chosen="moe_topk"),
        "num_experts": _listed(whole(1, "ffn.experts"), "of experts"),
        "moe_topk": _listed(whole(1, "ffn.top_k"), "of chosen experts"),
        # The expert that all tokens go through is as wide as the others.
        "intermediate_size": whole(11008, ("ffn.width", "ffn.shared_width")),
    }  # fmt: skip
    groups = (AlphaRope(),)
    tensors = moe.tensors(
        like.ATTENTION | like.PRE_NORMS | {"q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"},
        router="gate.wg",
        shared="shared_mlp",
    )
    small = like.small(
        num_experts=5, moe_topk=[3, 3, 3], head_dim=12,
        rope_scaling={"type": "dynamic", "alpha": 7.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1},
    )  # fmt: skip
