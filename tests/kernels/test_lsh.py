"""LSH attention against the public layer with the same hash seed, and what it promises beyond one chunk."""

import math

import pytest
import torch
from torch import Tensor
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from anyformer.kernels import lsh
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.parts.mixers.lsh import LSH
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.full import Full
from anyformer.parts.patterns.window import Window
from anyformer.specs.axes import MixerInput
from anyformer.specs.patterns import Pattern, Tokens
from tests.families.oracle import lifted
from tests.parts.samples import random
from tests.tolerances import assert_close

HEADS, DIM = 3, 8
BOTH = pytest.mark.parametrize("pattern", [Causal(), Full()], ids=str)


def packed(*lengths: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]


def positions(document_BT: Tensor) -> Tensor:
    at = torch.arange(document_BT.shape[1])
    change = torch.cat((torch.ones_like(document_BT[:, :1]), document_BT.diff(dim=1)), 1) != 0
    return at - torch.where(change, at, 0).cummax(1).values


def mixed(
    leaf: LSH,
    x_BTHK: Tensor,
    v_BTHK: Tensor,
    pattern: Pattern,
    *,
    valid: Tensor | None = None,
    document: Tensor | None = None,
    dropout: float = 0.0,
    cached: bool = False,
) -> Tensor:
    pos = torch.arange(x_BTHK.shape[1])[None] if document is None else positions(document)
    at = Tokens(pos, 0 if document is None else document)
    attn_mask = AttentionMask(pattern, at, at, valid, heads=x_BTHK.shape[2])
    keys = x_BTHK.clone() if cached else x_BTHK
    return leaf.mix(
        MixerInput(x_BTHK, keys, v_BTHK, lambda x: x, attn_mask, DIM**-0.5, dropout, None, lambda make: make())
    )


def inputs(tokens: int, batch: int = 2, heads: int = HEADS) -> tuple[Tensor, Tensor]:
    x, v = random(batch, tokens, heads, DIM, seed=1), random(batch, tokens, heads, DIM, seed=2)
    return x.requires_grad_(), v.requires_grad_()


