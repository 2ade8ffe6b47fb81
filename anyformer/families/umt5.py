"""UMT5 (Chung et al. 2023): mT5 with a bias table in every layer instead of one for all.

Its public class divides the decoder's output by the root of the width, as T5 does with a tied head. In transformers
5.22.2 it does so whatever the file says about tying: that release sets `tie_word_embeddings` when it reads a config,
though it leaves a head of its own in place. A model that is read here computes what that class does. To have logits
that were trained without it, as earlier releases gave them: `spec.vary({"head.scale": 1.0})`.
"""

from anyformer.families.config_keys import flag
from anyformer.families.mt5 import MT5


class UMT5(MT5, kind="umt5"):
    """UMT5. Its sizes were not confirmed, so it has no preset; its checkpoints are read."""

    base = MT5.base | {
        "position": {"kind": "t5", "buckets": 32, "max_distance": 128, "shared": False},
        "head": {"kind": "lm", "tied": False, "scale": "1/sqrt(width)"},
    }
    architectures = ("UMT5ForConditionalGeneration",)
    bodies = ("UMT5EncoderModel",)
    # The public class does not read scalable_attention.
    keys = MT5.keys | {"scalable_attention": flag(True)}
