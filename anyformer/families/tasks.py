"""Task classes of a family: its body with a head that classifies, such as BertForSequenceClassification.

A task is data: which of our heads it is, what its tensors are called, and what config keys say about it. A family lists
its tasks by the end of the class's name (`Family.tasks`); those of `DECODER` are its own unless it says otherwise. Only
names that the public library has count (`public_keys.json`). Tests find every class through the registry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anyformer.families.config_keys import TABLE, Key, SpecView, must, number, whole
from anyformer.families.config_values import Values
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.embed_head import SequenceHead
from anyformer.specs.model import ModelSpec

SEQUENCE, TOKEN, ANSWER, CHOICE = (
    "SequenceClassification",
    "TokenClassification",
    "QuestionAnswering",
    "MultipleChoice",
)
"""Ends of the names of public classes."""
PROBLEMS = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}
"""Our name of what is asked -> theirs."""
LABELS: dict[str, Key] = {
    "id2label": TABLE,
    "label2id": TABLE,
    "num_labels": whole(None),
    "problem_type": replace(must(None, *PROBLEMS.values()), what=f"null, {', '.join(PROBLEMS.values())}"),
}
"""What every config may say about classes."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A class of a family with a head of its own."""

    kind: str
    """That of our head."""
    tensors: Mapping[str, str]
    """Part of our head (dense, norm, answer) -> its name in files, where {body} is what the family calls its body."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our head that are the same in every file."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Keys that mean something for this head, beside those of the family or instead of them."""
    kept: tuple[str, ...] = ()
    """Fields of the head that the family's own keys are read into, for this head as for the one that predicts tokens."""
    dropout: str = "classifier_dropout"
    """The key of the dropout before the answer; null: that of the layers."""
    moved: tuple[str, str] | None = None
    """What the names of the body begin with in other files of the family, and in those of this class."""
    wraps: bool = False
    """Its decoder, which reads the source once more, is fed the last token of the row first."""
    encoder: bool = False
    """It has the encoder of an encoder-decoder only."""

    def all_keys(self) -> dict[str, Key]:
        """Its keys, those of every task among them."""
        return LABELS | {self.dropout: number(None)} | dict(self.keys)

    def read(self, c: Values, changes: Mapping[str, Any]) -> dict[str, Any]:
        """What a config has otherwise than the family's base, from what it would have as a model that predicts tokens."""
        own = {f"head.{name}" for name in self.kept} | {path for key in self.keys.values() for path in key.sets}
        found = {path: value for path, value in changes.items() if not path.startswith("head.") or path in own}
        if self.encoder:
            found = {path: value for path, value in found.items() if not path.startswith("decoder.")}
            found = {path.removeprefix("encoder."): value for path, value in found.items()} | {"topology": "encoder"}
        if self.wraps:
            found["ids.start"] = None
        dropout = c[self.dropout] if c[self.dropout] is not None else found.get("block.dropout", 0.0)
        head: dict[str, Any] = {"kind": self.kind, "dropout": float(dropout)} | dict(self.head)
        count, names = read_labels(c)
        if self.kind in ("sequence", "token"):
            head |= {"labels": count, "names": list(names)}
        if self.kind == "sequence":
            head["problem"] = next((ours for ours, name in PROBLEMS.items() if name == c["problem_type"]), None)
        if self.kind == "qa" and count != 2:
            c.refuse(
                "num_labels", f"{count} labels: the scores of a token are that an answer starts and ends there", "2"
            )
        return found | {f"head.{name}": value for name, value in head.items() if f"head.{name}" not in own}

    def write(self, spec: ModelSpec, view: SpecView) -> dict[str, Any]:
        """Its keys of a spec."""
        head = spec.head
        written = {name: key.write(view) for name, key in self.keys.items() if key.write is not None}
        written[self.dropout] = getattr(head, "dropout", 0.0)
        if isinstance(head, SequenceHead):
            written["problem_type"] = None if head.problem is None else PROBLEMS[head.problem]
        labels = getattr(head, "labels", None)
        return written | ({} if labels is None else write_labels(getattr(head, "names", ()), labels))

    def table(self, body: StateMap, called: str) -> StateMap:
        """The table of the class, from that of the family, whose body is called so."""
        rules = tuple(rule for rule in body.rules if not _is_head(rule))
        moved = replace(body, rules=rules) if self.moved is None else _moved(replace(body, rules=rules), *self.moved)
        names = {part: name.format(body=called) for part, name in self.tensors.items()}
        own = tuple(Rule(f"{name}.{{p}}", f"head.{part}.{{p}}") for part, name in names.items())
        used = [f"{name}.{p}" for name in names.values() for p in ("weight", "bias")]
        ignored = tuple(p for p in moved.ignored if not any(re.fullmatch(p, name) for name in used))
        also = tuple(self.table(other, called) for other in body.also)
        return replace(moved, rules=(*moved.rules, *own), ignored=ignored, also=also)


