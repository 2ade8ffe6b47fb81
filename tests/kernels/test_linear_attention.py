"""Linear attention against the formula over all pairs, with documents, padding, groups, states and rotations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.linear_attention import Features, causal
from anyformer.parts.mixers.linear import Linear
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.full import Full
from anyformer.parts.patterns.window import Window
from anyformer.parts.positions.rope import Rope
from anyformer.specs.axes import MixerInput
from anyformer.specs.patterns import Tokens
from tests.parts.samples import dims, held, random
from tests.tolerances import assert_close

LENGTHS = [3, 63, 64, 65, 200]


def packed(tokens: int, *lengths: int) -> Tensor:
    """Numbers of documents of these lengths, over and over."""
    sizes = [length for _ in range(tokens) for length in lengths]
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[None, :tokens]


def positions(document_BT: Tensor) -> Tensor:
    """Counted inside each document."""
    at = torch.arange(document_BT.shape[1])
    start = torch.where(document_BT.diff(prepend=document_BT[:, :1] - 1, dim=1) != 0, at, 0).cummax(1).values
    return at - start


def written_out(
    leaf: Linear, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, turn: Callable[[Tensor], Tensor]
) -> Tensor:
    """The formula over all pairs; seen is (B,T,S)."""
    repeats = q.shape[2] // k.shape[2]
    q, k = leaf.features(q), leaf.features(k)
    turned_q, turned_k, v = turn(q), turn(k).repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
    above = torch.einsum("bthk,bshk->bhts", turned_q, turned_k) * seen[:, None]
    below = torch.einsum("bthk,bshk->bhts", q, k.repeat_interleave(repeats, 2)) * seen[:, None]
    weights = above / (below.sum(-1, keepdim=True) + leaf.eps)
    return torch.einsum("bhts,bshk->bthk", weights, v)


def qkv(tokens: int, heads: int = 4, groups: int = 2, dim: int = 8, batch: int = 2) -> list[Tensor]:
    shapes = [(batch, tokens, n, dim) for n in (heads, groups, groups)]
    return [random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def rotation(pos_BT: Tensor) -> Callable[[Tensor], Tensor]:
    own = held(leaf := Rope(), dims(head_dim=8))
    return lambda x: leaf.rotate(x, leaf.angles(own, pos_BT, None, x))


def work(q, k, v, *, pattern=None, document=None, valid=None, turn=None, state=None) -> MixerInput:
    pos = torch.arange(q.shape[1])[None]
    at = Tokens(pos, 0 if document is None else document)
    attn_mask = AttentionMask(pattern or Causal(), at, at, valid, heads=q.shape[2])
    return MixerInput(q, k, v, turn or (lambda x: x), attn_mask, 1.0, 0.0, state, lambda make: make())


def seen_by(pattern, tokens: int, document: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
    at = torch.arange(tokens)
    seen = (at[None, :] <= at[:, None])[None] if pattern.causal else torch.ones(1, tokens, tokens, dtype=torch.bool)
    if document is not None:
        seen = seen & (document[:, :, None] == document[:, None, :])
    return seen if valid is None else seen & valid[:, None, :]


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("pattern", [Causal(), Full()], ids=str)
@pytest.mark.parametrize("case", ["alone", "packed", "padded", "both"])
def test_linear_output_and_gradients_equal_the_formula_over_all_pairs(pattern, case, tokens):
    document = packed(tokens, 3, 70, 1, 150) if case in ("packed", "both") else None
    valid = None
    if case in ("padded", "both"):
        valid = torch.ones(2, tokens, dtype=torch.bool)
        valid[0, : tokens // 3], valid[1, tokens - tokens // 2 :] = False, False
    turn = rotation(torch.arange(tokens)[None] if document is None else positions(document))
    leaf = Linear()
    results = []
    for way in ("ours", "formula"):
        q, k, v = qkv(tokens)
        if way == "ours":
            out = leaf.mix(work(q, k, v, pattern=pattern, document=document, valid=valid, turn=turn))
        else:
            out = written_out(leaf, q, k, v, seen_by(pattern, tokens, document, valid), turn)
        out.backward(random(*out.shape, seed=7))
        results.append((out, q.grad, k.grad, v.grad))
    for ours, formula in zip(*results, strict=True):
        assert_close("kernel", ours, formula)


@pytest.mark.parametrize("feature", ["elu1", "relu", "relu2", "softmax"])
@pytest.mark.parametrize("groups", [1, 4])
def test_linear_every_feature_map_and_grouping_equals_the_formula(feature, groups):
    leaf = Linear(feature=feature)
    q, k, v = qkv(100, groups=groups)
    assert_close("kernel", leaf.mix(work(q, k, v)), written_out(leaf, q, k, v, seen_by(Causal(), 100), lambda x: x))


def test_linear_rotation_leaves_the_denominator_alone():
    """Rotated features of one key have any sign, but its weight is divided by an unrotated product."""
    q, k, v = qkv(1, batch=1)
    turned = Linear().mix(work(q, k, v, turn=lambda x: -x if x.shape[2] == 4 else x))
    assert_close("formula", turned, -Linear().mix(work(q, k, v)))


@pytest.mark.parametrize("split", [[1] * 12, [5, 1, 1, 70, 1], [130, 3]])
def test_linear_state_fed_in_pieces_equals_fed_whole(split):
    tokens = sum(split)
    q, k, v = qkv(tokens)
    valid = torch.ones(2, tokens, dtype=torch.bool)
    valid[0, :4] = False
    turn = rotation(torch.arange(tokens)[None])
    whole = Linear().mix(work(q, k, v, valid=valid, turn=turn))
    state = tuple(torch.zeros(2, *shape, dtype=torch.float64) for shape in Linear().state(dims(kv_heads=2)))
    pieces, start = [], 0
    with torch.no_grad():
        for size in split:
            some = slice(start, start + size)
            turn = rotation(torch.arange(start, start + size)[None])
            parts = (x[:, some] for x in (q, k, v))
            pieces.append(Linear().mix(work(*parts, valid=valid[:, some], turn=turn, state=state)))
            start += size
    assert_close("promise", torch.cat(pieces, 1)[valid], whole[valid])


@pytest.mark.parametrize("size", [1, 90])
def test_linear_state_padding_changes_nothing(size):
    q, k, v = qkv(size)
    state = tuple(random(2, *shape, seed=5) for shape in Linear().state(dims(kv_heads=2)))
    before = [part.clone() for part in state]
    with torch.no_grad():
        out = Linear().mix(work(q, k, v, valid=torch.zeros(2, size, dtype=torch.bool), state=state))
    assert out.isfinite().all()
    for now, then in zip(state, before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("pattern", [Causal(), Full()], ids=str)
def test_linear_documents_of_one_row_within_a_chunk_equal_the_formula(pattern):
    leaf, document = Linear(), packed(20, 9, 4)
    q, k, v = qkv(20, batch=1)
    expected = written_out(leaf, q, k, v, seen_by(pattern, 20, document), lambda x: x)
    assert_close("kernel", leaf.mix(work(q, k, v, pattern=pattern, document=document)), expected)


def test_linear_short_document_behind_long_ones_keeps_its_digits_in_fp32():
    q, k, v = (x.detach().float() for x in qkv(3000, batch=1))
    k[:, :2900] += 50.0
    document = torch.cat((torch.zeros(1, 2900), torch.ones(1, 100)), 1).long()
    q, k = Linear().features(q), Linear().features(k)
    packed_out, _ = causal(Features(q, k, q, k, v, 1e-6), document)
    q, k, v = (x[:, 2900:] for x in (q, k, v))
    alone, _ = causal(Features(q, k, q, k, v, 1e-6))
    assert_close("single", packed_out[:, 2900:], alone)


def test_linear_compiles_into_one_graph():
    leaf, document = Linear(), packed(150, 70, 9)

    def step(q, k, v):
        return leaf.mix(work(q, k, v, document=document, turn=lambda x: x * 2))

    given = [x.detach() for x in qkv(150)]
    assert_close("kernel", torch.compile(step, backend="eager", fullgraph=True)(*given), step(*given))


def test_linear_patterns_that_leave_tokens_out_are_refused():
    assert Linear().serves(Causal()) is None
    assert Linear().serves(Full()) is None
    reason = Linear().serves(Causal() & Window(size=8))
    assert reason is not None
    assert "'window(8)' leaves out tokens" in reason


def test_linear_without_its_small_number_is_refused():
    assert list(Linear(eps=0.0).problems()) == [("eps", "0.0 is not above 0")]
