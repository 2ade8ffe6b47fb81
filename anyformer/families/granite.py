"""Granite 3 (2024): LLaMA's design with a constant on the embeddings, on each branch, on scores and on logits."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import divisor, number, usual
from anyformer.families.family import series, sizes

SMALL = "2,533,531,648 in released files of a model of the same shapes"
LARGE = "8,170,864,640 in files of Granite 3.3, which has four tokens more"


class Granite(like.LlamaLike, kind="granite"):
    """Granite 3."""

    base = like.BASE | {
        # 0.015625 in the small model and 0.0078125 in the large: one over the head's width in both.
        "attention": {"heads": 1, "scale": "1/head_dim"},
        "block": {"branch_scale": 0.22},
        "embed": {"kind": "tokens", "scale": 12.0},
        "head": {"kind": "lm", "tied": True},
    }
    presets = (
        *series("granite-3.0-{}", "Granite 3.0 {SIZE} (2024)",
            ("2b", sizes(2048, 40, 32, 8, 8192, 49155, 4096) | {"head.scale": "1/8"}, 2_533_531_648, SMALL, "",
             "another project's record of the released config, and the publisher's code"),
            ("8b", sizes(4096, 40, 32, 8, 12800, 49155, 4096) | {"head.scale": "1/16"}, 8_170_848_256, LARGE,
             "the publisher's code lists a context of 8192",
             "the publisher's code, and another project's record of the released config")),
        *series("granite-3.1-{}", "Granite 3.1 {SIZE} (2024)",
            ("2b", sizes(2048, 40, 32, 8, 8192, 49155, 131072) | {"head.scale": "1/8", "position.theta": 5e6},
             2_533_531_648, SMALL, "", "the config in the publisher's training code"),
            ("8b", sizes(4096, 40, 32, 8, 12800, 49155, 131072) | {"head.scale": "1/16", "position.theta": 1e7},
             8_170_848_256, LARGE, "", "a copy of the config of Granite 3.3, and the publisher's code")),
    )  # fmt: skip
    architectures = ("GraniteForCausalLM",)
    second = True
    keys = {
        **like.keys(4096, 32, 32, None, 11008, 32000, 2048),
        **usual(attention_bias=False, mlp_bias=False, bos_token_id=1, eos_token_id=2),
        "embedding_multiplier": number(1.0, "embed.scale"),
        "logits_scaling": divisor(1.0, "head.scale"),
        "residual_multiplier": number(1.0, "block.branch_scale"),
        "attention_multiplier": number(1.0, "attention.scale"),
    }
    small = like.small(
        embedding_multiplier=3.0, logits_scaling=7.0, residual_multiplier=0.22, attention_multiplier=0.2,
        rope_theta=500.0, tie_word_embeddings=True,
    )  # fmt: skip
