"""mT5 (Xue et al. 2020): T5 1.1 for a hundred languages, with a vocabulary of a quarter of a million."""

from __future__ import annotations

from typing import Any

from anyformer.families import t5_like as like
from anyformer.families.config_keys import whole
from anyformer.families.family import Preset

BASE: dict[str, Any] = like.BASE | {
    "context": 1024,
    "ffn": {"kind": "geglu", "form": "tanh"},
    "head": {"kind": "lm", "tied": False},
}
KEYS = like.keys(vocab=250112, ffn=1024, depth=8, heads=6, projection="gated-gelu") | {
    "decoder_start_token_id": whole(0, null=True),
}


def _preset(size: str, width: int, depth: int, heads: int, ffn: int, params: int, published: str) -> Preset:
    return Preset(
        name=f"mt5-{size}", title=f"mT5 {size} (2020)",
        changes=like.sizes(width, depth, heads, 64, ffn, 250112),
        params=params, published=published,
        evidence="the publisher's configuration files and notes",
        note="counted with a head of its own, as released; this release of the public class ties it when it makes one",
    )  # fmt: skip


class MT5(like.T5Like, kind="mt5"):
    """mT5."""

    base = BASE
    presets = (
        _preset("small", 512, 8, 6, 1024, 300_176_768, "its notes round to 300M"),
        _preset("base", 768, 12, 12, 2048, 582_401_280, "its notes round to 580M"),
        _preset("large", 1024, 24, 16, 2816, 1_229_581_312, "its notes round to 1.2B"),
        _preset("xl", 2048, 24, 32, 5120, 3_742_619_648, "its notes round to 3.7B"),
        _preset("xxl", 4096, 24, 64, 10240, 12_921_057_280, "its notes round to 13B"),
    )
    architectures = ("MT5ForConditionalGeneration",)
    model_type = "mt5"
    second = True
    keys = KEYS
    small = like.small(tie_word_embeddings=False)
