"""BlenderBot (Roller et al. 2020): a deep decoder on a shallow encoder, with norms first, for conversations."""

from anyformer.families import bart_like as like
from anyformer.families.family import Preset, sizes


class Blenderbot(like.BartLike, kind="blenderbot"):
    """BlenderBot of 3B, and the smaller ones that were distilled from it."""

    base = like.PRE | {
        "position": {"kind": "learned"}, "context": 128, "ids": {"pad": 0, "bos": 1, "eos": [2], "start": 1},
    }  # fmt: skip
    presets = (
        Preset("blenderbot-3b", "BlenderBot 3B (2020)",
               sizes(2560, 2, 32) | {"decoder.depth": 24, "vocab": 8008, "embed.scale": "sqrt(width)"}, 2_696_268_800,
               hub=("facebook/blenderbot-3B",), published="only its name, which rounds to 3B",
               evidence="what the public class has by default", note=like.ZEROS),
    )  # fmt: skip
    architectures = ("BlenderbotForConditionalGeneration",)
    keys = like.keys(8008, 2560, (2, 24), 32, 10240, 128, start=1, ids=(0, 1, 2))
    small = like.BartLike.small | {"pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1}