def _is_head(rule: Rule) -> bool:
    names = (rule.ours,) if isinstance(rule.ours, str) else rule.ours
    return any(name.startswith("head.") for name in names)


def _moved(table: StateMap, old: str, new: str) -> StateMap:
    """A table whose names of theirs begin otherwise."""

    def at(name: str) -> str:
        return new + name.removeprefix(old) if name.startswith(old) else name

    def pattern(text: str) -> str:
        return rf"({re.escape(new)})?{text}"

    return replace(
        table,
        rules=tuple(replace(rule, theirs=at(rule.theirs)) for rule in table.rules),
        copies={at(copy): at(name) for copy, name in table.copies.items()},
        repeated=tuple(map(at, table.repeated)),
        zeros=tuple(map(at, table.zeros)),
        ignored=tuple(map(pattern, table.ignored)),
        computed={pattern(text): sines for text, sines in table.computed.items()},
        prefix=at(table.prefix),
    )


def read_labels(c: Values) -> tuple[int, tuple[str, ...]]:
    """How many classes there are, and their names unless they are LABEL_0, LABEL_1 ..."""
    named, given = c["id2label"], c["num_labels"]
    if named is None:
        return 2 if given is None else given, ()
    by_number = {str(number): name for number, name in named.items()}
    names = tuple(str(by_number.get(str(i))) for i in range(len(named)))
    if sorted(by_number) != sorted(map(str, range(len(named)))):
        c.refuse("id2label", f"names {', '.join(sorted(by_number)[:8])} instead of 0 to {len(named) - 1}")
    if given not in (None, len(named)):
        c.refuse("num_labels", f"{given} is not the number of names in id2label, {len(named)}")
    return len(named), () if names == numbered(len(named)) else names


def write_labels(names: tuple[str, ...], labels: int) -> dict[str, Any]:
    """The names of classes as keys."""
    called = names or numbered(labels)
    return {
        "id2label": {str(i): name for i, name in enumerate(called)},
        "label2id": {name: i for i, name in enumerate(called)},
    }


def numbered(labels: int) -> tuple[str, ...]:
    """What classes without names are called."""
    return tuple(f"LABEL_{i}" for i in range(labels))


def pooling(names: Mapping[str | None, str]) -> Key:
    """Which state of a row the head reads: what a family calls it -> our name. The first is what an absent key means."""
    default = next(iter(names))
    return replace(
        must(*names),
        sets=("head.pool",),
        read=lambda c, name: {"head.pool": names[c[name]]},
        write=lambda view: next((name for name, pool in names.items() if pool == view.get("head.pool")), default),
    )


def sequence(answer: str, dense: str = "", *, activation: str = "tanh", **more: Any) -> Task:
    """Classes of a row from its first token, through a dense layer where it has a name."""
    return _pooling("sequence", answer, dense, activation, **more)


