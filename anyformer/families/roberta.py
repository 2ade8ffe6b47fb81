"""RoBERTa (Liu et al. 2019): BERT whose positions are counted from the padding's id on, with a head of other names."""

from __future__ import annotations

from typing import Any

from anyformer.families import bert_like as like
from anyformer.families.config_keys import whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset
from anyformer.families.fsmt import read_offset
from anyformer.families.statemap import StateMap
from anyformer.parts.positions.learned import Learned
from anyformer.specs.model import ModelSpec

HEAD: dict[str, Any] = {"head": "lm_head", "transform": ("dense", "layer_norm")}
"""What its head is called."""


def read_offset_positions(c: Values) -> dict[str, Any]:
    """A table of positions whose rows up to the padding's id hold none."""
    offset = read_offset(c, c["vocab_size"])
    return {"context": c["max_position_embeddings"] - offset, "position.offset": offset}


def write_offset_positions(spec: ModelSpec) -> dict[str, Any]:
    """The rows of such a table."""
    position = spec.stacks[-1].layers[0].position
    return {"max_position_embeddings": spec.context + (position.offset if isinstance(position, Learned) else 0)}


def _preset(size: str, width: int, depth: int, heads: int, params: int, published: str) -> Preset:
    return Preset(
        name=f"roberta-{size}", hub=(f"FacebookAI/roberta-{size}",), title=f"RoBERTa {size} (2019)",
        changes={"width": width, "depth": depth, "attention.heads": heads},
        params=params, published=published,
        evidence="sizes from the publisher's training code, the vocabulary from the public class; eps 1e-5 is what the "
        "released config is generally known to say and was not read again (the public class's default is 1e-12)",
        note="with the masked-LM head and without the pooler; the table of positions has 514 rows",
    )  # fmt: skip


class Roberta(Family, kind="roberta"):
    """RoBERTa with its masked-LM head."""

    base = like.BASE | {
        "vocab": 50265,
        "context": 512,
        "norm": {"kind": "layernorm", "eps": 1e-5, "placement": "post", "embedding": True},
        "position": {"kind": "learned", "offset": 2},
        "embed": {"kind": "tokens", "token_types": 1},
        "ids": {"pad": 1, "bos": 0, "eos": [2]},
    }
    presets = (
        _preset("base", 768, 12, 12, 124_697_433,
                "125M; another library records 124,052,736: without head, pooler and three rows that are never read"),
        _preset("large", 1024, 24, 16, 355_412_057,
                "355M; another library records 354,307,072: without head, pooler and three rows that are never read"),
    )  # fmt: skip
    architectures = ("RobertaForMaskedLM",)
    model_type = "roberta"
    before_types = True
    keys = like.keys(vocab=50265, context=512, bos=0, eos=2) | {"pad_token_id": whole(1)}
    small = like.small(pad_token_id=1, bos_token_id=0, eos_token_id=2)

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        # The head has GELU, whatever the layers have.
        return super().read(c) | read_offset_positions(c) | {"head.activation": "gelu"}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | write_offset_positions(spec)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.weights(spec, "roberta", **HEAD)
