"""attend(): the reference against torch's function and against written-out formulas, other kernels against it."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.attention import reference, sdpa
from anyformer.kernels.dispatch import AttentionArgs
from anyformer.parts.mixers.relu import Relu
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.full import Full
from anyformer.specs.axes import ValueTerms
from tests.kernels.samples import SCALE, as_terms, given, near, plain, qkv, run
from tests.parts.samples import random
from tests.tolerances import assert_close

EITHER = pytest.mark.parametrize("kernel", [reference.KERNEL, sdpa.KERNEL], ids=lambda kernel: kernel.name)
FULL, CAUSAL = Full(), Causal()


def seen(queries: int, keys: int) -> Tensor:
    """A random mask in which every query sees its first key."""
    mask = torch.rand(2, 1, queries, keys, generator=torch.Generator().manual_seed(4)) < 0.6
    mask[..., 0] = True
    return mask


def written_out(q, k, v, *, mask=None, bias=None, softcap=None, sink=None):
    """Scores, softmax and values by their definitions, with keys and values repeated for each head."""
    repeats = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(repeats, 2) for t in (k, v))
    score = torch.einsum("bthk,bshk->bhts", q, k) * SCALE
    if bias is not None:
        score = score + bias
    if softcap is not None:
        score = softcap * (score / softcap).tanh()
    if mask is not None:
        score = score.masked_fill(~mask, -math.inf)
    if sink is not None:
        column = sink[None, :, None, None].expand(*score.shape[:3], 1)
        return torch.einsum("bhts,bshk->bthk", torch.cat((score, column), -1).softmax(-1)[..., :-1], v)
    return torch.einsum("bhts,bshk->bthk", score.softmax(-1), v)


def by_torch(q, k, v, **rest):
    repeats = q.shape[2] // k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)))
    return F.scaled_dot_product_attention(q, k, v, scale=SCALE, **rest).transpose(1, 2)


@pytest.mark.parametrize("groups", [6, 3, 2, 1])
@pytest.mark.parametrize("case", ["full", "causal", "mask", "bias"])
def test_attend_reference_equals_torch_with_repeated_keys_and_values(case, groups):
    q, k, v = qkv(13, 13, groups=groups)
    mask, bias = seen(13, 13), random(1, 6, 13, 13, seed=5)
    attn_mask, scores, theirs = {
        "full": (plain(FULL, 13), None, {}),
        "causal": (plain(CAUSAL, 13), None, {"is_causal": True}),
        "mask": (given(mask), None, {"attn_mask": mask}),
        "bias": (plain(FULL, 13), as_terms(bias), {"attn_mask": bias}),
    }[case]
    assert_close("formula", run(reference.KERNEL, q, k, v, attn_mask, scores=scores), by_torch(q, k, v, **theirs))


@EITHER
@pytest.mark.parametrize("groups", [6, 1])
def test_attend_one_group_each_or_one_for_all_equals_mha_on_repeated_keys(kernel, groups):
    q, k, v = qkv(9, 9, groups=groups)
    repeated = [t.repeat_interleave(6 // groups, 2) for t in (k, v)]
    expected = written_out(q, *repeated, mask=torch.ones(9, 9).tril() > 0)
    assert_close("formula", run(kernel, q, k, v, plain(CAUSAL, 9)), expected)


@EITHER
def test_attend_fewer_queries_than_keys_with_mask_and_bias_equals_the_formula(kernel):
    q, k, v = qkv(5, 12)
    mask, bias = seen(5, 12), random(2, 6, 5, 12, seed=5)
    found = run(kernel, q, k, v, given(mask), scores=as_terms(bias))
    assert_close("formula", found, written_out(q, k, v, mask=mask, bias=bias))


@EITHER
def test_attend_causal_with_bias_equals_the_formula(kernel):
    q, k, v = qkv(11, 11)
    bias = random(1, 6, 11, 11, seed=5)
    expected = written_out(q, k, v, mask=torch.ones(11, 11).tril() > 0, bias=bias)
    assert_close("formula", run(kernel, q, k, v, plain(CAUSAL, 11), scores=as_terms(bias)), expected)


@pytest.mark.parametrize("cap", [0.5, 3.0])
def test_attend_softcap_caps_biased_scores_before_the_mask(cap):
    q, k, v = qkv(10, 10)
    mask, bias = seen(10, 10), random(2, 6, 10, 10, seed=5)
    found = run(reference.KERNEL, q, k, v, given(mask), scores=as_terms(bias), softcap=cap)
    assert_close("formula", found, written_out(q, k, v, mask=mask, bias=bias, softcap=cap))


@pytest.mark.parametrize("height", [0.0, 2.0, -800.0, 800.0])
def test_attend_sinks_equal_a_softmax_with_one_more_column(height):
    results = []
    for way in ("ours", "column"):
        q, k, v = (t.requires_grad_() for t in qkv(10, 10))
        # Beyond 709 the exponential overflows unless the highest logit, sink or score, is taken off first.
        mask, sink = seen(10, 10), (random(6, seed=6) + height).requires_grad_()
        if way == "ours":
            out = run(reference.KERNEL, q, k, v, given(mask), mixer=Softmax(sinks=True), own={"sink_H": sink})
        else:
            out = written_out(q, k, v, mask=mask, sink=sink)
        out.backward(random(*out.shape, seed=7))
        results.append((out, q.grad, k.grad, v.grad, sink.grad))
    for ours, column in zip(*results, strict=True):
        assert_close("formula", ours, column)


def test_attend_relu_mixer_shares_out_positive_scores():
    q, k, v = qkv(10, 10, groups=6)
    mask = seen(10, 10)
    positive = (torch.einsum("bthk,bshk->bhts", q, k) * SCALE).clamp(min=0) * mask
    expected = torch.einsum("bhts,bshk->bthk", positive / (positive.sum(-1, keepdim=True) + 1e-6), v)
    assert_close("formula", run(None, q, k, v, given(mask), mixer=Relu(eps=1e-6)), expected)


def test_relu_mixer_row_without_a_positive_score_takes_nothing():
    scores = torch.tensor([[-1.0, -2.0, -math.inf], [-1.0, 3.0, 1.0]], dtype=torch.float64)
    weights = Relu().weigh(scores, {})
    assert torch.equal(weights[0], torch.zeros(3, dtype=torch.float64))
    assert_close("formula", weights[1], torch.tensor([0.0, 3.0, 1.0], dtype=torch.float64) / (4 + 1e-6))


def test_relu_mixer_without_its_small_number_is_refused():
    assert list(Relu(eps=0.0).problems()) == [("eps", "0.0 is not above 0")]


@pytest.mark.parametrize("shift", [0.0, 700.0, -700.0])
def test_softmax_mixer_scores_of_any_height_give_the_same_weights(shift):
    scores = random(2, 3, 4, 5)
    assert_close("formula", Softmax().weigh(scores + shift, {}), (scores + shift).softmax(-1))


MIXERS = {
    "softmax": (Softmax(), {}),
    "sinks": (Softmax(sinks=True), {"sink_H": random(6, seed=6)}),
    "relu": (Relu(), {}),
}


@pytest.mark.parametrize(
    ("kernel", "mixer"),
    [(sdpa.KERNEL, "softmax"), *((reference.KERNEL, name) for name in MIXERS)],
    ids=lambda case: case if isinstance(case, str) else case.name,
)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_attend_row_that_sees_nothing_gives_zero_and_finite_gradients(kernel, mixer, biased, dtype):
    leaf, own = MIXERS[mixer]
    q, k, v = (t.to(dtype).requires_grad_() for t in qkv(7, 7))
    mask = seen(7, 7)
    mask[0, :, 2], mask[1, :, 5] = False, False
    bias = random(1, 6, 7, 7, seed=5).to(dtype).requires_grad_() if biased else None
    scores = None if bias is None else as_terms(bias)
    out = run(kernel, q, k, v, given(mask), mixer=leaf, own=own, scores=scores)
    assert (out[0, 2] == 0).all()
    assert (out[1, 5] == 0).all()
    assert (out[0, 1] != 0).all()
    # Large enough to overflow where a weight of 0 is divided by a number near 0.
    out.backward(torch.full_like(out, 1e3))
    grads = [t.grad for t in (q, k, v, *([bias] if biased else []))]
    assert all(grad.isfinite().all() for grad in grads)
    assert (q.grad[0, 2] == 0).all()
    assert (q.grad[1, 5] == 0).all()


def test_softmax_mixer_row_of_minus_infinity_gives_zero_weights_and_finite_gradients():
    scores = random(1, 1, 2, 3)
    scores[0, 0, 1] = -math.inf
    scores.requires_grad_()
    weights = Softmax().weigh(scores, {})
    assert (weights[0, 0, 1] == 0).all()
    weights.backward(1e3 * random(1, 1, 2, 3, seed=1))
    assert scores.grad.isfinite().all()
    assert (scores.grad[0, 0, 1] == 0).all()
    assert (scores.grad[0, 0, 0] != 0).any()


@pytest.mark.parametrize("length", [63, 100])
@pytest.mark.parametrize("groups", [6, 2, 1])
@pytest.mark.parametrize("case", ["full", "causal", "mask", "bias", "causal_bias", "mask_bias"])
def test_attend_sdpa_equals_reference_in_value_and_gradient(case, groups, length):
    results = []
    for kernel in (sdpa.KERNEL, reference.KERNEL):
        leaves = [t.requires_grad_() for t in qkv(length, length, groups=groups)]
        if "bias" in case:
            leaves.append(random(1, 6, length, length, seed=5).requires_grad_())
        attn_mask = (
            given(seen(length, length)) if "mask" in case else plain(CAUSAL if "causal" in case else FULL, length)
        )
        out = run(kernel, *leaves[:3], attn_mask, scores=as_terms(leaves[3]) if "bias" in case else None)
        out.backward(random(*out.shape, seed=7))
        results.append((out, *(leaf.grad for leaf in leaves)))
    for native_result, reference_result in zip(*results, strict=True):
        assert_close("kernel", native_result, reference_result)


@EITHER
def test_attend_dropout_zeroes_its_share_of_weights_and_raises_the_rest(kernel):
    tokens, share = 64, 0.25
    # Values that are unit vectors make the output the weights themselves.
    q, k = random(1, tokens, 4, tokens, seed=1), random(1, tokens, 4, tokens, seed=2)
    v = torch.eye(tokens, dtype=torch.float64)[None, :, None].expand(1, tokens, 4, tokens)
    attn_mask = plain(FULL, tokens, heads=4)
    whole = run(kernel, q, k, v, attn_mask)
    torch.manual_seed(0)
    dropped = run(kernel, q, k, v, attn_mask, dropout=share)
    kept = dropped != 0
    assert_close("formula", dropped[kept], whole[kept] / (1 - share))
    deviation = (share * (1 - share) / kept.numel()) ** 0.5
    assert abs(float((~kept).double().mean()) - share) < 4 * deviation
    torch.manual_seed(0)
    assert torch.equal(run(kernel, q, k, v, attn_mask, dropout=share), dropped)


def test_attend_values_by_distance_are_added_to_the_values():
    q, k, v = qkv(6, 6, groups=6)
    weights = (torch.einsum("bthk,bshk->bhts", q, k) * SCALE).softmax(-1)
    table = random(9, 8, seed=8)
    gap = torch.arange(6)[None] - torch.arange(6)[:, None]
    found = run(None, q, k, v, plain(FULL, 6), values=ValueTerms(table, near))
    both = v[:, None] + table[near(gap)][None, :, :, None]
    assert_close("formula", found, torch.einsum("bhts,btshk->bthk", weights, both))


def test_attend_reference_computes_half_precision_scores_in_fp32():
    q, k, v = (t.bfloat16() for t in qkv(6, 6))
    score = reference.scores(q, k, AttentionArgs(scale=SCALE, mixer=Softmax(), own={}, mask=plain(CAUSAL, 6)))
    exact = torch.einsum("bthk,bshk->bhts", q.double(), k.double().repeat_interleave(3, 2)) * SCALE
    lower = torch.ones(6, 6).tril() > 0
    assert score.dtype == torch.float32
    assert_close("single", score[..., lower], exact[..., lower])
    assert run(reference.KERNEL, q, k, v, plain(CAUSAL, 6)).dtype == torch.bfloat16
