"""GLM-4.5 to 4.7 (2025): DeepSeek-V3's router beside a shared expert, dense layers first, RoPE on half of each head."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import flag, number, whole
from anyformer.families.family import series, sizes
from anyformer.families.key_groups import RopeKeys


def _traits(dense: int, dense_width: int, experts: int, width: int, **more: Any) -> dict[str, Any]:
    first = {"ffn.kind": "swiglu", "ffn.width": dense_width}
    return {
        "attention.head_dim": 128, "attention.bias": "qkv", "position.theta": 1e6, "ffn.experts": experts,
        "ffn.top_k": 8, "ffn.shared_width": width,
        "layers": {"order": f"{dense} dense, rest sparse", "dense": first, "sparse": {}},
    } | more  # fmt: skip


class Glm4Moe(moe.MoeLike, kind="glm4_moe"):
    """GLM-4.5, 4.6 and 4.7."""

    base = moe.DEEPSEEK | {"position": {"kind": "rope", "theta": 1e4, "fraction": 0.5}}
    presets = series("glm-{}", "GLM-{} (2025)",
        ("4.5", sizes(5120, 92, 96, 8, 1536, 151552, 131072)
         | _traits(3, 12288, 160, 1536, **{"ffn.scale": 2.5, "attention.qk_norm": moe.HEAD_NORM | {"eps": 1e-5}}),
         352_797_829_024, "358,337,791,296 in released files, 5,539,962,272 of them in a layer that predicts one token more"),
        ("4.5-air", sizes(4096, 46, 96, 8, 1408, 151552, 131072) | _traits(1, 10944, 128, 1408), 106_852_251_264,
         "110,468,824,832 in released files, the rest in a layer that predicts one token more",
         "no norms of queries and keys, unlike GLM-4.5"),
        evidence="training scripts of another project, and the public class",
    )  # fmt: skip
    architectures = ("Glm4MoeForCausalLM",)
    keys = {
        **like.keys(4096, 46, 96, 8, 10944, 151552, 131072, eps=1e-5, head_dim=None),
        **moe.expert_keys(128, 8, count="n_routed_experts", width=1408, dense=10944, normalise=True),
        **moe.no_groups(),
        "attention_bias": flag(False, "attention.bias", on="qkv"),
        "use_qk_norm": like.qk_norm_key(moe.HEAD_NORM, "rms_norm_eps"),
        "n_shared_experts": moe.shared_width(1, each="moe_intermediate_size"),
        "routed_scaling_factor": number(1.0, "ffn.scale"),
        # Extra layers, which predict further tokens, are not read.
        "num_nextn_predict_layers": whole(None),
        "num_mtp_layers": whole(None),
    }
    groups = (RopeKeys(fraction=0.5), moe.first_dense(1))
    tensors = moe.tensors(like.LLAMA | like.HEAD_NORMS, extra=moe.PREDICTS)
    small = moe.small(
        count="n_routed_experts", use_qk_norm=True, attention_bias=True, routed_scaling_factor=2.5, n_shared_experts=2,
        partial_rotary_factor=0.5,
    )  # fmt: skip
