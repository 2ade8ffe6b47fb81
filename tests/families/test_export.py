"""Export writes the class that a model was read from, however the model travelled in between."""

import copy
import json
import pickle

import pytest
import torch

import anyformer as af
from anyformer.convert.surgery import Surgery, operate
from anyformer.errors import InputError
from anyformer.families.checkpoint import family_for, save_published
from anyformer.families.family import Family, families
from anyformer.model import native_checkpoint
from tests.families.cases import OWN, config_of
from tests.families.oracle import public_class  # noqa: F401 - looks at a module that warns once

FAMILIES = [family.kind for family in families()]


def written(folder):
    config = json.loads((folder / "config.json").read_text())
    return config["model_type"], config["architectures"]


@pytest.fixture
def folder(tmp_path):
    """Makes the folder of a published model of a family."""

    def make(kind, variant="tiny"):
        family = Family.named(kind)
        assert family is not None
        place = tmp_path / "published"
        save_published(af.build(family.spec_from(config_of(kind, variant)), seed=1), place, family=kind)
        return place

    return make


@pytest.mark.parametrize("kind", FAMILIES)
def test_model_of_every_family_is_exported_as_the_class_it_was_read_from(kind, folder, tmp_path):
    source = folder(kind)
    model = af.load(source)
    af.save(model, tmp_path / "again", format="hf")
    assert written(tmp_path / "again") == written(source)
    # Our own format in between keeps it too, as does a copy.
    af.save(model, tmp_path / "ours")
    af.save(copy.deepcopy(af.load(tmp_path / "ours")), tmp_path / "through", format="hf")
    assert written(tmp_path / "through") == written(source)
    first, last = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("again", "through"))
    assert first == last


# Public models come over and go back in test_bridge.py; here ours goes first.
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in OWN][::3])
def test_model_in_memory_goes_back_to_the_public_class_it_came_from(kind, folder):
    family = Family.named(kind)
    assert family is not None
    theirs = af.to_hf(af.load(folder(kind)))
    assert type(theirs).__name__ == family.architectures[0]
    assert type(af.to_hf(af.from_hf(theirs))) is type(theirs)


def test_model_that_was_pickled_or_operated_on_is_exported_as_the_class_it_was_read_from(folder, tmp_path):
    source = folder("phi3", "whole-heads")
    model = af.load(source)
    af.save(pickle.loads(pickle.dumps(model)), tmp_path / "pickled", format="hf")
    assert written(tmp_path / "pickled") == written(source)
    changed = operate(model, Surgery(theta=777.0))
    af.save(changed, tmp_path / "changed", format="hf")
    assert written(tmp_path / "changed") == written(source)


def test_model_that_its_class_can_not_hold_any_more_is_exported_as_another_with_a_warning(folder, tmp_path):
    model = af.load(folder("mistral"))
    spec = model.spec.vary({"attention.pattern": "causal", "attention.bias": "qkvo"})
    other = af.build(spec, seed=0)
    other.family = model.family
    with pytest.warns(
        UserWarning, match=r"read from MistralForCausalLM, .*attention\.bias.* written as LlamaForCausal"
    ):
        af.save(other, tmp_path / "other", format="hf")
    assert written(tmp_path / "other") == ("llama", ["LlamaForCausalLM"])
    with pytest.warns(UserWarning, match="written as LlamaForCausalLM"):
        assert type(af.to_hf(other)).__name__ == "LlamaForCausalLM"


def test_model_of_a_family_that_is_not_known_here_is_exported_as_the_first_that_can_with_a_warning(folder, tmp_path):
    model = af.load(folder("llama"))
    model.family = "somebody's"
    with pytest.warns(UserWarning, match='read from a model of the family "somebody\'s", which is not known here'):
        af.save(model, tmp_path / "other", format="hf")
    assert written(tmp_path / "other") == ("llama", ["LlamaForCausalLM"])


def test_model_that_was_built_or_saved_before_families_were_kept_is_exported_as_before(folder, tmp_path):
    model = af.load(folder("mt5"))
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    text = model.spec.to_toml()
    (tmp_path / "old").mkdir()
    native_checkpoint.write_tensors(
        tmp_path / "old" / native_checkpoint.WEIGHTS, tensors, {"format": "pt", "spec": text}
    )
    (tmp_path / "old" / native_checkpoint.SPEC).write_text(text)
    old = af.load(tmp_path / "old")
    assert old.family is None
    expected = family_for(model.spec)[0].architectures[0]
    for made in (old, af.build(model.spec)):
        assert type(af.to_hf(made)).__name__ == expected == "T5ForConditionalGeneration"


def test_family_that_is_asked_for_comes_before_the_one_it_was_read_from(folder):
    model = af.load(folder("mt5"))
    assert model.family == "mt5"
    assert type(af.to_hf(model, "t5")).__name__ == "T5ForConditionalGeneration"
    with pytest.raises(InputError, match="'t6' is unknown"):
        af.to_hf(model, "t6")


def test_model_trained_from_a_published_folder_keeps_its_family(folder):
    from anyformer.model.native_checkpoint import metadata_of
    from anyformer.train.components import load_weights

    source = folder("phi3", "whole-heads")
    found = load_weights(str(source), af.spec(source, {"attention.dropout": 0.1}), torch.device("cpu"), torch.float32)
    assert found.family == "phi3"
    assert metadata_of(found.spec, found.family)["family"] == "phi3"
