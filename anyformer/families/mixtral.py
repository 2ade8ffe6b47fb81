"""Mixtral (Jiang et al. 2024): Mistral with eight experts in every layer, of which two are chosen for each token."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families import tasks
from anyformer.families.family import Preset, sizes
from anyformer.families.key_groups import RopeKeys, WindowKeys

PROJECTIONS = {"gate": "w1", "up": "w3", "down": "w2"}
EXPERTS = (moe.each("block_sparse_moe.experts", PROJECTIONS), moe.fused("block_sparse_moe.experts"))
FORMS = {r"\.mlp\.": ".block_sparse_moe."}
"""The layouts and names of experts here, and what they are called in memory."""
TRAITS = {"position.theta": 1e6, "ids.bos": 1, "ids.eos": [2]}


class Mixtral(moe.MoeLike, kind="mixtral"):
    """Mixtral."""

    presets = (
        Preset("mixtral-8x7b", "Mixtral 8x7B (2023)", sizes(4096, 32, 32, 8, 14336, 32000, 32768) | TRAITS,
               46_702_792_704, hub=("mistralai/Mixtral-8x7B-v0.1",),
               evidence="configs in training and serving code of three other projects, which agree",
               note="46.7B, not 8 x 7B: the experts share everything else"),
        Preset("mixtral-8x22b", "Mixtral 8x22B (2024)", sizes(6144, 56, 48, 8, 16384, 32000, 65536) | TRAITS,
               140_620_634_112, hub=("mistralai/Mixtral-8x22B-v0.1",),
               published="140,620,634,112 in released files of another model of the same shapes",
               evidence="configs in code of three other projects",
               note="the base model; v0.3 and the instruct model have 768 tokens more (140,630,071,296)"),
    )  # fmt: skip
    architectures = ("MixtralForCausalLM",)
    tasks = tasks.GENERIC
    keys = {
        **like.keys(4096, 32, 32, 8, 14336, 32000, 131072, eps=1e-5, head_dim=None, bos_token_id=1, eos_token_id=2),
        **moe.expert_keys(8, 2, count="num_local_experts"),
    }
    groups = (RopeKeys(theta=1e6), WindowKeys(listed=False))
    tensors = moe.tensors(like.LLAMA, *EXPERTS, at="block_sparse_moe", forms=FORMS)
    small = like.small(num_local_experts=5, num_experts_per_tok=2, sliding_window=6, rope_theta=500.0)