def public(leaf: LSH, *, causal: bool) -> LSHSelfAttention:
    """The public layer with projections that only name the two halves of its input."""
    width = 2 * HEADS * DIM
    config = ReformerConfig(
        hidden_size=width, num_attention_heads=HEADS, attention_head_size=DIM, lsh_attn_chunk_length=leaf.chunk,
        lsh_num_chunks_before=leaf.before, lsh_num_chunks_after=leaf.after, num_hashes=leaf.rounds,
        num_buckets=list(leaf.buckets) if isinstance(leaf.buckets, tuple) else leaf.buckets, hash_seed=leaf.seed,
        is_decoder=causal, max_position_embeddings=64, axial_pos_embds_dim=[width // 2, width // 2],
    )  # fmt: skip
    layer = LSHSelfAttention(config, layer_idx=0).double().eval()
    with torch.no_grad():
        layer.query_key.weight.copy_(torch.eye(width)[: width // 2])
        layer.value.weight.copy_(torch.eye(width)[width // 2 :])
    return layer


def theirs(leaf: LSH, x_BTHK: Tensor, v_BTHK: Tensor, *, causal: bool, valid: Tensor | None = None) -> Tensor:
    with lifted():
        layer = public(leaf, causal=causal)
        out = layer(torch.cat((x_BTHK.flatten(2), v_BTHK.flatten(2)), 2), attention_mask=valid).hidden_states
    return out.view_as(x_BTHK)


LEAVES = [
    LSH(chunk=8, buckets=6),
    LSH(chunk=8, buckets=(4, 2), rounds=3),
    LSH(chunk=4, rounds=2, seed=5),
    LSH(chunk=8, before=2, after=1, buckets=(8,), rounds=4),
    LSH(chunk=8, before=0, buckets=4, rounds=2),
]


@BOTH
@pytest.mark.parametrize("leaf", LEAVES, ids=range(len(LEAVES)))
@pytest.mark.parametrize("tokens", [4, 16, 64])
def test_lsh_output_and_gradients_equal_the_public_layer(leaf, pattern, tokens):
    if leaf.after and pattern.causal:
        pytest.skip("a causal model looks at no chunk after")
    results = []
    for way in ("ours", "public"):
        x, v = inputs(tokens)
        out = mixed(leaf, x, v, pattern) if way == "ours" else theirs(leaf, x, v, causal=pattern.causal)
        out.backward(random(*out.shape, seed=7))
        results.append((out, x.grad, v.grad))
    for ours, public_ones in zip(*results, strict=True):
        assert_close("oracle", ours, public_ones)


@BOTH
@pytest.mark.parametrize("side", ["left", "right"])
def test_lsh_padded_rows_equal_the_public_layer(pattern, side):
    leaf = LSH(chunk=8, buckets=(4, 2), rounds=2)
    x, v = inputs(40)
    valid = torch.ones(2, 40, dtype=torch.bool)
    valid[1, : 13 if side == "left" else 40] = False
    if side == "right":
        valid[1, :27] = True
    found, expected = mixed(leaf, x, v, pattern, valid=valid), theirs(leaf, x, v, causal=pattern.causal, valid=valid)
    assert_close("oracle", found[valid], expected[valid])


@BOTH
def test_lsh_any_length_equals_the_public_layer_filled_up_to_a_chunk(pattern):
    leaf = LSH(chunk=8, rounds=2)
    x, v = (t.detach() for t in inputs(40))
    valid = (torch.arange(40) < 37).expand(2, -1)
    found = mixed(leaf, x[:, :37].clone(), v[:, :37], pattern)
    assert_close("oracle", found, theirs(leaf, x, v, causal=pattern.causal, valid=valid)[:, :37])


def by_pairs(leaf: LSH, x: Tensor, v: Tensor, plan: lsh.Plan) -> Tensor:
    """The same plan, one query at a time by its definition."""
    batch, tokens, heads, _ = x.shape
    chunks = plan.token_BHL.shape[2] // plan.chunk
    rounds = plan.place_BHRT.shape[2]
    keys = leaf.keys(x)
    rows = []
    for b in range(batch):
        for t in range(tokens):
            for h in range(heads):
                scores, values = [], []
                for r in range(rounds):
                    here = int(plan.place_BHRT[b, h, r, t]) // plan.chunk
                    for look in plan.looks:
                        first = (here + look) % chunks * plan.chunk
                        for place in range(first, first + plan.chunk):
                            code, s = int(plan.code_BHL[b, h, place]), int(plan.token_BHL[b, h, place])
                            allowed = code < t if plan.causal else code < tokens
                            if plan.low_BHL is not None:
                                allowed = allowed and code >= int(plan.low_BHL[b, h, plan.place_BHRT[b, h, 0, t]])
                            if s != t and allowed:
                                scores.append(x[b, t, h] @ keys[b, s, h] * DIM**-0.5)
                                values.append(v[b, s, h])
                weights = torch.stack(scores).softmax(0) if scores else None
                rows.append(v[b, t, h] if weights is None else weights @ torch.stack(values))
    return torch.stack(rows).view(batch, tokens, heads, DIM)


@pytest.mark.parametrize("tile", [1, lsh.TILE])
def test_lsh_gradients_with_documents_and_tiles_equal_one_query_at_a_time(tile, monkeypatch):
    monkeypatch.setattr(lsh, "TILE", tile)
    leaf, document = LSH(chunk=4, buckets=4, rounds=2), packed(3, 14, 5)
    results = []
    for way in ("ours", "pairs"):
        x, v = inputs(22, batch=1, heads=2)
        if way == "ours":
            out = mixed(leaf, x, v, Causal(), document=document)
        else:
            found = lsh.hashed(x, lsh.rotations(x, (4,), 2, leaf.seed), (4,))
            plan = lsh.plan(found, 4, 4, range(-1, 1), causal=True, document_BT=document)
            out = by_pairs(leaf, x, v, plan)
        out.backward(random(*out.shape, seed=7))
        results.append((out, x.grad, v.grad))
    for ours, pairs in zip(*results, strict=True):
        assert_close("kernel", ours, pairs)


@BOTH
def test_lsh_no_weight_on_later_tokens_padding_or_other_documents(pattern):
    """By the gradient of values: what has weight in some output has one."""
    leaf, document = LSH(chunk=8, buckets=4, rounds=2), packed(5, 30, 17, 12)
    x, v = inputs(64)
    valid = torch.ones(2, 64, dtype=torch.bool)
    valid[0, 10:14], valid[1, 60:] = False, False
    out = mixed(leaf, x, v, pattern, valid=valid, document=document)
    for t in (0, 4, 5, 20, 34, 35, 51, 52, 59):
        (grad,) = torch.autograd.grad(out[:, t].sum(), v, retain_graph=True)
        weighed = grad.abs().sum((2, 3)) > 0
        allowed = (document == document[:, t : t + 1]) & valid
        if pattern.causal:
            allowed = allowed & (torch.arange(64) <= t)
        real = valid[:, t]
        assert not (weighed & ~allowed)[real].any(), t
        assert weighed[real].any(), t


def test_lsh_first_token_of_a_document_takes_its_own_value():
    leaf = LSH(chunk=8, rounds=3)
    x, v = inputs(40)
    out = mixed(leaf, x, v, Causal(), document=packed(21, 19))
    assert_close("formula", out[:, 0], v[:, 0])
    assert_close("formula", out[:, 21], v[:, 21])


@BOTH
def test_lsh_documents_within_a_chunk_are_exact_whatever_stands_beside_them(pattern):
    leaf, lengths = LSH(chunk=16, buckets=4, rounds=2), (7, 16, 3, 40, 16, 1, 15)
    document = packed(*lengths)
    x, v = (t.detach() for t in inputs(sum(lengths)))
    out, start = mixed(leaf, x, v, pattern, document=document), 0
    for length in lengths:
        some = slice(start, start + length)
        if length <= leaf.chunk:
            assert_close("promise", out[:, some], mixed(leaf, x[:, some].clone(), v[:, some], pattern))
        start += length


@pytest.mark.parametrize("side", ["left", "right"])
def test_lsh_padding_beyond_a_chunk_leaves_short_rows_exact(side):
    leaf = LSH(chunk=16, rounds=2)
    x, v = (t.detach() for t in inputs(40))
    some = slice(28, 40) if side == "left" else slice(0, 12)
    valid = torch.zeros(2, 40, dtype=torch.bool)
    valid[:, some] = True
    for pattern in (Causal(), Full()):
        found = mixed(leaf, x, v, pattern, valid=valid)[:, some]
        assert_close("promise", found, mixed(leaf, x[:, some].clone(), v[:, some], pattern))


def test_lsh_with_a_cache_every_key_is_seen_and_equals_no_cache_within_a_chunk():
    leaf = LSH(chunk=16)
    x, v = (t.detach() for t in inputs(16))
    whole = mixed(leaf, x, v, Causal())
    assert_close("same", mixed(leaf, x, v, Causal(), cached=True), whole)
    for start, stop in ((0, 5), (5, 6), (6, 16)):
        q_at, k_at = Tokens(torch.arange(start, stop)[None]), Tokens(torch.arange(stop)[None])
        attn_mask = AttentionMask(Causal(), q_at, k_at, heads=HEADS)
        work = MixerInput(
            x[:, start:stop], x[:, :stop], v[:, :stop], lambda y: y, attn_mask, DIM**-0.5, 0.0, None, lambda f: f()
        )
        assert_close("promise", leaf.mix(work), whole[:, start:stop])


def test_lsh_same_seed_and_input_give_the_same_output_and_no_seed_another():
    x, v = (t.detach() for t in inputs(64))
    leaf = LSH(chunk=8, seed=3)
    assert torch.equal(mixed(leaf, x, v, Causal()), mixed(leaf, x, v, Causal()))
    assert not torch.equal(mixed(LSH(chunk=8, seed=4), x, v, Causal()), mixed(leaf, x, v, Causal()))
    free = LSH(chunk=8, seed=None)
    assert not torch.equal(mixed(free, x, v, Causal()), mixed(free, x, v, Causal()))


def test_lsh_buckets_are_decided_once_and_replayed():
    x, v = (t.detach() for t in inputs(64))
    kept: list[Tensor] = []

    def run(decide) -> Tensor:
        at = Tokens(torch.arange(64)[None])
        attn_mask = AttentionMask(Causal(), at, at, heads=HEADS)
        return LSH(chunk=8, seed=None).mix(MixerInput(x, x, v, lambda y: y, attn_mask, 1.0, 0.0, None, decide))

    def record(make):
        kept.append(make())
        return kept[-1]

    first = run(record)
    assert len(kept) == 1
    assert torch.equal(run(lambda make: kept[0]), first)


def test_lsh_more_rounds_come_nearer_to_exact_attention():
    """Tokens in clusters, as attention that is worth approximating has them."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(16, DIM, generator=generator, dtype=torch.float64) * 6
    which = torch.randint(16, (1, 256, HEADS), generator=generator)
    x, v = centres[which] + random(1, 256, HEADS, DIM, seed=3) * 0.1, random(1, 256, HEADS, DIM, seed=4)
    exact = mixed(LSH(chunk=256), x, v, Full())
    typical = []
    for rounds in (1, 4, 16):
        found = mixed(LSH(chunk=32, rounds=rounds), x, v, Full())
        typical.append(float((found - exact).norm() / exact.norm()))
    assert typical[2] < typical[1] < typical[0] < 1.0
    assert typical[2] < 0.3


def test_lsh_dropout_keeps_the_mean_and_has_the_gradient_of_what_it_computed():
    leaf = LSH(chunk=8, rounds=2)
    x, v = inputs(32, batch=1)
    torch.manual_seed(0)
    many = torch.stack([mixed(leaf, x.detach(), v.detach(), Causal(), dropout=0.2) for _ in range(400)]).mean(0)
    assert (many - mixed(leaf, x.detach(), v.detach(), Causal()))[:, 1:].abs().max() < 0.35

    def step(x, v):
        torch.manual_seed(1)
        return mixed(leaf, x, v, Causal(), dropout=0.2)

    direction = random(*x.shape, seed=8)
    (grad,) = torch.autograd.grad((step(x, v) * random(*x.shape, seed=9)).sum(), x)
    ahead, back = (
        (step((x + sign * 1e-6 * direction).detach(), v) * random(*x.shape, seed=9)).sum() for sign in (1, -1)
    )
    slope = (ahead - back) / 2e-6
    assert math.isclose(float((grad * direction).sum()), float(slope.detach()), rel_tol=1e-5)


@BOTH
def test_lsh_compiles_into_one_graph(pattern):
    leaf, document = LSH(chunk=8, rounds=2), packed(21, 19)
    given = [t.detach().requires_grad_() for t in inputs(40)]

    def step(x, v):
        return mixed(leaf, x, v, pattern, document=document)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    expected = step(*given)
    found = compiled(*given)
    assert_close("kernel", found, expected)
    ours, theirs_ = (torch.autograd.grad(out.square().sum(), given) for out in (found, expected))
    for a, b in zip(ours, theirs_, strict=True):
        assert_close("kernel", a, b)


def test_lsh_expected_pairs_grow_with_the_length_only():
    leaf = LSH(chunk=8, rounds=2)
    assert leaf.pairs(36, 8, 64) == 36
    assert leaf.pairs(64 * 65 // 2, 64, 64) == round(2 * 16 / 64 * 64 * 65 / 2)
    assert leaf.pairs(128 * 129 // 2, 128, 64) < 2.1 * leaf.pairs(64 * 65 // 2, 64, 64)


def test_lsh_bad_fields_are_refused_each_by_name():
    found = dict(LSH(chunk=0, before=-1, after=-1, buckets=3, rounds=0).problems())
    assert set(found) == {"chunk", "before", "after", "buckets", "rounds"}
    assert "buckets" in dict(LSH(buckets=()).problems())
    assert LSH().serves(Causal()) is None
    reason = LSH().serves(Causal() & Window(size=4))
    assert reason is not None
    assert "'window(4)' leaves out tokens" in reason
