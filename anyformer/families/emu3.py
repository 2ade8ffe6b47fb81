"""Emu3 (Wang et al. 2024), its language model: LLaMA over a vocabulary that holds words and pieces of images."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import number
from anyformer.families.key_groups import RopeKeys
from anyformer.families.llama import Llama


class Emu3(Llama, kind="emu3"):
    """Emu3's text model. What reads and draws pictures is not part of it."""

    architectures = ("Emu3ForCausalLM",)
    bodies = ("Emu3TextModel",)
    model_type = "emu3_text_model"
    keys = {
        **like.keys(
            4096, 32, 32, 8, 14336, 184622, 9216, eps=1e-5, head_dim=None, attention_bias=False, mlp_bias=False
        ),
        **like.ids(151849, 151850, 151643),
        # On each branch too.
        "attention_dropout": number(0.1, ("attention.dropout", "block.dropout")),
    }
    groups = (RopeKeys(theta=1e6),)
