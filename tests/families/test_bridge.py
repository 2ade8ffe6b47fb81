"""Public models and ours in memory: logits and tensors agree, and nothing is shared."""

import pytest
import torch
import transformers

import anyformer as af
from anyformer.errors import CapabilityError, InputError, SpecError
from anyformer.families.bridge import from_hf, to_hf
from anyformer.families.family import Family
from tests.families.cases import OWN, cases, config_of
from tests.families.oracle import answer, inputs, is_ignored, oracle
from tests.tolerances import assert_close

IDS = torch.arange(3, 20)[None]


def pytest_generate_tests(metafunc):
    if "variant" in metafunc.fixturenames:
        found = [(kind, variant) for kind, variant in cases() if kind not in OWN]
        metafunc.parametrize(("kind", "variant"), found, ids=[f"{kind}-{variant}" for kind, variant in found])


@torch.no_grad()
def test_public_model_comes_over_and_goes_back_the_same(kind, variant):
    family = Family.named(kind)
    assert family is not None
    theirs = oracle(family, config_of(kind, variant), seed=5)
    ours = from_hf(theirs)
    assert next(ours.parameters()).dtype == torch.float64
    assert not ours.training
    given = inputs(ours.spec, IDS) | ({"decoder_input_ids": IDS} if ours.spec.topology == "encoder-decoder" else {})
    assert_close("oracle", ours(**given).logits, answer(theirs, **given))
    back, table = to_hf(ours, kind), family.weights(ours.spec)
    assert type(back) is type(theirs)
    assert not back.training
    for name, tensor in back.state_dict().items():
        assert is_ignored(name, table) or torch.equal(tensor, theirs.state_dict()[name]), name


@pytest.mark.parametrize("kind", OWN)
def test_model_without_a_public_class_is_refused_with_that_reason(kind):
    family = Family.named(kind)
    assert family is not None
    with pytest.raises(CapabilityError, match=f"has no class {family.architectures[0]}: its code was published with"):
        to_hf(af.build(family.spec_from(family.tiny())), kind)


def test_weights_are_copied_not_shared():
    family = Family.named("llama")
    assert family is not None
    theirs = oracle(family, config_of("llama", "tied"))
    ours = from_hf(theirs)
    back = to_hf(ours)
    before = ours.embed.tokens.weight.detach().clone()
    with torch.no_grad():
        theirs.model.embed_tokens.weight.zero_()
        back.model.embed_tokens.weight.zero_()
    assert torch.equal(ours.embed.tokens.weight, before)


def test_bfloat16_and_training_mode_are_kept():
    family = Family.named("gpt2")
    assert family is not None
    ours = af.build(family.spec_from(family.tiny()), dtype=torch.bfloat16)
    theirs = to_hf(ours)
    assert theirs.dtype == torch.bfloat16
    assert theirs.training
    again = from_hf(theirs)
    assert again.training
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))


def test_models_that_can_not_come_over_are_refused():
    with pytest.raises(TypeError, match="expected a model of transformers, got Linear"):
        from_hf(torch.nn.Linear(1, 1))
    config = transformers.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(SpecError, match="BertForTokenClassification"):
        from_hf(transformers.BertForTokenClassification(config))
    with torch.device("meta"):
        meta = transformers.BertForMaskedLM(config)
    with pytest.raises(InputError, match="meta"):
        from_hf(meta)
    with pytest.raises(InputError, match="meta"):
        to_hf(af.build(af.spec("gpt2-small", {"depth": 1}), device="meta"))
