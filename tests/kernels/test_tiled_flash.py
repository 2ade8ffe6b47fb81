"""Tiled attention against the reference, with everything that may be done to scores; its dropout; what it computes."""

import itertools

import pytest
import torch

from anyformer.errors import CapabilityError
from anyformer.kernels.attention import reference, tiled_flash
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.block_sparse import BlockSparse
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.chunked import Chunked
from anyformer.parts.patterns.full import Full
from anyformer.parts.patterns.global_tokens import GlobalTokens
from anyformer.parts.patterns.random_blocks import RandomBlocks
from anyformer.parts.patterns.strided import Strided
from anyformer.parts.patterns.symmetric_window import SymmetricWindow
from anyformer.parts.patterns.window import Window
from anyformer.specs.axes import ScoreBias, ValueTerms
from tests.kernels.largest import Largest
from tests.kernels.samples import ADDED, given, packed, padded, plain, qkv, run, value_and_gradients
from tests.parts.samples import random
from tests.tolerances import assert_close

PATTERNS = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(size=9),
    "strided": Strided(stride=5),
    "chunked": Causal() & Chunked(size=16),
    "global": SymmetricWindow(radius=3) | GlobalTokens(first=2),
    "by_head": BlockSparse(block=4, local=2, stride=3, shift=1),
    "random": Causal() & RandomBlocks(block=4, count=2),
}


@pytest.fixture
def small_tiles(monkeypatch):
    """So that short rows have several."""
    monkeypatch.setattr(tiled_flash, "sizes", lambda heads, queries, keys, device: (16, 24))


def assert_equals_reference(attn_mask, *names, real=None, groups=2, **rest):
    found = value_and_gradients(tiled_flash.KERNEL, attn_mask, *names, groups=groups, real=real, **rest)
    expected = value_and_gradients(reference.KERNEL, attn_mask, *names, groups=groups, real=real, **rest)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close("kernel", ours, theirs)


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("name", ["full", "causal", "window"])
def test_tiled_with_each_thing_added_equals_reference_in_value_and_gradient(name, added, small_tiles):
    assert_equals_reference(plain(PATTERNS[name], 63), added)


@pytest.mark.parametrize("names", list(itertools.combinations(["softcap", "sink", "sides", "values"], 2)), ids="-".join)
def test_tiled_with_two_things_added_equals_reference(names, small_tiles):
    assert_equals_reference(plain(Causal(), 63), *names)


@pytest.mark.parametrize("added", ["plain", "shaw"])
@pytest.mark.parametrize("rows", ["plain", "packed", "padded", "fewer"])
@pytest.mark.parametrize("name", PATTERNS)
def test_tiled_every_pattern_and_kind_of_row_equals_reference(name, rows, added, small_tiles):
    pattern, real = PATTERNS[name], None
    if rows == "padded":
        attn_mask, real = padded(pattern, 63)
    else:
        attn_mask = packed(pattern, 63) if rows == "packed" else plain(pattern, 63 if rows == "plain" else 20, 63)
    assert_equals_reference(attn_mask, added, "softcap", "sink", real=real)


@pytest.mark.parametrize("groups", [6, 3, 1])
@pytest.mark.parametrize("length", [1, 63, 100])
def test_tiled_grouped_heads_equal_reference(groups, length, small_tiles):
    assert_equals_reference(plain(Causal(), length), "table", "sink", groups=groups)


def test_tiled_of_a_thousand_tokens_equals_reference():
    assert_equals_reference(plain(Window(size=100), 1000), "softcap", "sink")


@pytest.mark.parametrize("height", [0.0, 800.0, -800.0])
def test_tiled_scores_and_sinks_of_any_height_equal_reference(height, small_tiles):
    q, k, v = qkv(63, 63)
    sink = random(6, seed=5) + height
    rest = {"mixer": Softmax(sinks=True), "own": {"sink_H": sink}}
    found, expected = (
        run(kernel, 30 * q, k, v, plain(Causal(), 63), **rest) for kernel in (tiled_flash.KERNEL, reference.KERNEL)
    )
    assert_close("kernel", found, expected)


@pytest.mark.parametrize("sinks", [False, True])
def test_tiled_row_that_sees_nothing_gives_zero_and_finite_gradients(sinks, small_tiles):
    mask = torch.rand(2, 1, 63, 63, generator=torch.Generator().manual_seed(4)) < 0.3
    mask[0, :, 2], mask[1, :, 16:40] = False, False
    q, k, v = (t.float().requires_grad_() for t in qkv(63, 63))
    own = {"sink_H": torch.zeros(6, requires_grad=True)} if sinks else {}
    out = run(tiled_flash.KERNEL, q, k, v, given(mask), mixer=Softmax(sinks=sinks), own=own)
    assert (out[0, 2] == 0).all()
    assert (out[1, 16:40] == 0).all()
    assert (out[0, 1] != 0).all()
    out.backward(torch.full_like(out, 1e3))
    assert all(t.grad.isfinite().all() for t in (q, k, v, *own.values()))
    assert (q.grad[0, 2] == 0).all()


