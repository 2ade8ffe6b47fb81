"""MPNet (Song et al. 2020): BERT with a table of positions and T5's relative bias at once, and RoBERTa's head."""

from typing import Any

from anyformer.families import bert_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import must, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Preset, sizes
from anyformer.families.statemap import Rule
from anyformer.specs.model import ModelSpec

FIRST = 2
"""The row of position 0: the public class counts from the padding of its vocabulary, 1, whatever a config says."""


class MPNet(like.BertLike, kind="mpnet"):
    """MPNet with its masked-LM head."""

    base = like.BASE | {
        "vocab": 30527,
        "context": 512,
        "norm": {"kind": "layernorm", "eps": 1e-5, "placement": "post", "embedding": True},
        "position": {"kind": "t5", "buckets": 32, "max_distance": 128},
        "embed": {"kind": "tokens", "position": {"kind": "learned", "offset": FIRST}},
        "ids": {"pad": 1, "bos": 0, "eos": [2]},
    }
    presets = (
        Preset("mpnet-base", "MPNet base (2020)", sizes(768, 12, 12), 109_518_527, hub=("microsoft/mpnet-base",),
               published="110M",
               evidence="sizes are the defaults of the public class; eps 1e-5 and 514 rows of positions are what the "
               "released config is generally known to say and were not read again",
               note="with the masked-LM head and without the pooler"),
    )  # fmt: skip
    architectures = ("MPNetForMaskedLM",)
    tasks = tasks.ROBERTA
    body, head = "mpnet", ("lm_head", "dense", "layer_norm")
    parts = (
        like.PARTS | {name: f"attention.attn.{name}" for name in "qkvo"} | {"attention_after": "attention.LayerNorm"}
    )
    positions = "positions.1.table"
    keys = {
        name: key
        for name, key in like.keys(vocab=30527, context=512, bos_token_id=0, eos_token_id=2).items()
        if name not in ("type_vocab_size", "position_embedding_type", "is_decoder")
    } | {
        "pad_token_id": whole(1, null=True),
        # The public class has so many rows, and always counts buckets as if there were 32, up to a distance of 128.
        "relative_attention_num_buckets": must(32),
    }
    small = {"max_position_embeddings": 66, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        # The head has GELU, whatever the layers have.
        return super().read(c) | {"context": c["max_position_embeddings"] - FIRST, "head.activation": "gelu"}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | {"max_position_embeddings": spec.context + FIRST}

    @classmethod
    def rules(cls, spec: ModelSpec) -> tuple[Rule, ...]:
        return (Rule("mpnet.encoder.relative_attention_bias.weight", "encoder.positions.0.table"),)
