"""BigBird-PEGASUS (Zaheer et al. 2020): PEGASUS with learned positions, whose encoder sees in blocks as BigBird does."""

from dataclasses import replace
from typing import Any

from anyformer.families import bart_like as like
from anyformer.families.big_bird import BLOCK_KEYS, blocks, read_blocks, write_blocks
from anyformer.families.config_keys import flag
from anyformer.families.config_values import Values
from anyformer.families.family import Preset, sizes
from anyformer.families.statemap import StateMap, block_rules
from anyformer.specs.model import ModelSpec

ENCODER = "model.encoder.layers.{i}.self_attn"
NAMES = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output"}


class BigBirdPegasus(like.BartLike, kind="bigbird_pegasus"):
    """BigBird-PEGASUS. What `big_bird` says of its class holds for this one's encoder."""

    base = like.PRE | {
        "context": 4096, "position": {"kind": "learned"}, "attention": {"heads": 1},
        "ffn": {"kind": "gelu_tanh", "bias": True}, "embed": {"kind": "tokens", "scale": "sqrt(width)"},
        "ids": {"pad": 0, "bos": 2, "eos": [1], "start": 2},
    }  # fmt: skip
    presets = (
        Preset("bigbird-pegasus-large", "BigBird-PEGASUS large (2020)",
               sizes(1024, 16, 16)
               | {"vocab": 96103, "ffn.width": 4096, "encoder.attention.pattern": blocks(64, 3, 16, 4096)}, 576_891_904,
               published="about 577M, as is generally known", evidence="what the public class has by default",
               note=like.ZEROS),
    )  # fmt: skip
    architectures = ("BigBirdPegasusForConditionalGeneration",)
    second = True
    exempt = "padded rows with sparse blocks: the class cuts rows into blocks, padding included"
    keys = {
        **like.keys(96103, 1024, (16, 16), 16, 4096, 4096, act="gelu_new", scaled=True, start=2, ids=(0, 2, 1)),
        **BLOCK_KEYS,
        "use_bias": flag(False, "attention.bias"),
    }
    final = "layernorm_embedding"
    small = like.BartLike.small | {
        "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 2, "block_size": 10,
        "num_random_blocks": 1, "activation_function": "gelu_new",
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        return super().read(c) | {"encoder.attention.pattern": read_blocks(c, c["encoder_attention_heads"])}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | write_blocks(spec.stack("encoder"))

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        found = super().weights(spec)
        rest = [rule for rule in found.rules if not rule.theirs.startswith(f"{ENCODER}.")]
        return replace(found, rules=(*rest, *block_rules(ENCODER, NAMES, "encoder.blocks.{i}")))
