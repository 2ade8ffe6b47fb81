"""Reformer's gradients: reversible blocks and LSH attention against the public class, which has both."""

import torch

from anyformer.families.hf_bridge import from_hf
from anyformer.families.reformer import Reformer
from tests.families.oracle import lifted, oracle
from tests.tolerances import assert_close


def test_reformer_gradients_of_a_reversible_stack_equal_the_published():
    theirs = oracle(Reformer, Reformer.small).train()
    ours = from_hf(theirs)
    # The public class trains on rows as long as its axial tables only.
    ids = torch.randint(3, 61, (2, 64), generator=torch.Generator().manual_seed(2))
    with lifted():
        theirs(ids).logits.square().mean().backward()
    ours(ids).logits.square().mean().backward()
    mine, public = dict(ours.named_parameters()), dict(theirs.named_parameters())
    for entry in Reformer.weights(ours.spec).entries(ours.spec):
        expected = public[entry.theirs].grad
        if entry.theirs == "lm_head.bias":
            assert expected is None
            assert mine["head.bias"].grad is None
            continue
        found = [mine[name].grad for name in entry.ours]
        assert expected is not None
        assert_close("oracle", entry.op.merge([grad for grad in found if grad is not None]), expected)