def test_tiled_half_precision_is_computed_in_fp32_and_rounded_once(small_tiles):
    leaves = [t.bfloat16() for t in qkv(63, 63)]
    found, exact = [], []
    for kernel, dtype, results in (
        (tiled_flash.KERNEL, torch.bfloat16, found),
        (reference.KERNEL, torch.float64, exact),
    ):
        given_ = [t.clone().to(dtype).requires_grad_() for t in leaves]
        out = run(kernel, *given_, plain(Causal(), 63), softcap=1.5)
        assert out.dtype == dtype
        out.backward(random(*out.shape, seed=7).bfloat16().to(dtype))
        results.extend([out, *(t.grad for t in given_)])
    for ours, theirs in zip(found, exact, strict=True):
        assert_close("bf16", ours, theirs)


def test_tiled_cannot_be_differentiated_twice(small_tiles):
    q, k, v = (t.requires_grad_() for t in qkv(63, 63))
    out = run(tiled_flash.KERNEL, q, k, v, plain(Causal(), 63))
    with pytest.raises(CapabilityError, match="tiled attention has no second derivative"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


def weights(tokens, share, seed):
    """The weights themselves: values are unit vectors."""
    q, k, _ = qkv(tokens, tokens, 4, 4, tokens)
    v = torch.eye(tokens, dtype=torch.float64)[None, :, None].expand(2, tokens, 4, tokens)
    torch.manual_seed(seed)
    return run(tiled_flash.KERNEL, q, k, v, plain(Full(), tokens, heads=4), dropout=share)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_tiled_dropout_zeroes_its_share_and_raises_the_rest(share, small_tiles):
    whole, dropped = weights(64, 0.0, 0), weights(64, share, 1)
    kept = dropped != 0
    assert_close("formula", dropped[kept], whole[kept] / (1 - share))
    assert abs(float((~kept).double().mean()) - share) < 4 * (share * (1 - share) / kept.numel()) ** 0.5
    assert torch.equal(weights(64, share, 1), dropped)
    assert not torch.equal(weights(64, share, 2), dropped)


def test_dropout_of_each_row_head_query_and_key_has_its_share_and_depends_on_no_other():
    size, share = 96, 0.25
    seed = torch.tensor([12345, -6789], dtype=torch.int32)
    kept = tiled_flash.kept_weights(seed, (4, 8), slice(0, size), slice(0, size), share).double()
    for along in ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)):
        count = kept.numel() / kept.shape[next(i for i in range(4) if i not in along)]
        off = (kept.mean(along) - (1 - share)).abs().max()
        assert off < 5 * (share * (1 - share) / count) ** 0.5
    centred = (kept - kept.mean()).flatten()
    spread = float(centred.var())
    for step in (1, 2, size, size + 1, size * size, 8 * size * size):
        together = float((centred[step:] * centred[:-step]).mean()) / spread
        assert abs(together) < 5 / (centred.numel() - step) ** 0.5


def test_dropout_of_a_tile_is_that_part_of_the_whole():
    seed = torch.tensor([1, 2], dtype=torch.int32)
    whole = tiled_flash.kept_weights(seed, (2, 3), slice(0, 40), slice(0, 50), 0.3)
    assert torch.equal(
        tiled_flash.kept_weights(seed, (2, 3), slice(8, 20), slice(30, 50), 0.3), whole[:, :, 8:20, 30:50]
    )


@pytest.mark.parametrize("added", ["plain", "shaw", "softcap", "sink"])
def test_tiled_gradient_with_dropout_is_that_of_the_masked_reference(added, small_tiles):
    tokens, share, heads = 63, 0.3, 6
    attn_mask = plain(Causal(), tokens)
    torch.manual_seed(3)
    found = value_and_gradients(tiled_flash.KERNEL, attn_mask, added, dropout=share)
    torch.manual_seed(3)
    seed = torch.randint(-(2**31), 2**31 - 1, (2,)).to(torch.int32)
    kept = tiled_flash.kept_weights(seed, (2, heads), slice(0, tokens), slice(0, tokens), share)

    class Dropped(Softmax):
        def weigh(self, scores, own):
            return super().weigh(scores, own) * kept / (1 - share)

    rest = {} if added == "sink" else {"mixer": Dropped()}
    leaves = [t.requires_grad_() for t in qkv(tokens, tokens)]
    fields, more = ADDED[added](tokens, tokens, heads)
    if added == "sink":
        fields["mixer"] = Dropped(sinks=True)
    out = run(reference.KERNEL, *leaves, attn_mask, **(rest | fields))
    out.backward(random(*out.shape, seed=7))
    for ours, theirs in zip(found, [out, *(t.grad for t in leaves + more)], strict=True):
        assert_close("kernel", ours, theirs)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("rows", ["plain", "packed", "padded"])
