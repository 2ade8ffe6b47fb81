"""Every family as a user would check it: the public class by from_pretrained, in eval mode and fp32, nothing else set."""

import pytest
import torch

import anyformer as af
from anyformer.families.family import Family
from tests.families.cases import BLOCKS, LENGTHS, cases, config_of
from tests.families.oracle import inputs, oracle, public_class
from tests.families.test_parity import Case
from tests.tolerances import assert_close

CASES = [
    pytest.param(kind, variant, id=f"{kind}-{variant}")
    for kind, variant in cases()
    if variant in ("tiny", *BLOCKS, *LENGTHS)
]
"""Switches of a config are compared in fp64; here those that choose what the class computes in fp32."""
LENGTH = 21
"""Longer than every window and trained length of the small configs, and more blocks than BigBird sees whole."""

WHOLE = {"fsmt": {"use_cache": False}}
"""What a class must be told to read a whole target: with a cache, which is the default, FSMT's decoder masks nothing."""


@torch.no_grad()
@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_loaded_model_gives_the_logits_of_the_public_class_as_it_is_loaded(kind, variant, tmp_path):
    family = Family.named(kind)
    assert family is not None
    config = config_of(kind, variant)
    torch.manual_seed(0)
    oracle(family, config, seed=3).float().save_pretrained(tmp_path)
    if not config.get("tie_word_embeddings", True):
        # What released files say; this release writes that every T5 is tied.
        Case.edit(tmp_path, tie_word_embeddings=False)
    theirs = public_class(family).from_pretrained(tmp_path)
    ours = af.load(tmp_path)
    assert not theirs.training
    assert not ours.training
    ids = torch.randint(
        3, min(ours.spec.vocab, ours.spec.input_vocab) or 61, (2, LENGTH), generator=torch.Generator().manual_seed(1)
    )
    given = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in inputs(ours.spec, ids).items()
    }
    if ours.spec.topology == "encoder-decoder":
        given["decoder_input_ids"] = ids[:, : LENGTH - 4]
    exact = all(layer.attention.mixer.exact for stack in ours.spec.stacks for layer in stack.layers)
    wanted = theirs(**given, **WHOLE.get(kind, {})).logits
    assert_close("fp32-oracle" if exact else "fp32-lsh-oracle", ours(**given).logits, wanted)
