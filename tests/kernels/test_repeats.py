"""Keys that count several times: every kernel against the same keys written out as often."""

import pytest
import torch

import anyformer as af
from anyformer.errors import SpecError
from anyformer.kernels.attention import KERNELS, attend
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs, KernelRequest
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.bigbird_eval import BigBirdEval
from anyformer.specs.patterns import Tokens
from tests.tolerances import assert_close, difference

BLOCK, COUNT, LENGTH = 2, 2, 23
PATTERN = f"edge_blocks({BLOCK}) | chunked({BLOCK}, 1, 1) | bigbird_eval({BLOCK}, {COUNT})"


def spec_with(pattern, **attention):
    return af.spec("bert-base", {
        "vocab": 31, "width": 24, "depth": 2, "context": 40, "attention.heads": 3, "ffn.width": 30,
        "attention.pattern": pattern, **{f"attention.{name}": value for name, value in attention.items()},
    })  # fmt: skip


def pattern():
    return spec_with(PATTERN).stacks[0].layers[0].attention.pattern


def drawn(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, LENGTH, 3, 5, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for _ in range(3)
    ]


def attn_mask():
    places = Tokens(torch.arange(LENGTH)[None], length=torch.full((1, 1), LENGTH))
    return AttentionMask(pattern(), places, places, plain=True, heads=3)


def written_out(q, k, v, scale):
    """Queries of inner blocks get COUNT more copies of the first block's keys and values."""
    mask = attn_mask().mask().expand(2, 3, LENGTH, LENGTH)
    rows = []
    last = (LENGTH + BLOCK - 1) // BLOCK - 1
    for t in range(LENGTH):
        copies = COUNT if 0 < t // BLOCK < last else 0
        keys = torch.cat([k] + [k[:, :BLOCK]] * copies, 1)
        values = torch.cat([v] + [v[:, :BLOCK]] * copies, 1)
        seen = torch.cat([mask[:, :, t]] + [mask[:, :, t, :BLOCK]] * copies, -1)
        score = torch.einsum("bhk,bshk->bhs", q[:, t], keys) * scale
        weight = score.masked_fill(~seen, float("-inf")).softmax(-1)
        rows.append(torch.einsum("bhs,bshk->bhk", weight, values))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("scale", [1.0, 0.31])
@pytest.mark.parametrize("name", [kernel.name for kernel in KERNELS if not kernel.reads_pages])
def test_repeated_keys_count_as_often_as_they_are_written_out_in_every_kernel_that_serves(name, scale):
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    request = KernelRequest(
        device="cpu", dtype=torch.float64, phase="prefill", shape="pattern", pattern=pattern(), mixer=Softmax()
    )
    if kernel.why_not(request) is not None:
        pytest.skip(f"it does not serve this: {kernel.why_not(request)}")
    given = drawn()
    found = attend(*given, kernel=kernel, scale=scale, mixer=Softmax(), own={}, mask=attn_mask())
    wanted = written_out(*given, scale)
    assert_close("kernel", found, wanted)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad((found * weight).sum(), given),
        torch.autograd.grad((wanted * weight).sum(), given),
        strict=True,
    ):
        assert_close("kernel", mine, theirs)
    plain = kernel.run(*given, AttentionArgs(scale, Softmax(), {}, attn_mask()))
    assert difference(plain, wanted) > 1e-3, "keys that count once would be the same"


def test_repeated_keys_in_half_precision_are_off_by_its_rounding_only():
    given = drawn(torch.float16)
    found = attend(*given, scale=0.125, mixer=Softmax(), own={}, mask=attn_mask(), kernel=KERNELS[-1])
    wanted = written_out(*(x.double() for x in given), 0.125)
    assert difference(found, wanted) < 2**-10


def test_weights_that_a_trace_shows_are_those_of_repeated_keys():
    ids = torch.randint(0, 31, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    often, once = (
        af.build(spec_with(text), dtype=torch.float64, seed=1).trace(ids, attention="all")["encoder.0.attention.probs"]
        for text in (PATTERN, PATTERN.replace(f"eval({BLOCK}, {COUNT})", f"eval({BLOCK}, 0)"))
    )
    assert_close("formula", often.sum(-1), torch.ones_like(often[..., 0]))
    # An inner query: against a key that counts once, one of the first block has COUNT + 1 times the weight.
    inner = slice(BLOCK, LENGTH - BLOCK)
    share = [probs[:, :, inner, 0] / probs[:, :, inner, -1] for probs in (often, once)]
    assert_close("formula", share[0], share[1] * (COUNT + 1))
    assert_close("formula", often[:, :, 0], once[:, :, 0])


def test_eval_mode_has_its_pattern_and_training_the_drawn_one():
    drawn_ = "edge_blocks(2) | chunked(2, 1, 1) | bigbird_random(2, 2, 3, 40{})"
    ids = torch.randint(0, 31, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    quiet = {"embed.dropout": 0.0, "block.dropout": 0.0, "attention.dropout": 0.0}
    models = [
        af.build(spec_with(text).vary(quiet), dtype=torch.float64, seed=1)
        for text in (drawn_.format(", 'training'"), drawn_.format(""), PATTERN)
    ]
    switched, always, evaluated = models
    assert torch.equal(switched.train()(ids).logits, always.train()(ids).logits)
    assert torch.equal(switched.eval()(ids).logits, evaluated.eval()(ids).logits)
    assert torch.equal(always.eval()(ids).logits, always.train()(ids).logits)
    assert difference(switched(ids).logits, always(ids).logits) > 1e-6


@pytest.mark.parametrize("more", [{"softcap": 20.0}, {"mixer": {"kind": "relu"}}])
@pytest.mark.parametrize("text", [PATTERN, "bigbird_random(2, 2, 3, 40, 'training') | symmetric_window(3)"])
def test_repeated_keys_with_scores_that_are_not_a_softmax_are_refused(text, more):
    with pytest.raises(
        SpecError, match="counts keys several times, which goes with mixer 'softmax' and without a softcap"
    ):
        spec_with(text, **more)


def test_two_parts_that_repeat_keys_are_refused():
    with pytest.raises(SpecError, match="both count keys several times; only one part of a pattern can"):
        spec_with("bigbird_eval(2, 2) | bigbird_eval(3, 1)")


def test_bigbird_eval_of_a_short_document_sees_it_whole_and_once():
    leaf = BigBirdEval(block=2, count=2)
    q = Tokens(torch.arange(18)[:, None], length=18)
    assert leaf.allows(q, Tokens(torch.arange(18)[None])).all()
    assert not leaf.extra(q).any()
    q = q._replace(pos=torch.arange(19)[:, None], length=19)
    assert leaf.extra(q).flatten().tolist() == [0] * 2 + [2] * 16 + [0]


@pytest.mark.parametrize(("block", "count"), [(3, 1), (2, 0), (1, 2)])
def test_bigbird_eval_equals_its_definition_at_every_length(block, count):
    leaf = BigBirdEval(block=block, count=count)
    for length in range(1, 40):
        last = (length - 1) // block
        found = leaf.allows(Tokens(torch.arange(length)[:, None], length=length), Tokens(torch.arange(length)[None]))
        wanted = [
            [last < 2 * count + 5 or (0 < q // block < last and k < block) for k in range(length)]
            for q in range(length)
        ]
        assert torch.as_tensor(found).expand(length, length).tolist() == wanted
