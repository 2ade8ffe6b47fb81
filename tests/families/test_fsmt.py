"""FSMT with two vocabularies beyond the tests of every family: fp32, its own generation settings, and its presets' counts."""

import copy
import warnings

import pytest
import torch
import transformers

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families.family import Family
from anyformer.families.zoo import find
from tests.generation.test_parity import pair, prompts
from tests.tolerances import assert_close

PRESETS = ("wmt19-en-ru", "wmt19-ru-en", "wmt19-en-de", "wmt19-de-en")


def test_logits_in_fp32_equal_those_of_the_public_class():
    theirs, _ = pair("fsmt")
    theirs = theirs.float()
    ours = af.from_hf(theirs)
    assert ours.spec.source_vocab == 67 != ours.spec.vocab
    assert next(ours.parameters()).dtype == torch.float32
    ids, mask = prompts(67, 1)
    target = torch.randint(3, 61, (3, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits
        assert_close("fused", ours(ids, attention_mask=mask, decoder_input_ids=target).logits, want)


@pytest.mark.parametrize("own", [{"num_beams": 1}, {}, {"num_beams": 4, "early_stopping": True, "length_penalty": 0.8}])
def test_tokens_are_those_of_generate_with_the_settings_of_its_config(own):
    # Ids of `tiny` have the values of the released files: eos 2 begins and ends a translation, 1 is padding.
    theirs, ours = pair("fsmt")
    settings = theirs.generation_config = copy.deepcopy(theirs.generation_config)
    for name, value in ({"num_beams": 5, "length_penalty": 1.15, "early_stopping": False} | own).items():
        setattr(settings, name, value)
    # Ours does not force an end on a translation that reaches the limit: it says that it was cut there.
    settings.forced_eos_token_id, settings.max_length = None, None
    ids, mask = prompts(67, 1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = theirs.generate(ids, attention_mask=mask, max_new_tokens=24)
    beams = {n: getattr(settings, n) for n in ("num_beams", "length_penalty", "early_stopping")}
    found = af.generate(ours, ids, attention_mask=mask, max_new_tokens=24, **beams if settings.num_beams > 1 else {})
    assert torch.equal(found, want)
    assert bool((found[:, 0] == 2).all())


def test_generation_with_the_public_class_sees_the_source_beyond_the_target_s_vocabulary():
    _, ours = pair("fsmt")
    low, high = torch.tensor([[3, 60]]), torch.tensor([[3, 66]])
    logits = [ours(ids, decoder_input_ids=torch.tensor([[2, 7]])).logits for ids in (low, high)]
    assert not torch.equal(*logits)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_the_parameters_of_the_public_class(name):
    family, preset = find(name)
    config = transformers.FSMTConfig.from_dict(family.hf_from(af.spec(name)))
    with torch.device("meta"):
        theirs = transformers.FSMTForConditionalGeneration(config)
    learned = {n: p.numel() for n, p in theirs.named_parameters() if "embed_positions" not in n}
    assert sum(learned.values()) == preset.params == af.spec(name).count().params
    model = af.build(af.spec(name), device="meta")
    assert sum(p.numel() for p in model.parameters()) == preset.params


def test_spec_whose_output_is_the_decoder_s_table_is_marian_s_and_not_fsmt_s():
    fsmt, marian = Family.named("fsmt"), Family.named("transformer")
    spec = fsmt.spec_from(fsmt.small).vary({"head.tied": True})
    with pytest.raises(SpecError):
        fsmt.hf_from(spec)
    two = marian.small | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47}
    again = marian.spec_from(marian.hf_from(marian.spec_from(two)))
    assert (again.source_vocab, again.vocab, again.head.tied) == (61, 47, True)


def test_saved_as_the_public_class_and_read_by_it_gives_the_same_logits(tmp_path):
    spec = Family.named("fsmt").spec_from(Family.named("fsmt").small)
    ours = af.build(spec, dtype=torch.float64, seed=3)
    af.save(ours, tmp_path, format="hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(theirs).__name__ == "FSMTForConditionalGeneration"
    assert (theirs.config.src_vocab_size, theirs.config.tgt_vocab_size) == (67, 61)
    assert torch.equal(theirs.model.encoder.embed_tokens.weight, ours.embed.tokens.weight)
