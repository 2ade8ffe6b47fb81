"""PEGASUS (Zhang et al. 2020): an encoder-decoder for summaries, with norms first, sines and no bos."""

from dataclasses import replace

from anyformer.families import bart_like as like
from anyformer.families.family import Preset, sizes
from anyformer.families.statemap import StateMap
from anyformer.families.transformer import SINES, sines
from anyformer.specs.model import ModelSpec


class Pegasus(like.BartLike, kind="pegasus"):
    """PEGASUS."""

    base = like.PRE | {
        "context": 1024, "position": {"kind": "sinusoidal", "layout": "halves"}, "ffn": {"kind": "relu", "bias": True},
        "embed": {"kind": "tokens", "scale": "sqrt(width)"}, "ids": {"pad": 0, "eos": [1], "start": 0},
    }  # fmt: skip
    presets = (
        Preset("pegasus-large", "PEGASUS large (2020)", sizes(1024, 16, 16) | {"vocab": 96103, "ffn.width": 4096}, 568_699_904,
               hub=("google/pegasus-large",), published="568M, as the paper says",
               evidence="the paper's sizes; the vocabulary is what the released files are generally known to have", note=like.ZEROS),
    )  # fmt: skip
    architectures = ("PegasusForConditionalGeneration",)
    keys = like.keys(50265, 1024, (12, 12), 16, 4096, 1024, start=0, ids=(0, None, 1))
    small = like.BartLike.small | {
        "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "decoder_start_token_id": 0,
        "activation_function": "relu", "forced_eos_token_id": 1,
    }  # fmt: skip

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        found = super().weights(spec)
        return replace(found, ignored=(*found.ignored, *SINES), computed=sines(spec))
