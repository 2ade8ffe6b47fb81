"""RoFormer (Su et al. 2021): BERT with rotated queries and keys (RoPE) instead of a table of positions."""

import dataclasses

from anyformer.families import bert_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import Key, embed_width, flag, must
from anyformer.families.family import Preset, sizes
from anyformer.families.statemap import StateMap
from anyformer.families.transformer import sines
from anyformer.specs.model import ModelSpec

BASE = like.BASE | {"vocab": 50000, "context": 1536, "position": {"kind": "rope", "layout": "interleaved"}}
KEYS: dict[str, Key] = like.keys(vocab=50000, context=1536) | {
    "embedding_size": embed_width(),
    "rotary_value": flag(False, "position.on_values"),
}


SUMMARY = {"summary_type": must("last"), "summary_use_proj": must(None, False), "summary_activation": must(None)}
"""What may stand before the score of a choice, and does not."""


class RoFormerLike(like.NarrowBertLike):
    """What its encoder and its decoder share."""

    model_type = body = "roformer"
    unread = (r"(roformer\.)?encoder\.embed_positions\.weight",)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        # The angles of its rotation, which the public class reads from the file.
        return dataclasses.replace(super().weights(spec), computed=sines(spec, cls.unread[0]))


class RoFormer(RoFormerLike, kind="roformer"):
    """RoFormer as an encoder, with its masked-LM head."""

    base = BASE
    presets = (
        Preset("roformer-base-zh", "RoFormer base, Chinese words (2021)", sizes(768, 12, 12), 124_099_664,
               published="no count was found",
               evidence="another library's table of pretrained models, the authors' notes, and the public class",
               note="a vocabulary of words, not characters"),
        Preset("roformer-char-base-zh", "RoFormer base, Chinese characters (2021)",
               sizes(768, 12, 12) | {"vocab": 12000, "context": 512}, 94_877_664, published="no count was found",
               evidence="another library's table of pretrained models, and the public class"),
    )  # fmt: skip
    architectures = ("RoFormerForMaskedLM",)
    tasks = {
        **like.BertLike.tasks,
        tasks.SEQUENCE: tasks.sequence("classifier.out_proj", "classifier.dense", kept=("activation",)),
        tasks.CHOICE: tasks.choice("classifier", head={"pool": "last"}, keys=SUMMARY),
    }
    keys = KEYS
    # A table that is narrower than the model.
    small = {"embedding_size": 20}
