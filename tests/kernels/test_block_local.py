"""Attention in blocks against the reference: windows, chunks and global tokens; what it computes and what it keeps."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from anyformer.kernels.attention import block_local, reference
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.chunked import Chunked
from anyformer.parts.patterns.dilated_window import DilatedWindow
from anyformer.parts.patterns.global_tokens import GlobalTokens
from anyformer.parts.patterns.heads import Heads
from anyformer.parts.patterns.symmetric_window import SymmetricWindow
from anyformer.parts.patterns.window import Window
from anyformer.specs.patterns import Tokens
from tests.kernels.largest import Largest
from tests.kernels.samples import packed, padded, plain, qkv, run, value_and_gradients
from tests.tolerances import assert_close

FIRST = GlobalTokens(first=2, marks=False)
PATTERNS = {
    "window": Window(size=7),
    "narrow": Window(size=2),
    "both_ways": SymmetricWindow(radius=5),
    "dilated": DilatedWindow(size=4, dilation=3),
    "chunked": Chunked(size=9),
    "causal_chunked": Causal() & Chunked(size=8),
    "either": Window(size=3) | Causal() & Chunked(size=8),
    "by_head": Window(size=4) | Heads(first=0, last=2) & DilatedWindow(size=4, dilation=4),
    "first_global": SymmetricWindow(radius=3) | FIRST,
    "causal_first_global": Causal() & (Window(size=5) | FIRST),
    "marked": SymmetricWindow(radius=3) | GlobalTokens(first=1),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that short rows have several."""
    monkeypatch.setattr(block_local, "LEAST", 8)
    monkeypatch.setattr(block_local, "WORTH", 2.0)


@pytest.fixture
def calls(monkeypatch):
    """(queries, keys, rows of the batch) of every call of torch's function."""
    found = []
    sdpa = F.scaled_dot_product_attention

    def counted(q, k, v, **rest):
        found.append((q.shape[2], k.shape[2], q.shape[0]))
        return sdpa(q, k, v, **rest)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    return found


