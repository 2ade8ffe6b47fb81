"""Positions that add to the scores: ALiBi, T5, Shaw, Transformer-XL."""

import math
import types

import pytest
import torch

from anyformer.kernels.attention import attend
from anyformer.kernels.attention.score_bias import score_bias, value_part
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.full import Full
from anyformer.parts.positions.alibi import Alibi, slopes
from anyformer.parts.positions.shaw import Shaw
from anyformer.parts.positions.t5 import T5Bias
from anyformer.parts.positions.xl import TransformerXL
from anyformer.specs.axes import QKPositions
from anyformer.specs.patterns import Tokens
from tests.parts.samples import dims, held, lifted, random, randomised
from tests.tolerances import assert_close

Q_POS = torch.tensor([[4, 5, 6, 9, 2], [0, 1, 2, 3, 4]])
K_POS = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 12], [3, 0, 1, 2, 4, 9, 5, 6]])
"""Out of order, with gaps, before and after the queries."""
SCALE = 0.4
LIKE = torch.zeros((), dtype=torch.float64)


def projected(sizes):
    return random(2, 5, sizes.heads, sizes.head_dim, seed=1), random(2, 8, sizes.kv_heads, sizes.head_dim, seed=2)


def bias_of(leaf, sizes, own=None, q_pos=Q_POS, k_pos=K_POS, scale=SCALE):
    q, k = projected(sizes)
    return dense(leaf, held(leaf, sizes) if own is None else own, q, k, QKPositions(q_pos, k_pos), scale)


def dense(leaf, own, q, k, where, scale):
    """What a scheme adds to the scores of all pairs, (B or 1, H, T, S)."""
    return score_bias(leaf.scores(own, q, k, where, scale), where)


