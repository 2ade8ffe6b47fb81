"""RoBERTa (Liu et al. 2019): BERT whose positions are counted from the padding's id on, with a head of other names."""

from typing import Any

from anyformer.families import bert_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import Key, whole
from anyformer.families.config_values import Values
from anyformer.families.family import series, sizes
from anyformer.families.fsmt import read_offset
from anyformer.parts.positions.learned import Learned
from anyformer.specs.model import ModelSpec

BASE: dict[str, Any] = like.BASE | {
    "context": 512,
    "norm": {"kind": "layernorm", "eps": 1e-5, "placement": "post", "embedding": True},
    "position": {"kind": "learned", "offset": 2},
    "embed": {"kind": "tokens", "token_types": 1},
    "ids": {"pad": 1, "bos": 0, "eos": [2]},
}
"""What released models of this design have."""


def keys(vocab: int, context: int = 512) -> dict[str, Key]:
    """BERT's keys with the special ids of RoBERTa, and the defaults of one public class."""
    return like.keys(vocab=vocab, context=context, bos_token_id=0, eos_token_id=2) | {"pad_token_id": whole(1)}


class RobertaLike(like.BertLike):
    """What RoBERTa and its relatives share: a table of positions whose rows up to the padding's id hold none."""

    base = BASE
    body = "roberta"
    head = ("lm_head", "dense", "layer_norm")
    tasks = tasks.ROBERTA
    keys = keys(30522)
    small = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        offset = read_offset(c, c["vocab_size"])
        # The head has GELU, whatever the layers have.
        own = {"context": c["max_position_embeddings"] - offset, "position.offset": offset, "head.activation": "gelu"}
        return super().read(c) | own

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        position = spec.stacks[-1].layers[0].position
        rows = spec.context + (position.offset if isinstance(position, Learned) else 0)
        return super().write(spec) | {"max_position_embeddings": rows}


class Roberta(RobertaLike, kind="roberta"):
    """RoBERTa with its masked-LM head."""

    base = BASE | {"vocab": 50265}
    presets = series("roberta-{}", "RoBERTa {} (2019)",
        ("base", sizes(768, 12, 12), 124_697_433,
         "125M; another library records 124,052,736: without head, pooler and three rows that are never read"),
        ("large", sizes(1024, 24, 16), 355_412_057,
         "355M; another library records 354,307,072: without head, pooler and three rows that are never read"),
        hub=("FacebookAI/roberta-{}",),
        evidence="sizes from the publisher's training code, the vocabulary from the public class; eps 1e-5 is what the "
        "released config is generally known to say and was not read again (the public class's default is 1e-12)",
        note="with the masked-LM head and without the pooler; the table of positions has 514 rows",
    )  # fmt: skip
    architectures = ("RobertaForMaskedLM",)
    before_types = True
    keys = keys(50265)
