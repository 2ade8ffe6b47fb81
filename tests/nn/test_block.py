"""af.nn.Block: the block of every registered kind and of random specs, equal to the one inside a model."""

import copy
import pickle

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError, SpecError
from tests.contract.draw import draw, every_kind, spec_of_kind
from tests.nn.alone import blocks_alone
from tests.parts.samples import random
from tests.tolerances import assert_close

KINDS = [(axis, kind) for axis, kind in every_kind() if axis not in ("embed", "head", "init")]


@pytest.mark.parametrize(("axis", "kind"), KINDS)
def test_block_of_a_kind_alone_equals_the_models(axis, kind):
    spec = spec_of_kind(axis, kind)
    compared = 0
    for each, _, out in blocks_alone(spec):
        assert_close("kernel", out, each.out)
        compared += 1
    assert compared >= 1


@pytest.mark.parametrize("seed", range(60))
def test_block_of_a_random_spec_alone_equals_the_models(seed):
    for each, _, out in blocks_alone(draw(seed)):
        assert_close("kernel", out, each.out)


def test_blocks_of_random_specs_are_mostly_comparable():
    compared = sum(1 for seed in range(60) for _ in blocks_alone(draw(seed)))
    assert compared > 60


SIZES = {"width": 24, "heads": 6, "kv_heads": 3, "head_dim": 4}


def block(**options):
    torch.manual_seed(0)
    return af.nn.Block(**SIZES, **options, dtype=torch.float64).eval()


def test_block_padded_and_packed_rows_equal_each_document_alone():
    part, documents = block(pattern="window(4)", position="rope"), [random(5, 24, seed=1), random(7, 24, seed=2)]
    alone = [part(each[None])[0] for each in documents]
    packed = part(torch.cat(documents)[None], segments=torch.tensor([[0] * 5 + [1] * 7]))[0]
    assert_close("promise", packed, torch.cat(alone))
    padded = torch.stack([torch.cat((random(2, 24, seed=3), documents[0])), documents[1]])
    found = part(padded, attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7]))
    assert_close("promise", found[0, 2:], alone[0])
    assert_close("promise", found[1], alone[1])


def test_block_mask_of_a_pattern_equals_the_pattern():
    x, near = random(2, 9, 24), torch.ones(9, 9).tril().triu(-3).bool()
    assert_close("kernel", block(position="alibi")(x, near), block(pattern="window(4)", position="alibi")(x))


def test_block_reversible_runs_two_streams():
    part, x = block(pattern="causal", block={"wiring": "reversible"}), (random(2, 5, 24), random(2, 5, 24, seed=1))
    first, second = part(x)
    whole = block(pattern="causal", block={"wiring": "reversible"})
    a = x[0] + whole.body.attention.body(whole.body.attention.inner(x[1]), _metadata_of(whole, x[0]))
    assert_close("kernel", first, a)
    assert second.shape == (2, 5, 24)
    with pytest.raises(TypeError, match="give a pair"):
        part(x[0])


def _metadata_of(part, x):
    from anyformer.nn.attention import self_metadata

    return self_metadata("here", part.body.attention.body, part.layer.pattern, x)


@pytest.mark.parametrize("wiring", ["serial", "parallel", "parallel2"])
@pytest.mark.parametrize("cross", [False, True])
def test_block_copied_pickled_and_read_back_is_the_same(wiring, cross):
    part = block(pattern="causal", position="t5", bias=True, cross=cross, block={"wiring": wiring})
    x, memory = random(2, 7, 24), random(2, 3, 24, seed=1) if cross else None
    want = part(x, memory=memory)
    for twin in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert torch.equal(twin(x, memory=memory), want)
        assert {p.data_ptr() for p in twin.parameters()}.isdisjoint({p.data_ptr() for p in part.parameters()})
    other = block(pattern="causal", position="t5", bias=True, cross=cross, block={"wiring": wiring})
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(part.state_dict())
    assert torch.equal(other(x, memory=memory), want)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "output", "none"])
def test_block_gradients_reach_every_parameter_and_are_finite(placement):
    part = block(pattern="causal", position="t5", norm={"placement": placement}, attention={"qk_norm": True}).train()
    part(random(2, 9, 24)).square().sum().backward()
    for name, parameter in part.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("options", [{"pattern": "causal", "position": "rope"}, {"pattern": "window(3)", "position": "t5"},
                                     {"ffn": "moe", "position": "alibi"}])  # fmt: skip
def test_block_compiles_as_one_graph_with_its_gradient(options):
    part, x = block(**options).train(), random(2, 9, 24)
    want = torch.autograd.grad(part(x).square().sum(), list(part.parameters()), allow_unused=True)
    compiled = torch.compile(part, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x).square().sum(), list(part.parameters()), allow_unused=True)
    for a, b in zip(found, want, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close("kernel", a, b)


def test_block_on_meta_allocates_nothing_and_starts_when_it_is_moved():
    with torch.device("meta"):
        part = af.nn.Block(**SIZES, position="rope")
    assert all(p.is_meta for p in part.parameters())
    part.to_empty(device="cpu")
    part.reset_parameters()
    assert part(torch.randn(1, 3, 24)).isfinite().all()
    # A constant is a number, and not memory that was left empty.
    assert part.body.attention.body.position.frequency[0] == 1.0


def test_block_dropout_differs_by_call_in_training_only():
    part, x = block(block={"dropout": 0.5}), random(1, 4, 24)
    assert torch.equal(part(x), part(x))
    part.train()
    assert not torch.equal(part(x), part(x))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: af.nn.Block(24, 5), SpecError, "attention.heads: 5 does not divide width=24"),
        (lambda: af.nn.Block(24, 6, norm={"placement": "before"}), SpecError, "norm.placement: 'before' is unknown"),
        (lambda: af.nn.Block(24, 6, ffn="swigul", position="rop"), SpecError, "position.kind: 'rop' is unknown; did you mean"),
        (lambda: af.nn.Block(24, 6, ffn="swigul", position="rop"), SpecError, "ffn.kind: 'swigul' is unknown; did you mean"),
        (lambda: af.nn.Block(24, 6, pattern="causal", attention={"pattern": "full"}), InputError, "is given twice"),
        (lambda: af.nn.Block(24, 6, position="learned"), InputError, "PositionEmbedding"),
        (lambda: af.nn.Block(24, 6, block={"wirng": "serial"}), SpecError, "block.wirng: is unknown; did you mean 'wiring'"),
        (lambda: block()(random(2, 24)), InputError, r"expected \(batch, tokens, 24\), got \(2, 24\)"),
        (lambda: block()(random(2, 3, 24), memory=random(2, 3, 24)), InputError, "cross=True"),
        (lambda: block(cross=True)(random(2, 3, 24)), InputError, "memory: is missing"),
        (lambda: block(pattern="causal")(random(2, 3, 24), torch.ones(3, 3).bool()), InputError, "give one of them"),
        (lambda: block()(random(2, 3, 24), positions=torch.zeros(4).long()), InputError, "positions: expected"),
        (lambda: block()(random(2, 3, 24), global_mask=torch.zeros(2, 3)), InputError, "global_tokens"),
    ],
)  # fmt: skip
def test_block_misuse_says_what_to_do(make, error, text):
    with pytest.raises(error, match=text):
        make()
