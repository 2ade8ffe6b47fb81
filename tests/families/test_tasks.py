"""Every family's classes with other heads against the public ones: answers in fp64, labels and tensors there and back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.auto import modeling_auto

import anyformer as af
from anyformer.families.checkpoint import published
from anyformer.families.family import Family, families
from anyformer.families.tasks import ANSWER, CHOICE, SEQUENCE, TOKEN
from tests.families.cases import COUNTED, RIGHT
from tests.families.oracle import answer, is_ignored, oracle
from tests.quick import quick
from tests.tolerances import assert_close

NAMES = {0: "no", 1: "perhaps", 2: "yes"}
UNREAD = {
    "BigBirdForQuestionAnswering": "a feed-forward of its own, and scores that depend on where a separator's id is",
    "ReformerForSequenceClassification": "reads the first token, which sees no other in the decoder that we have",
}
"""Public classes of families that we have which are not read, and why."""
LENGTH = 21
LISTS = {
    SEQUENCE: modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    TOKEN: modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    ANSWER: modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    CHOICE: modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
}


def cases() -> list[tuple[str, str]]:
    """Kind and class."""
    return [(family.kind, name) for family in families() for name in family.task_classes()]


class Case:
    """A public model with a task, saved by its own library, and ours, loaded from that directory."""

    def __init__(self, kind: str, name: str, folder: Path, **changes: Any) -> None:
        found = Family.named(kind)
        assert found is not None
        self.family, self.name, self.folder = found, name, folder
        self.task = found.task_classes()[name]
        config: dict[str, Any] = found.small | {"pad_token_id": found.small.get("pad_token_id") or 0} | changes
        if self.task.kind in ("sequence", "token"):
            config |= {"id2label": NAMES, "label2id": {label: i for i, label in NAMES.items()}}
        self.theirs = oracle(found, config, named=name)
        self.theirs.save_pretrained(folder)
        self.ours = af.load(folder, dtype=torch.float64)
        spec = self.ours.spec
        generator = torch.Generator().manual_seed(1)
        rows = (2, 3) if self.task.kind == "choice" else (2,)
        self.ids = torch.randint(4, spec.vocab, (*rows, LENGTH), generator=generator)
        if spec.ids.eos:
            # A language may come after it (mBART).
            self.ids[..., -2] = spec.ids.eos[0]
        assert spec.ids.pad is not None
        self.pad = spec.ids.pad

    def answers(self, ids: torch.Tensor, mask: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Ours and theirs."""
        spec, given = self.ours.spec, {"attention_mask": mask}
        marks: dict[str, Any] = {}
        if self.family.kind == "longformer":
            first = torch.zeros_like(mask)
            first[..., 0] = 1
            given, marks = given | {"global_mask": first}, {"global_attention_mask": first}
        types = (torch.arange(LENGTH) > 6).long().expand_as(ids) if spec.embed.token_types > 1 else None
        ours = self.ours(ids, token_types=types, **given).logits
        return ours, answer(self.theirs, input_ids=ids, attention_mask=mask, token_type_ids=types, **marks, **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    kept: dict[str, Case] = {}

    def make(kind: str, name: str) -> Case:
        if name not in kept:
            kept.clear()
            kept[name] = Case(kind, name, tmp_path_factory.mktemp("saved"))
        return kept[name]

    return make


def pytest_generate_tests(metafunc):
    if {"kind", "name"} <= set(metafunc.fixturenames):
        some = [pytest.param(*case, marks=[quick] if case[0] == "bert" else [], id="-".join(case)) for case in cases()]
        metafunc.parametrize(("kind", "name"), some, scope="module")


@torch.no_grad()
def test_answers_equal_the_published_whole_and_padded(made, kind, name):
    case, pad = made(kind, name), 4
    mask = torch.ones_like(case.ids)
    assert_close("oracle", *case.answers(case.ids, mask))
    pool, two = getattr(case.ours.spec.head, "pool", "each"), case.ours.spec.topology == "encoder-decoder"
    # What a class reads that takes the first or the last place of a row whatever stands there can't be told padded.
    right = pool != "last" or case.task.kind == "sequence"
    left = not two and kind not in RIGHT and (pool != "first" or (kind, pool) == ("modernbert", "choice"))
    for side in ["right"] * right + ["left"] * left:
        mask = torch.ones_like(case.ids)
        mask[..., 1, -pad if side == "right" else 0 : None if side == "right" else pad] = 0
        ids = case.ids.masked_fill(mask == 0, case.pad)
        if pool == "eos":
            ids[1, -pad - 2] = case.ids[1, -2]
        # Where a class takes positions it gets those of the real tokens; on the right of them it counts them itself.
        places = {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)} if side == "left" and kind not in COUNTED else {}
        ours, theirs = case.answers(ids, mask, **places)
        real = mask.bool() if pool == "each" else ...
        assert_close("oracle", ours[real], theirs[real])


@torch.no_grad()
def test_labels_and_tensors_come_over_and_go_back_the_same(made, kind, name, tmp_path):
    case = made(kind, name)
    head, table = case.ours.spec.head, case.family.table(case.ours.spec)
    if case.task.kind in ("sequence", "token"):
        assert head.names == tuple(NAMES.values())
    exported, stored = dict(published(case.ours, case.family)), load_file(case.folder / "model.safetensors")
    known = exported.keys() | table.copies.keys()
    files = {table.current(held, known): tensor for held, tensor in stored.items() if not is_ignored(held, table)}
    assert files.keys() - table.copies.keys() == exported.keys() - (table.copies.keys() - files.keys())
    assert all(torch.equal(tensor, files[held]) for held, tensor in exported.items() if held in files)
    af.save(case.ours, tmp_path, format="hf")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [name]
    again = af.load(tmp_path, dtype=torch.float64)
    assert again.spec == case.ours.spec
    back = getattr(transformers, name).from_pretrained(tmp_path, dtype=torch.float64)
    assert back.config.id2label == case.theirs.config.id2label
    assert back.config.problem_type == case.theirs.config.problem_type
    theirs = case.theirs.state_dict()
    for held, tensor in back.state_dict().items():
        # The public class holds Reformer's axial tables in fp32, whatever it is asked for.
        assert is_ignored(held, table) or torch.equal(tensor, theirs[held].to(tensor.dtype)), held


def test_every_public_class_of_our_families_is_read_or_its_reason_is_named():
    types = {family.model_type for family in families()}
    public = {names[kind] for names in LISTS.values() for kind in types if kind in names}
    read = {name for family in families() for name in family.task_classes()}
    assert public == read | UNREAD.keys()
    assert not read & UNREAD.keys()
