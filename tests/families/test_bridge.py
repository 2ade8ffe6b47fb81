"""Public models and ours in memory: logits and tensors agree, and nothing is shared."""

import json
import re

import pytest
import torch
import transformers

import anyformer as af
from anyformer.errors import CapabilityError, CheckpointError, InputError, SpecError
from anyformer.families.family import Family, families
from anyformer.families.hf_bridge import from_hf, to_hf
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
    wanted = theirs.state_dict()
    for name, tensor in back.state_dict().items():
        assert is_ignored(name, table) or torch.equal(tensor, wanted[name]), name


@pytest.mark.parametrize("kind", OWN)
def test_model_without_a_public_class_is_refused_with_that_reason(kind):
    family = Family.named(kind)
    assert family is not None
    with pytest.raises(CapabilityError, match=f"has no class {family.architectures[0]}: its code was published with"):
        to_hf(af.build(family.spec_from(family.small)), kind)


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
    ours = af.build(family.spec_from(family.small), dtype=torch.bfloat16)
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
    with pytest.raises(SpecError, match="BertForNextSentencePrediction"):
        from_hf(transformers.BertForNextSentencePrediction(config))
    with torch.device("meta"):
        meta = transformers.BertForMaskedLM(config)
    with pytest.raises(InputError, match="meta"):
        from_hf(meta)
    with pytest.raises(InputError, match="meta"):
        to_hf(af.build(af.spec("gpt2-small", {"depth": 1}), device="meta"))


def stored_copies(model, kind):
    """Names of tables that a model holds once more than our spec of it does, each with the module that holds it."""
    family = Family.named(kind)
    assert family is not None
    spec = from_hf(model).spec
    table = family.weights(spec)
    doubles = table.doubles(model.state_dict(), {entry.theirs for entry in table.entries(spec)})
    named = [name for name, _ in doubles if name.endswith("embed_tokens.weight")]
    return [(name, model.get_submodule(name.removesuffix(".weight"))) for name in named]


TWO = [family.kind for family in families() if family.base.get("topology") == "encoder-decoder"]


@pytest.mark.parametrize("kind", TWO)
@torch.no_grad()
def test_public_model_with_one_of_its_shared_tables_replaced_comes_over_right_or_not_at_all(kind):
    family = Family.named(kind)
    assert family is not None
    config = config_of(kind, "tiny")
    if len(stored_copies(oracle(family, config), kind)) == 0:
        assert kind == "fsmt"  # whose tables are apart
        return
    for place in range(len(stored_copies(oracle(family, config), kind))):
        theirs = oracle(family, config, seed=3)
        name, module = stored_copies(theirs, kind)[place]
        module.weight = torch.nn.Parameter(module.weight + 0.5)
        if "share_encoder_decoder_embeddings" not in family.keys:
            with pytest.raises(CheckpointError, match=rf"{re.escape(name)} differs from"):
                from_hf(theirs)
            continue
        given = {"input_ids": IDS, "decoder_input_ids": IDS}
        assert_close("oracle", from_hf(theirs)(**given).logits, answer(theirs, **given))


@torch.no_grad()
def test_marian_without_tied_words_has_a_table_for_each_use_and_all_of_them_come_over(tmp_path):
    family = Family.named("transformer")
    assert family is not None
    config = family.small | {"tie_word_embeddings": False}
    theirs, given = oracle(family, config, seed=7), {"input_ids": IDS, "decoder_input_ids": IDS}
    tables = {"model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"}
    assert len({theirs.get_submodule(name).weight.data_ptr() for name in tables}) == 4
    ours = from_hf(theirs)
    assert_close("oracle", ours(**given).logits, answer(theirs, **given))
    assert_close("oracle", answer(to_hf(ours), **given), answer(theirs, **given))
    # In a folder the config counts, and the error says which key to change.
    theirs.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"differs from model\.shared\.weight.*set share_encoder_decoder_emb"):
        af.load(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"share_encoder_decoder_embeddings": False}))
    read = af.load(tmp_path, dtype=torch.float64)
    assert_close("oracle", read(**given).logits, answer(theirs, **given))


@torch.no_grad()
def test_shared_table_beside_an_untied_head_is_written_for_each_use(tmp_path):
    family = Family.named("transformer")
    assert family is not None
    spec = family.spec_from(family.small).vary({"head.tied": False})
    ours = af.build(spec, dtype=torch.float64, seed=2).eval()
    given = {"input_ids": IDS, "decoder_input_ids": IDS}
    back = to_hf(ours)
    # The public class rounds its table of sines to fp32.
    assert_close("fp32-oracle", answer(back, **given), ours(**given).logits)
    af.save(ours, tmp_path, format="hf")
    read = transformers.MarianMTModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert_close("fp32-oracle", answer(read, **given), ours(**given).logits)
    assert af.load(tmp_path).spec == from_hf(back).spec == spec
