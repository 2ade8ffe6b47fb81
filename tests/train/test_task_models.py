"""Classifiers: read from a published class, trained on here, saved in our own format and as that class again."""

import json

import numpy as np
import pytest
import torch
import transformers

import anyformer as af
from anyformer.data.dataset import Examples
from anyformer.errors import InputError
from anyformer.families.family import Family
from anyformer.train.config import Config
from anyformer.train.trainer import Trainer
from tests.tolerances import assert_close
from tests.train.small_data import CONFIG, write_data

IDS = torch.tensor([[5, 9, 7, 30], [6, 8, 12, 31]])


def labelled(kind: str, names: tuple[str, ...], count: int = 24) -> Examples:
    """Texts whose class is that of their first token, or tokens whose class is their own."""
    draw = np.random.default_rng(0)
    rows = [draw.integers(4, 32, 6) for _ in range(count)]
    column = [row % len(names) if kind == "tags" else row[:1] % len(names) for row in rows]
    return Examples.of({"tokens": rows, kind: column}, bytes=6 * count, names={kind: names})


def trained(folder, names, changes, kind):
    """The model of a short run."""
    data = write_data(folder / "data", {"train": labelled(kind, names), "valid": labelled(kind, names, 8)})
    told = {
        "objective": {"kind": "tag" if kind == "tags" else "sequence"},
        "stages.length": 8,
        "stages.steps": 3,
        "data.rows": "padded",
    }
    told |= {"data.folder": str(data), "run.folder": str(folder / "run")}
    with Trainer(Config.from_toml(f"[data]{CONFIG.partition('[data]')[2]}", changes=told | changes)) as run:
        list(run.events())
    return af.load(folder / "run", dtype=torch.float64)


def test_published_classifier_is_trained_further_and_is_one_again(tmp_path):
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, id2label={0: "bad", 1: "good"}, problem_type="single_label_classification",
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "published")
    before = af.load(tmp_path / "published", dtype=torch.float64)
    assert before.spec.head.names == ("bad", "good")
    assert before.spec.head.problem == "single"
    weights = {"model.weights": str(tmp_path / "published")}
    after = trained(tmp_path, ("bad", "good"), weights, "label")
    assert after.spec == before.spec
    assert not torch.equal(after.head.answer.weight, before.head.answer.weight)
    af.save(after, tmp_path / "again", format="hf")
    public = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "again", dtype=torch.float64).eval()
    assert (public.config.id2label, public.config.problem_type) == (config.id2label, config.problem_type)
    with torch.no_grad():
        assert_close("formula", after(IDS).logits, public(IDS).logits)
    # The same classes in another order would be learned as each other.
    with pytest.raises(InputError, match="are not the classes of the data in their order, good, bad"):
        trained(tmp_path / "other", ("good", "bad"), weights, "label")


def test_tagger_trained_from_nothing_takes_the_names_of_the_data_and_is_exported_with_them(tmp_path):
    family, names = Family.named("bert"), ("O", "B-PER", "I-PER")
    assert family is not None
    spec = family.spec_from(family.small | {"vocab_size": 32, "num_hidden_layers": 1})
    head = {"head": {"kind": "token", "labels": 3}}
    made = trained(tmp_path, names, {"model.spec": spec.vary(head).to_data()}, "tags")
    assert made.spec.head.names == names
    assert af.spec(tmp_path / "run").head.names == names
    af.save(made, tmp_path / "again", format="hf")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    public = transformers.AutoModelForTokenClassification.from_pretrained(
        tmp_path / "again", dtype=torch.float64
    ).eval()
    assert public.config.id2label == dict(enumerate(names))
    with torch.no_grad():
        assert_close("formula", made(IDS).logits, public(IDS).logits)


def test_objective_of_classes_refuses_a_head_for_something_else(tmp_path):
    head = {"kind": "sequence", "labels": 2, "pool": "last", "problem": "multi"}
    spec = {"vocab": 32, "width": 16, "depth": 1, "context": 8, "attention": {"heads": 2}, "head": head}
    with pytest.raises(InputError, match="'sequence' has one class for each text, and this head is for 'multi'"):
        trained(tmp_path, ("bad", "good"), {"model.spec": spec}, "label")
