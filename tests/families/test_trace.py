"""Traces against the public classes: hidden states and attention weights of every layer, in fp64."""

import pytest
import torch

from anyformer.families.family import Family
from anyformer.families.hf_bridge import from_hf
from tests.families.cases import config_of
from tests.families.oracle import inputs, lifted, oracle
from tests.tolerances import assert_close

LENGTH, PAD = 21, 5
FAMILIES = [
    "llama",  # grouped heads, RoPE
    "gpt2",  # learned positions
    "gpt_neox",  # parallel branches, a part of each head turned
    "bloom",  # ALiBi
    "mistral",  # a window
    "gemma2",  # soft-caps, windows in turn, sandwich norms
    "olmo2",  # norms on queries, keys and outputs
    "bert",  # post-norm encoder
    "vit",  # images
    "t5",  # buckets of distances, cross-attention
    "fsmt",  # post-norm encoder-decoder
]
BEFORE_NORM = ("vit",)
"""Kinds whose public class gives its last hidden state as it is before the final norm."""


def traced(kind):
    """Our trace and their outputs, one row of two padded (on the side that the class reads right)."""
    family = Family.named(kind)
    assert family is not None
    theirs = oracle(family, config_of(kind, "tiny"))
    theirs.set_attn_implementation("eager")
    ours = from_hf(theirs)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, ours.spec.input_vocab or 61, (2, LENGTH), generator=generator)
    given = inputs(ours.spec, ids)
    if "input_ids" in given:
        mask = torch.ones(2, LENGTH, dtype=torch.long)
        mask[1, -PAD:] = 0
        given["attention_mask"] = mask
    if ours.spec.topology == "encoder-decoder":
        given["decoder_input_ids"] = torch.randint(3, ours.spec.vocab, (2, 9), generator=generator)
    options = {"output_attentions": True, "output_hidden_states": True}
    if ours.spec.topology != "encoder":
        options["use_cache"] = False
    with lifted(), torch.no_grad():
        said = theirs(**given, **options)
    return ours, ours.trace(**given, attention="all"), said, given.get("attention_mask")


def compare(found, stack, states, weights, real, *, last="final", what="attention"):
    """States (if there are any) and weights of real tokens."""
    names = [f"{stack}.embed", *(f"{stack}.{i}.residual" for i in range(len(weights) - 1)), f"{stack}.{last}"]
    for name, state in zip(names if states else (), states or (), strict=True):
        assert_close("oracle", found[name][real], state[real])
    for i, theirs in enumerate(weights):
        ours = found[f"{stack}.{i}.{what}.probs"]
        assert_close("oracle", ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real])


@pytest.mark.parametrize("kind", FAMILIES)
def test_trace_of_a_family_equals_the_hidden_states_and_attentions_of_its_public_class(kind):
    ours, found, said, mask = traced(kind)
    last = ours.spec.stacks[-1].name
    real = torch.ones(found[f"{last}.embed"].shape[:2], dtype=torch.bool)
    if ours.spec.topology == "encoder-decoder":
        compare(found, "encoder", said.encoder_hidden_states, said.encoder_attentions, mask.bool())
        compare(found, "decoder", said.decoder_hidden_states, said.decoder_attentions, real)
        compare(found, "decoder", None, said.cross_attentions, real, what="cross")
    else:
        end = f"{ours.spec.depth - 1}.residual" if kind in BEFORE_NORM else "final"
        compare(found, last, said.hidden_states, said.attentions, real if mask is None else mask.bool(), last=end)
