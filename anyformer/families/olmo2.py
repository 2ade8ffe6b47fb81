"""OLMo 2 (2024): norms on the output of each branch, and on the whole projected queries and keys."""

from anyformer.families import llama_like as like
from anyformer.families.family import Preset, sizes

# The gain is multiplied in fp32, before the cast back.
NORM = {"kind": "rmsnorm", "eps": 1e-6, "gain_at": "before_cast"}


class Olmo2(like.LlamaLike, kind="olmo2"):
    """OLMo 2."""

    base = like.BASE | {
        "attention": {"heads": 1, "qk_norm": NORM | {"scope": "whole"}},
        "norm": NORM | {"placement": "output"},
        "init": {"kind": "normal", "std": 0.02, "cut": 3.0},
        "loss": {"z": 1e-5},
    }
    presets = (
        Preset("olmo-2-1b", "OLMo 2 1B (2025)", sizes(2048, 16, 16, 16, 8192, 100352, 4096) | {"position.theta": 5e5},
               1_484_916_736, evidence="the publisher's training file and one other project",
               note="its head is its own, unlike that of OLMo 1B"),
        Preset("olmo-2-7b", "OLMo 2 7B (2024)", sizes(4096, 32, 32, 32, 11008, 100352, 4096) | {"position.theta": 5e5},
               7_298_617_344, evidence="the publisher's training file and two other projects",
               note="z-loss 1e-5 and draws cut at 3 sigma as in the training file; the vocabulary is padded to 100352"),
        Preset("olmo-2-13b", "OLMo 2 13B (2024)",
               sizes(5120, 40, 40, 40, 13824, 100352, 4096) | {"position.theta": 5e5}, 13_716_198_400,
               evidence="the publisher's training file and two other projects"),
        Preset("olmo-2-32b", "OLMo 2 32B (2025)", sizes(5120, 64, 40, 8, 27648, 100352, 4096) | {"position.theta": 5e5},
               32_234_279_936, evidence="the publisher's training code and one other project",
               note="the only OLMo 2 with grouped heads"),
    )  # fmt: skip
    architectures = ("Olmo2ForCausalLM",)
    keys = like.keys(
        4096, 32, 32, None, 11008, 50304, 2048, eps=1e-5, qk_norm=True, attention_bias=False,
        pad_token_id=1, eos_token_id=50279,
    )  # fmt: skip
    tensors = like.tensors(like.ATTENTION | like.FFN | like.HEAD_NORMS | like.OUTPUT_NORMS)
