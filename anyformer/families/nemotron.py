"""Nemotron-4 (2024) and the Minitrons pruned from it: LayerNorm with gains stored from 1, squared ReLU, no gate."""

from __future__ import annotations

from anyformer.families import llama_like as like
from anyformer.families.config_keys import usual
from anyformer.families.family import Preset, sizes
from anyformer.families.rope_keys import RopeKeys


class Nemotron(like.LlamaLike, kind="nemotron"):
    """Nemotron-4 and Minitron."""

    base = like.BASE | {
        "norm": {"kind": "layernorm", "eps": 1e-5, "gain": "one_plus"},
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.5},
        "ffn": {"kind": "relu2"},
        "init": {"kind": "normal", "std": 0.0134},
    }
    presets = (
        Preset("nemotron-4-15b", "Nemotron-4 15B (2024)", sizes(6144, 32, 48, 8, 24576, 256000, 4096), 15_628_775_424,
               published="3.2B in the embedding and 12.5B elsewhere, by general knowledge of the paper",
               evidence="the publisher's training code and launcher; the vocabulary is the default of the public class"),
        Preset("nemotron-4-340b", "Nemotron-4 340B (2024)",
               sizes(18432, 96, 96, 8, 73728, 256000, 4096) | {"init.std": 0.0063}, 341_029_195_776,
               published="9.4B in the embedding and 331.6B elsewhere, by general knowledge of the paper",
               evidence="the publisher's training code and launcher; the vocabulary is the default of the public class",
               note="heads of 192"),
        Preset("minitron-4b", "Minitron 4B (2024)", sizes(3072, 32, 24, 8, 9216, 256000, 4096), 4_190_509_056,
               published="its name rounds to 4B; no exact count was found",
               evidence="the publisher's training code; the vocabulary is the default of the public class"),
        Preset("minitron-8b", "Minitron 8B (2024)",
               sizes(4096, 32, 48, 8, 16384, 256000, 4096) | {"attention.head_dim": 128}, 8_271_699_968,
               published="its name rounds to 8B; no exact count was found",
               evidence="another project's record of the released config",
               note="48 heads of 128 are wider than the model: its width was pruned and its heads were not"),
    )  # fmt: skip
    architectures = ("NemotronForCausalLM",)
    keys = {
        **like.keys(
            6144, 32, 48, None, 24576, 256000, 4096, eps=1e-5, eps_key="norm_eps", act="relu2", gated=False, std=0.0134
        ),
        **usual(head_dim=None, attention_bias=False, mlp_bias=False, bos_token_id=2, eos_token_id=3),
    }
    groups = (RopeKeys(fraction=0.5),)
    small = like.small(eps_key="norm_eps", head_dim=12, rope_theta=500.0)