def assert_equal_with_gradients(found, expected, own):
    """The same numbers, and the same gradients of the scheme's parameters."""
    assert_close("formula", found, expected)
    trained, back = [t for t in own.values() if t.requires_grad], random(*expected.shape, seed=6)
    if trained:
        both = [torch.autograd.grad(y, trained, back, allow_unused=True) for y in (found, expected)]
        for ours, theirs in zip(*both, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert_close("formula", ours, theirs)


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2.0**-i for i in range(1, 9)]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [*(2.0**-i for i in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_slopes_are_powers_of_two_and_then_those_between(heads, wanted):
    assert_close(
        "formula", torch.tensor(slopes(heads, 8.0), dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64)
    )


@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12, 16, 32, 71, 112])
def test_alibi_slopes_equal_those_of_bloom(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    with lifted():
        published = build_alibi_tensor(torch.ones(1, 9, dtype=torch.float64), heads, torch.float64)
    slope = torch.tensor(slopes(heads, 8.0), dtype=torch.float64)
    # BLOOM writes slope times the key's index: for one query that is the bias up to a constant.
    assert_close("oracle", slope[:, None, None] * torch.arange(9), published)
    where = QKPositions(torch.full((1, 1), 8), torch.arange(9)[None])
    ours = dense(Alibi(), {"slope_H": slope}, LIKE, LIKE, where, 1.0)[0]
    assert_close("oracle", ours - ours[..., :1], published)


@pytest.mark.parametrize("before_scale", [False, True])
@pytest.mark.parametrize("base", [8.0, 4.0])
def test_alibi_bias_is_minus_the_slope_times_the_distance_both_ways(base, before_scale):
    leaf, sizes = Alibi(slope_base=base, before_scale=before_scale), dims(heads=6)
    found = bias_of(leaf, sizes)
    assert tuple(found.shape) == (2, 6, 5, 8)
    slope = slopes(6, base)
    expected = torch.tensor(
        [
            [[[-s * abs(int(i) - int(j)) for j in K_POS[b]] for i in Q_POS[b]] for s in slope]
            for b in range(2)
        ],
        dtype=torch.float64,
    )  # fmt: skip
    assert_close("formula", found, expected * (SCALE if before_scale else 1.0))


def test_alibi_before_the_scale_equals_scaling_scores_and_penalty_together():
    sizes = dims()
    q, k = projected(sizes)
    raw = torch.einsum("bthk,bshk->bhts", q, k)
    together = (raw + bias_of(Alibi(), sizes)) * SCALE
    assert_close("formula", raw * SCALE + bias_of(Alibi(before_scale=True), sizes), together)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"),
    [
        (32, 128),
        (32, 20),
        (64, 256),
        (8, 20),
        (128, 512),
        (20, 100),
        (4, 3),
        (16, 1000),
        (10, 14),
        (10, 128),
        (7, 20),
        (30, 128),
        (33, 128),
        (5, 9),
        # A distance on the border of two buckets, where the class's own rounding decides.
        (18, 128),
        (19, 128),
        (54, 64),
        (83, 1000),
    ],
)
def test_t5_buckets_equal_those_of_the_published_class(buckets, max_distance, bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    leaf = T5Bias(buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    assert not list(leaf.problems())
    sizes = dims(heads=1)
    # A table whose row b holds the number b makes the bias the bucket itself.
    own = held(leaf, sizes) | {"table": torch.arange(buckets, dtype=torch.float64)[:, None]}
    distance = torch.arange(-600, 601)
    where = QKPositions(torch.tensor([[600]]), (distance + 600)[None])
    found = dense(leaf, own, LIKE, LIKE, where, 1.0)[0, 0, 0]
    published = T5Attention._relative_position_bucket(distance, bidirectional, buckets, max_distance)
    assert found.long().tolist() == published.tolist()
    assert len(set(published.tolist())) > buckets // 2


@pytest.mark.parametrize("causal", [True, False])
def test_t5_bias_unset_looks_both_ways_exactly_in_an_encoder(causal):
    sizes = dims(causal=causal)
    own = held(T5Bias(), sizes)
    found = bias_of(T5Bias(), sizes, own)
    explicit = T5Bias(bidirectional=not causal)
    assert_close("same", found, bias_of(explicit, sizes, held(explicit, sizes) | {"table": own["table"]}))
    assert_close("same", found[0, :, 2, 7], own["table"][16 + 6 if not causal else 0])
    assert_close("same", found[0, :, 2, 1], own["table"][5])
    assert tuple(found.shape) == (2, 4, 5, 8)


@pytest.mark.parametrize(
    ("leaf", "field"),
    [
        (T5Bias(buckets=1), "buckets"),
        (T5Bias(buckets=3, bidirectional=True), "buckets"),
        (T5Bias(buckets=1, bidirectional=False), "buckets"),
        (T5Bias(max_distance=8), "max_distance"),
        (T5Bias(max_distance=16, bidirectional=False), "max_distance"),
        (Alibi(slope_base=0.0), "slope_base"),
        (Shaw(clip=0), "clip"),
        (TransformerXL(theta=-1.0), "theta"),
    ],
)
def test_bias_position_setting_that_cannot_be_is_named(leaf, field):
    assert [where for where, _ in leaf.problems()] == [field]


def shaw_vectors(leaf, own, name):
    """(B,T,S,K): the vector of every pair, by its definition."""
    table = own["sine"] if leaf.vectors == "sine" else own[name]
    pairs = [
        [[table[min(max(int(j) - int(i), -leaf.clip), leaf.clip) + leaf.clip] for j in K_POS[b]] for i in Q_POS[b]]
        for b in range(2)
    ]
    return torch.stack([torch.stack([torch.stack(row) for row in rows]) for rows in pairs])


SHAW = pytest.mark.parametrize(
    "leaf", [Shaw(clip=3), Shaw(clip=20), Shaw(clip=3, vectors="sine")], ids=["clipped", "wide", "sine"]
)


@SHAW
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_shaw_bias_is_the_scaled_product_with_each_pairs_vector(leaf, kv_heads):
    sizes = dims(kv_heads=kv_heads)
    own = held(leaf, sizes)
    q, _ = projected(sizes)
    expected = torch.einsum("bthk,btsk->bhts", q, shaw_vectors(leaf, own, "keys")) * SCALE
    assert_equal_with_gradients(bias_of(leaf, sizes, own), expected, own)


@SHAW
def test_shaw_values_are_the_weighted_vectors_of_the_pairs(leaf):
    sizes = dims()
    own, weights = held(leaf, sizes), random(2, 4, 5, 8, seed=3).softmax(-1)
    expected = torch.einsum("bhts,btsk->bthk", weights, shaw_vectors(leaf, own, "values"))
    found = value_part(leaf.values(own, weights), weights, QKPositions(Q_POS, K_POS))
    assert_equal_with_gradients(found, expected, own)


def test_shaw_attention_equals_the_equations_of_the_paper():
    leaf, sizes = Shaw(clip=3), dims()
    own = held(leaf, sizes)
    (q, k), v = projected(sizes), random(2, 8, 4, 8, seed=4)
    on_keys, on_values = shaw_vectors(leaf, own, "keys"), shaw_vectors(leaf, own, "values")
    score = torch.einsum("bthk,btshk->bhts", q, k[:, None] + on_keys[:, :, :, None]) * SCALE
    expected = torch.einsum("bhts,btshk->bthk", score.softmax(-1), v[:, None] + on_values[:, :, :, None])
    scores = leaf.scores(own, q, k, QKPositions(Q_POS, K_POS), SCALE)
    attn_mask = AttentionMask(Full(), Tokens(Q_POS), Tokens(K_POS), heads=4)
    found = attend(
        q, k, v, scale=SCALE, mixer=Softmax(), own={}, mask=attn_mask, scores=scores, values=leaf.values(own, v)
    )
    assert_close("formula", found, expected)


def test_shaw_sine_vectors_are_the_sinusoidal_rows_of_the_clipped_distance():
    rows = held(Shaw(clip=3, vectors="sine"), dims())["sine"]
    assert tuple(rows.shape) == (7, 8)
    for distance in range(7):
        phases = [distance * 10000 ** (-2 * i / 8) for i in range(4)]
        expected = [wave(phase) for phase in phases for wave in (math.sin, math.cos)]
        assert_close("formula", rows[distance], torch.tensor(expected, dtype=torch.float64))


def test_shaw_keys_equal_those_of_a_published_class():
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as published

    leaf, sizes = Shaw(clip=3, on_values=False), dims()
    own = held(leaf, sizes)
    q, k = random(2, 8, 4, 8, seed=1), random(2, 8, 4, 8, seed=2)
    theirs = types.SimpleNamespace(
        left_max_position_embeddings=3, right_max_position_embeddings=3, scaling=SCALE, head_size=8,
        distance_embedding=torch.nn.Embedding.from_pretrained(own["keys"].detach()),
    )  # fmt: skip
    _, bias = published._apply_relative_key_position_encoding(theirs, q.transpose(1, 2), k.transpose(1, 2))
    pos = torch.arange(8)[None]
    assert_close("oracle", dense(leaf, own, q, k, QKPositions(pos, pos), SCALE), bias)


@pytest.mark.parametrize("theta", [10000.0, 30.0])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_xl_scores_equal_the_formula_with_a_sine_vector_for_each_pair(kv_heads, theta):
    leaf, sizes = TransformerXL(theta=theta), dims(kv_heads=kv_heads)
    own = held(leaf, sizes)
    q, k = projected(sizes)
    gap = (Q_POS[:, :, None] - K_POS[:, None, :]).double()
    frequency = torch.tensor([theta ** (-2 * i / 12) for i in range(6)], dtype=torch.float64)
    phase = gap[..., None] * frequency
    vector = torch.cat((phase.sin(), phase.cos()), -1) @ own["distance"].T
    vector = vector.reshape(2, 5, 8, 4, 8)
    keys = k.repeat_interleave(4 // kv_heads, 2)
    by_content = torch.einsum("bthk,bshk->bhts", q + own["u"], keys)
    by_distance = torch.einsum("bthk,btshk->bhts", q + own["v"], vector)
    plain = torch.einsum("bthk,bshk->bhts", q, keys) * SCALE
    assert_equal_with_gradients(plain + bias_of(leaf, sizes, own), (by_content + by_distance) * SCALE, own)


@pytest.mark.parametrize("memory", [0, 3])
def test_xl_attention_equals_the_published_class(memory):
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    config = XLNetConfig(d_model=12, n_head=3, d_inner=8, n_layer=1, vocab_size=5, dropout=0.0)
    published = randomised(XLNetRelativeAttention(config))
    sizes = dims(heads=3, kv_heads=3, head_dim=4)
    leaf = TransformerXL()
    own = {
        "distance": published.r.permute(1, 2, 0).reshape(12, 12), "u": published.r_w_bias, "v": published.r_r_bias,
        "frequency": held(leaf, sizes)["frequency"],
    }  # fmt: skip
    q, k, v = random(2, 6, 3, 4, seed=1), random(2, 6 + memory, 3, 4, seed=2), random(2, 6 + memory, 3, 4, seed=3)
    q_pos, k_pos = torch.arange(memory, memory + 6)[None], torch.arange(memory + 6)[None]
    mask = k_pos[:, None] <= q_pos[..., None]
    with lifted(), torch.no_grad():
        encoder = types.SimpleNamespace(
            d_model=12,
            attn_type="bi",
            bi_data=False,
            clamp_len=-1,
            positional_embedding=XLNetModel.positional_embedding,
        )
        distances = XLNetModel.relative_positional_encoding(encoder, 6, 6 + memory, bsz=2)
        turned = torch.einsum("ibh,hnd->ibnd", distances, published.r)
        hidden = (~mask[0]).double()[:, :, None, None].expand(-1, -1, 2, 3)
        theirs = published.rel_attn_core(*(t.transpose(0, 1) for t in (q, k, v)), turned, attn_mask=hidden)
    scores = leaf.scores(own, q, k, QKPositions(q_pos, k_pos), published.scale)
    attn_mask = AttentionMask(Causal(), Tokens(q_pos), Tokens(k_pos), plain=True, heads=3)
    ours = attend(q, k, v, scale=published.scale, mixer=Softmax(), own={}, mask=attn_mask, scores=scores)
    assert_close("oracle", ours, theirs.transpose(0, 1))


@pytest.mark.parametrize("leaf", [Alibi(), T5Bias(), Shaw(clip=3), TransformerXL()], ids=lambda leaf: leaf.kind)
def test_bias_of_one_row_of_positions_serves_the_whole_batch(leaf):
    sizes = dims()
    own = held(leaf, sizes)
    one = bias_of(leaf, sizes, own, q_pos=Q_POS[:1], k_pos=K_POS[:1])
    both = bias_of(leaf, sizes, own, q_pos=Q_POS[:1].expand(2, -1), k_pos=K_POS[:1].expand(2, -1))
    assert_close("formula", one.expand_as(both), both)
