"""Ministral 8B (Mistral 2024): Mistral with windows in those layers that a list names."""

from anyformer.families import tasks
from anyformer.families.key_groups import RopeKeys, WindowKeys
from anyformer.families.mistral import Mistral


class Ministral(Mistral, kind="ministral"):
    """Ministral 8B."""

    architectures = ("MinistralForCausalLM",)
    tasks = tasks.LLAMA
    groups = (RopeKeys(), WindowKeys(window=4096, needed=True))