def choice(answer: str, dense: str = "", *, activation: str = "tanh", **more: Any) -> Task:
    """A score of a row, which is one of several, from its first token."""
    return _pooling("choice", answer, dense, activation, **more)


def _pooling(kind: str, answer: str, dense: str, activation: str, **more: Any) -> Task:
    own = (
        {"dense": True} | ({} if "activation" in more.get("kept", ()) else {"activation": activation}) if dense else {}
    )
    tensors = ({"dense": dense} if dense else {}) | {"answer": answer} | more.pop("tensors", {})
    return Task(kind=kind, tensors=tensors, head={"pool": "first"} | own | more.pop("head", {}), **more)


def token(answer: str = "classifier", **more: Any) -> Task:
    """Classes of each token."""
    return Task(kind="token", tensors={"answer": answer}, **more)


def answer(name: str = "qa_outputs", **more: Any) -> Task:
    """Where an answer starts and ends."""
    return Task(kind="qa", tensors={"answer": name}, **more)


SCORE = Task(kind="sequence", tensors={"answer": "score"}, head={"pool": "last", "bias": False})
"""The last token of a decoder, without a bias."""
DECODER: dict[str, Task] = {SEQUENCE: SCORE, TOKEN: token(), ANSWER: answer()}
"""GPT-2 and those that follow it."""
GENERIC: dict[str, Task] = {SEQUENCE: SCORE, TOKEN: token("score"), ANSWER: answer()}
"""The library's own generic classes: Mistral."""
LLAMA: dict[str, Task] = GENERIC | {ANSWER: answer(moved=("model.", "transformer."))}
"""The same, with an old name of the body where questions are answered."""
POOLER = "{body}.pooler.dense"
BERT: dict[str, Task] = {
    SEQUENCE: sequence("classifier", POOLER),
    TOKEN: token(),
    ANSWER: answer(),
    CHOICE: choice("classifier", POOLER),
}
"""The pooler of the first token."""
ROBERTA: dict[str, Task] = BERT | {SEQUENCE: sequence("classifier.out_proj", "classifier.dense")}
"""A classification head of its own, in place of the pooler."""
BART: dict[str, Task] = {
    SEQUENCE: sequence("classification_head.out_proj", "classification_head.dense", head={"pool": "eos"}),
    ANSWER: answer(),
}
"""The decoder at the end of the text, which it reads once more."""
MBART: dict[str, Task] = {end: replace(task, wraps=True) for end, task in BART.items()}
DISTILBERT: dict[str, Task] = BERT | {
    SEQUENCE: sequence("classifier", "pre_classifier", activation="relu", dropout="seq_classif_dropout"),
    ANSWER: answer(dropout="qa_dropout"),
    CHOICE: choice("classifier", "pre_classifier", activation="relu", dropout="seq_classif_dropout"),
}
ALBERT: dict[str, Task] = {
    SEQUENCE: sequence("classifier", "{body}.pooler", dropout="classifier_dropout_prob"),
    TOKEN: token(dropout="classifier_dropout_prob"),
    ANSWER: answer(),
    CHOICE: choice("classifier", "{body}.pooler", dropout="classifier_dropout_prob"),
}
_CONTEXT: dict[str, Any] = {"activation": "gelu", "dropout": "cls_dropout", "keys": {"pooler_hidden_act": must("gelu")}}
DEBERTA: dict[str, Task] = BERT | {
    SEQUENCE: sequence("classifier", "pooler.dense", **_CONTEXT),
    CHOICE: choice("classifier", "pooler.dense", **_CONTEXT),
}
ELECTRA: dict[str, Task] = ROBERTA | {
    SEQUENCE: sequence("classifier.out_proj", "classifier.dense", activation="gelu"),
    CHOICE: choice("classifier", "sequence_summary.summary", activation="gelu", dropout="summary_last_dropout"),
}
