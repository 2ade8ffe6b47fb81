"""UMT5 (Chung et al. 2023): mT5 with a bias table in every layer instead of one for all.

Its public class divides the decoder's output by the root of the width, as T5 does with a tied head. In transformers
5.22.2 it does so whatever the file says about tying: that release sets `tie_word_embeddings` when it reads a config,
though it leaves a head of its own in place. A model that is read here computes what that class does. To have logits
that were trained without it, as earlier releases gave them: `spec.vary({"head.scale": 1.0})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import t5_like as like
from anyformer.families.config_keys import Values, flag, whole
from anyformer.families.family import Family
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


class UMT5(Family, kind="umt5"):
    """UMT5. Its sizes were not confirmed, so it has no preset; its checkpoints are read."""

    base = like.BASE | {
        "context": 1024,
        "position": {"kind": "t5", "buckets": 32, "max_distance": 128, "shared": False},
        "ffn": {"kind": "geglu", "form": "tanh"},
        "head": {"kind": "lm", "tied": False, "scale": "1/sqrt(width)"},
    }
    architectures = ("UMT5ForConditionalGeneration",)
    model_type = "umt5"
    keys = like.keys(vocab=250112, ffn=1024, depth=8, heads=6, projection="gated-gelu") | {
        "decoder_start_token_id": whole(0, null=True),
        # The public class does not read it.
        "scalable_attention": flag(True),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return like.read(c, scaled=True, context=1024)

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        return like.write(spec)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.weights(spec)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(tie_word_embeddings=False)
