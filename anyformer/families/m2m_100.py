"""M2M-100 (Fan et al. 2020) and NLLB-200 (2022): mBART's norms, ReLU, and sines that begin after the padding's id."""

from dataclasses import replace
from typing import Any

from anyformer.families import bart_like as like
from anyformer.families.config_keys import whole
from anyformer.families.config_values import Values
from anyformer.families.family import series, sizes
from anyformer.families.fsmt import read_offset
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


class M2M100(like.BartLike, kind="m2m_100"):
    """M2M-100, and NLLB-200 without experts."""

    base = like.PRE | {
        "context": 1024, "position": {"kind": "sinusoidal", "layout": "halves", "endpoint": True, "offset": 2},
        "ffn": {"kind": "relu", "bias": True}, "embed": {"kind": "tokens", "scale": "sqrt(width)"},
        "ids": {"pad": 1, "bos": 0, "eos": [2], "start": 2},
    }  # fmt: skip
    presets = (
        *series("m2m100-{}", "M2M-100 {SIZE} (2020)",
            ("418m", sizes(1024, 12, 16), 483_905_536, "only its name; 418M is less than the class has",
             "the name may leave out some of the table, which has 131M"),
            ("1.2b", sizes(1024, 24, 16) | {"ffn.width": 8192}, 1_239_470_080, "only its name, which rounds to 1.2B"),
            changes={"vocab": 128112}, hub=("facebook/m2m100_{SIZE}",),
            evidence="418M is what the public class has by default; 1.2B is twice as deep with a feed-forward twice as wide, "
            "as is generally known"),
        *series("nllb-200-{}", "NLLB-200 {SIZE} (2022)",
            ("600m", sizes(1024, 12, 16), 615_073_792), ("1.3b", sizes(1024, 24, 16) | {"ffn.width": 8192}, 1_370_638_336),
            ("3.3b", sizes(2048, 24, 16), 3_344_863_232),
            changes={"vocab": 256206}, published="only its name, which rounds to {SIZE}",
            evidence="the sizes that the released configs are generally known to have"),
    )  # fmt: skip
    biased = False
    architectures = ("M2M100ForConditionalGeneration",)
    exempt = ""
    keys = {
        **like.keys(128112, 1024, (12, 12), 16, 4096, 1024, act="relu", scaled=True, attention_dropout=0.1, start=2),
        "pad_token_id": whole(1),
    }

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        return super().read(c) | {"position.offset": read_offset(c, c["vocab_size"])}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        found = super().weights(spec)
        # Tables that the class computes, whatever its files hold.
        return replace(found, ignored=(*found.ignored, r"(model\.)?(encoder|decoder)\.embed_positions\.weights"))
