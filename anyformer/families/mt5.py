"""mT5 (Xue et al. 2020): T5 1.1 for a hundred languages, with a vocabulary of a quarter of a million."""

from anyformer.families import t5_like as like
from anyformer.families.config_keys import whole
from anyformer.families.family import series


class MT5(like.T5Like, kind="mt5"):
    """mT5."""

    base = like.BASE | {
        "context": 1024,
        "ffn": {"kind": "geglu", "form": "tanh"},
        "head": {"kind": "lm", "tied": False},
    }
    presets = series("mt5-{}", "mT5 {} (2020)",
        ("small", like.sizes(512, 8, 6, 64, 1024), 300_176_768, "its notes round to 300M"),
        ("base", like.sizes(768, 12, 12, 64, 2048), 582_401_280, "its notes round to 580M"),
        ("large", like.sizes(1024, 24, 16, 64, 2816), 1_229_581_312, "its notes round to 1.2B"),
        ("xl", like.sizes(2048, 24, 32, 64, 5120), 3_742_619_648, "its notes round to 3.7B"),
        ("xxl", like.sizes(4096, 24, 64, 64, 10240), 12_921_057_280, "its notes round to 13B"),
        changes={"vocab": 250112}, evidence="the publisher's configuration files and notes",
        note="counted with a head of its own, as released; this release of the public class ties it when it makes one",
    )  # fmt: skip
    architectures = ("MT5ForConditionalGeneration",)
    bodies = ("MT5EncoderModel",)
    second = True
    keys = like.keys(vocab=250112, ffn=1024, depth=8, heads=6, projection="gated-gelu") | {
        "decoder_start_token_id": whole(0, null=True),
    }
    small = like.T5Like.small | {"tie_word_embeddings": False}