def test_tiles_left_are_those_that_hold_a_pair_and_whole_ones_hold_all(name, rows):
    pattern = PATTERNS[name]
    attn_mask = (
        plain(pattern, 63) if rows == "plain" else packed(pattern, 63) if rows == "packed" else padded(pattern, 63)[0]
    )
    mask = attn_mask.mask()
    dense = torch.ones(1, 1, 63, 63, dtype=torch.bool) if mask is None else mask.expand(-1, -1, 63, 63)
    found = {(s.first, s.last, t.first, t.last): t.whole for s in tiled_flash.plan(attn_mask, 16, 24) for t in s.tiles}
    for t, s in itertools.product(range(0, 63, 16), range(0, 63, 24)):
        part = dense[:, :, t : t + 16, s : s + 24]
        place = (t, min(t + 16, 63), s, min(s + 24, 63))
        assert (place in found) == bool(part.any())
        assert found.get(place, False) == bool(part.all())


def test_tiles_of_a_window_grow_with_the_row_not_with_its_square():
    counts = [sum(len(s.tiles) for s in tiled_flash.plan(plain(Window(size=64), n), 64, 64)) for n in (1024, 2048)]
    assert counts == [2 * 16 - 1, 2 * 32 - 1]


def test_tiled_asks_about_mixed_tiles_only_and_multiplies_no_other(monkeypatch, small_tiles):
    asked, multiplied = [], []
    attn_mask, scores = plain(Window(size=9), 63), tiled_flash._scores
    pairs = attn_mask.pairs
    monkeypatch.setattr(attn_mask, "pairs", lambda rows, columns: asked.append((rows, columns)) or pairs(rows, columns))
    monkeypatch.setattr(tiled_flash, "_scores", lambda *args: multiplied.append(args[-2:]) or scores(*args))
    leaves = [t.requires_grad_() for t in qkv(63, 63)]
    run(tiled_flash.KERNEL, *leaves, attn_mask).sum().backward()
    left = sum(len(stripe.tiles) for stripe in tiled_flash.plan(attn_mask, 16, 24))
    assert left < 4 * 3
    assert (len(multiplied), len(asked)) == (2 * left, 2 * left)


@pytest.mark.parametrize("added", ["plain", "table", "shaw", "sides", "softcap", "sink"])
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_tiled_never_holds_all_pairs(added, share):
    tokens, heads = 1024, 1
    attn_mask = plain(Window(size=200), tokens, heads=heads)
    with Largest() as largest:
        value_and_gradients(tiled_flash.KERNEL, attn_mask, added, groups=1, dropout=share)
    assert largest.numel <= max(tiled_flash.PAIRS, 2 * tokens * 16)
    assert largest.numel < tokens * tokens


def with_everything(q, k, v, table, sink, on_values, attn_mask, share):
    start = torch.tensor([1, 2, 4, 6], device=q.device)

    def bucket(gap):
        return torch.bucketize(gap.abs().contiguous(), start, right=True)

    return run(
        tiled_flash.KERNEL, q, k, v, attn_mask, mixer=Softmax(sinks=True), own={"sink_H": sink}, softcap=1.5,
        scores=ScoreBias(table_BHTN=table, pick=bucket), values=ValueTerms(on_values, bucket), dropout=share,
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "share"), [("plain", 0.2), ("packed", 0.0)])
def test_tiled_compiles_in_one_graph_and_equals_itself(rows, share, small_tiles):
    pattern = Window(size=9)
    results = []
    torch._dynamo.reset()
    for way in (torch.compile(with_everything, fullgraph=True, backend="eager"), with_everything):
        attn_mask = plain(pattern, 30) if rows == "plain" else packed(pattern, 30)
        leaves = [*qkv(30, 30), random(1, 6, 1, 5, seed=4), random(6, seed=5), random(5, 8, seed=6)]
        leaves = [t.requires_grad_() for t in leaves]
        torch.manual_seed(0)
        out = way(*leaves, attn_mask, share)
        out.square().sum().backward()
        results.append([out, *(t.grad for t in leaves)])
    for compiled, eager in zip(*results, strict=True):
        assert_close("kernel", compiled, eager)


def test_tiled_sizes_of_tiles_keep_to_their_room():
    for heads, tokens in itertools.product((1, 8, 32, 512), (5, 100, 4096)):
        rows, columns = tiled_flash.sizes(heads, tokens, tokens, "cpu")
        assert min(rows, columns) >= min(64, tokens)
        assert rows * columns * heads <= max(tiled_flash.PAIRS, heads * 64 * 64)
    assert tiled_flash.sizes(8, 4096, 4096, "cpu") == (128, 256)