def with_marks(attn_mask: AttentionMask) -> AttentionMask:
    """The same with a few tokens of each row marked."""
    if not attn_mask.pattern.reads_marks:
        return attn_mask
    tokens = attn_mask.keys
    marked = torch.zeros(2, tokens, dtype=torch.bool)
    marked[0, [0, tokens // 2, tokens - 1]] = True
    marked[1, [3]] = True
    before = tokens - attn_mask.queries
    return dataclasses.replace(
        attn_mask, q=attn_mask.q._replace(marked=marked[:, before:]), k=attn_mask.k._replace(marked=marked), notes={}
    )


def assert_equals_reference(attn_mask, *names, real=None, groups=2):
    found = value_and_gradients(block_local.KERNEL, attn_mask, *names, groups=groups, real=real)
    expected = value_and_gradients(reference.KERNEL, attn_mask, *names, groups=groups, real=real)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close("kernel", ours, theirs)


@pytest.mark.parametrize("groups", [6, 2, 1])
@pytest.mark.parametrize("length", [63, 100])
@pytest.mark.parametrize("name", PATTERNS)
def test_banded_equals_reference_in_value_and_gradient(name, length, groups, calls):
    assert_equals_reference(with_marks(plain(PATTERNS[name], length)), groups=groups)
    assert any(rows > 2 for _, _, rows in calls), "no blocks were made"


@pytest.mark.parametrize("name", ["window", "chunked", "first_global"])
def test_banded_of_a_thousand_tokens_equals_reference(name):
    assert_equals_reference(plain(PATTERNS[name], 1000))


@pytest.mark.parametrize("name", PATTERNS)
def test_banded_last_queries_of_more_keys_equal_reference(name, calls):
    assert_equals_reference(with_marks(plain(PATTERNS[name], 40, 63)))
    assert any(rows > 2 for _, _, rows in calls), "no blocks were made"


@pytest.mark.parametrize("name", PATTERNS)
def test_banded_packed_documents_equal_reference(name, calls):
    assert_equals_reference(with_marks(packed(PATTERNS[name], 63)))
    assert any(rows > 2 for _, _, rows in calls), "no blocks were made"


@pytest.mark.parametrize("name", PATTERNS)
def test_banded_padded_rows_equal_reference_in_real_tokens(name, calls):
    attn_mask, real = padded(PATTERNS[name], 63)
    assert_equals_reference(with_marks(attn_mask), real=real)
    assert any(rows > 2 for _, _, rows in calls), "no blocks were made"


@pytest.mark.parametrize("added", ["slope", "table"])
@pytest.mark.parametrize("name", ["window", "both_ways", "chunked", "by_head", "first_global", "marked"])
@pytest.mark.parametrize("rows", ["plain", "packed"])
def test_banded_bias_by_distance_equals_reference(name, added, rows, calls):
    attn_mask = plain(PATTERNS[name], 63) if rows == "plain" else packed(PATTERNS[name], 63)
    assert_equals_reference(with_marks(attn_mask), added)
    assert any(rows > 2 for _, _, rows in calls), "no blocks were made"


@pytest.mark.parametrize("added", ["table_of_queries", "sides"])
def test_banded_bias_of_another_kind_is_served_at_once(added, calls):
    assert_equals_reference(plain(Window(size=7), 63), added)
    assert [rows for _, _, rows in calls] == [2]


def test_banded_rows_with_holes_or_positions_of_their_own_are_served_at_once(calls):
    pos = torch.arange(63)[None]
    valid = torch.ones(2, 63, dtype=torch.bool)
    valid[0, 20:40] = False
    counted = (valid.long().cumsum(-1) - 1).clamp(min=0)
    for places, real in ((pos * 2, None), (pos.flip(1), None), (counted, valid)):
        tokens = Tokens(places)
        assert_equals_reference(AttentionMask(Window(size=7), tokens, tokens, real, heads=6), real=real)
    assert {rows for _, _, rows in calls} == {2}


def test_banded_row_that_sees_nothing_gives_zero_and_finite_gradients():
    attn_mask, real = padded(Window(size=7), 63)
    real = real.clone()
    attn_mask = dataclasses.replace(attn_mask, valid_BS=real.logical_and(torch.arange(63) > 30), notes={})
    q, k, v = (t.requires_grad_() for t in qkv(63, 63))
    out = run(block_local.KERNEL, q, k, v, attn_mask)
    assert (out[1, 10] == 0).all()
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_banded_dropout_zeroes_its_share_of_weights():
    tokens, share, size = 64, 0.25, 8
    q, k, _ = qkv(tokens, tokens, 4, 4, tokens)
    v = torch.eye(tokens, dtype=torch.float64)[None, :, None].expand(2, tokens, 4, tokens)
    attn_mask = plain(Window(size=size), tokens, heads=4)
    whole, dropped = (
        run(block_local.KERNEL, q, k, v, attn_mask),
        run(block_local.KERNEL, q, k, v, attn_mask, dropout=share),
    )
    seen, kept = whole != 0, dropped != 0
    assert_close("formula", dropped[kept], whole[kept] / (1 - share))
    lost = float((seen & ~kept).double().sum() / seen.double().sum())
    assert abs(lost - share) < 4 * (share * (1 - share) / int(seen.sum())) ** 0.5


def test_banded_computes_pairs_in_proportion_to_the_window(monkeypatch, calls):
    monkeypatch.setattr(block_local, "LEAST", 64)
    for tokens in (1024, 2048):
        q, k, v = qkv(tokens, tokens, 2, 2)
        run(block_local.KERNEL, q, k, v, plain(Window(size=64), tokens, heads=2))
    first, second = (sum(q * k * rows for q, k, rows in some) for some in (calls[:3], calls[3:]))
    assert second < 2.2 * first
    assert first < 2 * 1024 * 3 * 64


@pytest.mark.parametrize("name", ["window", "first_global", "chunked"])
def test_banded_never_holds_all_pairs(name):
    tokens = 512
    with Largest() as largest:
        value_and_gradients(block_local.KERNEL, plain(PATTERNS[name], tokens, heads=2))
    assert largest.numel < tokens * tokens / 2


def test_banded_where_the_band_is_most_of_the_row_makes_one_call(monkeypatch, calls):
    monkeypatch.setattr(block_local, "WORTH", 0.6)
    assert_equals_reference(plain(Window(size=40), 63))
    assert calls == [(63, 63, 2)]


@pytest.mark.parametrize("name", ["window", "chunked", "causal_first_global"])
def test_banded_compiles_in_one_graph_and_equals_itself(name):
    def both(q, k, v):
        return run(block_local.KERNEL, q, k, v, plain(PATTERNS[name], 63))

    torch._dynamo.reset()
    results = []
    for way in (torch.compile(both, fullgraph=True, backend="eager"), both):
        leaves = [t.requires_grad_() for t in qkv(63, 63)]
        out = way(*leaves)
        out.square().sum().backward()
        results.append([out, *(t.grad for t in leaves)])
    for compiled, eager in zip(*results, strict=True):
        assert_close("kernel", compiled, eager)


def test_banded_one_mask_serves_all_blocks_where_they_are_alike():
    for name, alike in (("window", True), ("causal_chunked", True), ("chunked", False), ("first_global", True)):
        attn_mask = plain(PATTERNS[name], 100)
        run(block_local.KERNEL, *qkv(100, 100), attn_mask)
        blocks = [mask.shape[2] for key, mask in attn_mask.notes.items() if key[0] == "band"]
        assert (max(blocks) == 1) is alike, name
