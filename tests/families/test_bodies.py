"""Classes without a head: read as a model that answers with its states, which are the public class's in fp64."""

import json

import pytest
import torch
import transformers

import anyformer as af
from anyformer.families.checkpoint import save_published
from anyformer.families.family import Family, families
from tests.families.cases import OWN, config_of
from tests.families.oracle import inputs, is_ignored, lifted, oracle, public_class
from tests.tolerances import assert_close

DECODERS = ("bert_generation", "gpt2", "llama", "mistral", "opt", "qwen3", "qwen3_moe", "t5", "umt5")
"""Which of the others are compared too; of all of them the names are."""
BODIES = [
    (family.kind, "tiny")
    for family in families()
    if family.base.get("topology") == "encoder" or family.kind in DECODERS
] + [("gemma3", "both-ways")]
IDS = torch.randint(3, 61, (2, 21), generator=torch.Generator().manual_seed(4))


def test_body_of_every_family_is_a_public_class_whose_names_lack_the_prefix():
    for family in families():
        if not family.bodies or family.kind in OWN:
            continue
        cls, prefix = getattr(transformers, family.bodies[0]), family.weights(family.spec_from(family.small)).prefix
        assert prefix in ("", f"{cls.base_model_prefix}."), family.kind
        assert cls.config_class is public_class(family).config_class, f"{family.kind}: another class of that name"


@pytest.mark.parametrize(("kind", "variant"), BODIES, ids=["-".join(case) for case in BODIES])
@torch.no_grad()
def test_body_of_every_family_is_read_without_a_head_and_gives_the_published_states(kind, variant, tmp_path):
    family = Family.named(kind)
    assert family is not None
    theirs = oracle(family, config_of(kind, variant), named=family.bodies[0])
    theirs.save_pretrained(tmp_path / "public")
    ours = af.load(tmp_path / "public", dtype=torch.float64)
    assert ours.head is None
    given = inputs(ours.spec, IDS)
    with lifted():
        states = theirs(**given).last_hidden_state
    assert_close("oracle", ours(**given).hidden, states)
    # And back: to the same class, in memory and in files, under the names without a prefix.
    assert type(af.to_hf(ours)).__name__ == type(theirs).__name__ == family.bodies[0]
    assert af.from_hf(theirs).spec == ours.spec
    af.save(ours, tmp_path / "saved", format="hf")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"] == [family.bodies[0]]
    again, table = type(theirs).from_pretrained(tmp_path / "saved", dtype=torch.float64), family.table(ours.spec)
    for name, tensor in again.state_dict().items():
        assert is_ignored(name, table) or torch.equal(tensor, theirs.state_dict()[name].to(tensor.dtype)), name


@pytest.mark.parametrize("kind", ["bert", "llama", "xlm_roberta"])
@torch.no_grad()
def test_config_that_names_the_body_beside_tensors_of_a_head_is_read_without_it(kind, tmp_path):
    family = Family.named(kind)
    assert family is not None
    whole = oracle(family, config_of(kind, "tiny"))
    whole.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": [family.bodies[0]]}))
    bare, full = af.load(tmp_path, dtype=torch.float64), af.from_hf(whole)
    assert bare.head is None
    assert_close("oracle", bare(IDS).hidden, full(IDS).hidden)


def test_discriminator_of_electra_is_read_as_its_body(tmp_path):
    family = Family.named("electra")
    assert family is not None
    theirs = oracle(family, config_of("electra", "tiny"), named="ElectraForPreTraining")
    theirs.save_pretrained(tmp_path)
    ours = af.load(tmp_path, dtype=torch.float64)
    with torch.no_grad():
        assert_close("oracle", ours(IDS).hidden, theirs.electra(IDS).last_hidden_state)
    save_published(ours, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"] == ["ElectraModel"]
