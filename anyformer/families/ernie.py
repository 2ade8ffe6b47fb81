"""ERNIE 1.0 to 3.0 (Sun et al. 2019 to 2021): BERT, trained on masked words and names, with a table of tasks since 2.0.

Every token is of the first task, as in the public class unless it is given others.
"""

from dataclasses import replace
from typing import Any

from anyformer.families import bert_like as like
from anyformer.families.config_keys import flag, whole
from anyformer.families.statemap import Rule
from anyformer.specs.model import ModelSpec


class Ernie(like.BertLike, kind="ernie"):
    """ERNIE with its masked-LM head. Its pooler and its next-sentence head are left out."""

    base = like.BASE | {"vocab": 18000, "context": 513, "ids": {"pad": 0}}
    architectures = ("ErnieForMaskedLM", "ErnieForPreTraining")
    body = "ernie"
    second = True
    keys = like.keys(vocab=30522, context=512) | {
        "use_task_id": flag(False),
        "task_type_vocab_size": replace(
            whole(3),
            sets=("embed.task_types",),
            read=lambda c, name: {"embed.task_types": c[name] if c["use_task_id"] else 0},
            write=lambda view: view.get("embed.task_types") or 3,
        ),
    }
    unread = like.NEXT_SENTENCE
    small = {"use_task_id": True}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | {"use_task_id": bool(getattr(spec.embed, "task_types", 0))}

    @classmethod
    def rules(cls, spec: ModelSpec) -> tuple[Rule, ...]:
        return (Rule("ernie.embeddings.task_type_embeddings.weight", "embed.tasks.weight"),)
