"""VaultGemma (2025), trained with differential privacy: Gemma 2 without the norms after its branches."""

from anyformer.families import llama_like as like
from anyformer.families.gemma import BASE
from anyformer.families.gemma2 import Gemma2


class VaultGemma(Gemma2, kind="vaultgemma"):
    """VaultGemma 1B."""

    base = BASE
    architectures = ("VaultGemmaForCausalLM",)
    tensors = like.tensors(like.LLAMA | {"ffn_inner": "pre_feedforward_layernorm"})
