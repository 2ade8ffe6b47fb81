"""Nemotron-4 (2024) and the Minitrons pruned from it: LayerNorm with gains stored from 1, squared ReLU, no gate."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import usual
from anyformer.families.family import series, sizes
from anyformer.families.key_groups import RopeKeys


class Nemotron(like.LlamaLike, kind="nemotron"):
    """Nemotron-4 and Minitron."""

    base = like.BASE | {
        "norm": {"kind": "layernorm", "eps": 1e-5, "gain": "one_plus"},
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.5},
        "ffn": {"kind": "relu2"},
        "init": {"kind": "normal", "std": 0.0134},
    }
    presets = (
        *series("nemotron-4-{}", "Nemotron-4 {SIZE} (2024)",
            ("15b", sizes(6144, 32, 48, 8, 24576, 256000, 4096), 15_628_775_424,
             "3.2B in the embedding and 12.5B elsewhere, by general knowledge of the paper"),
            ("340b", sizes(18432, 96, 96, 8, 73728, 256000, 4096) | {"init.std": 0.0063}, 341_029_195_776,
             "9.4B in the embedding and 331.6B elsewhere, by general knowledge of the paper", "heads of 192"),
            evidence="the publisher's training code and launcher; the vocabulary is the default of the public class"),
        *series("minitron-{}", "Minitron {SIZE} (2024)",
            ("4b", sizes(3072, 32, 24, 8, 9216, 256000, 4096), 4_190_509_056, "", "",
             "the publisher's training code; the vocabulary is the default of the public class"),
            ("8b", sizes(4096, 32, 48, 8, 16384, 256000, 4096) | {"attention.head_dim": 128}, 8_271_699_968, "",
             "48 heads of 128 are wider than the model: its width was pruned and its heads were not",
             "another project's record of the released config"),
            published="its name rounds to {SIZE}; no exact count was found"),
    )  # fmt: skip
    architectures = ("NemotronForCausalLM",)
    keys = {
        **like.keys(
            6144, 32, 48, None, 24576, 256000, 4096, eps=1e-5, eps_key="norm_eps", act="relu2", gated=False, std=0.0134
        ),
        **usual(head_dim=None, attention_bias=False, mlp_bias=False, bos_token_id=2, eos_token_id=3),
    }
    groups = (RopeKeys(fraction=0.5),)
    small = like.small(head_dim=12, rope_theta=500.0)
