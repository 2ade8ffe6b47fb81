"""Mistral (Jiang et al. 2023): LLaMA with grouped heads and, in its first version, a sliding window in every layer."""

from anyformer.families import llama_like as like
from anyformer.families import tasks
from anyformer.families.family import Preset, sizes
from anyformer.families.key_groups import RopeKeys, WindowKeys


class Mistral(like.LlamaLike, kind="mistral"):
    """Mistral 7B and models released in its format."""

    presets = (
        Preset("mistral-7b-v0.1", "Mistral 7B v0.1 (2023)", sizes(4096, 32, 32, 8, 14336, 32000, 32768)
               | {"attention.pattern": "window(4096)", "ids.bos": 1, "ids.eos": [2]}, 7_241_732_096,
               also=("mistral-7b",), hub=("mistralai/Mistral-7B-v0.1",),
               evidence="configs in training and serving code of three other projects, which agree",
               note="a window of 4096 keys, the token itself included; later versions have none"),
        Preset("mistral-7b-v0.3", "Mistral 7B v0.3 (2024)",
               sizes(4096, 32, 32, 8, 14336, 32768, 32768) | {"position.theta": 1e6, "ids.bos": 1, "ids.eos": [2]},
               7_248_023_552, hub=("mistralai/Mistral-7B-v0.3",),
               evidence="configs in training and serving code of two other projects, which agree",
               note="no window; 768 tokens more than v0.1"),
    )  # fmt: skip
    architectures = ("MistralForCausalLM",)
    tasks = tasks.GENERIC
    keys = like.keys(4096, 32, 32, 8, 14336, 32000, 131072, head_dim=None, bos_token_id=1, eos_token_id=2)
    groups = (RopeKeys(), WindowKeys(window=4096, listed=False))
    small = like.small(sliding_window=5, head_dim=12)
