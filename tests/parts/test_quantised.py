"""Quantised models: close to the original in every family of products, refused where they can't be made or kept."""

import copy

import pytest
import torch

import anyformer as af
from anyformer.errors import CapabilityError, InputError
from anyformer.evals.quality import compare, compare_ids
from anyformer.model.quantize import quantize
from anyformer.parts.linear import Linear
from anyformer.parts.quantized import QuantizedLinear, numbers_of
from anyformer.train.perplexity import score
from tests.cli.small_run import TEXT, small_run
from tests.contract.contracts import randomise
from tests.contract.draw import BASE
from tests.tolerances import difference

SHAPES = {
    "gated": {},
    "ungated, biases": {"ffn": {"kind": "gelu", "bias": True}, "attention": {"bias": "qo"}},
    "parallel": {"block": {"wiring": "parallel"}},
    "reversible": {"block": {"wiring": "reversible"}},
    "shared keys": {"attention": {"heads": 3, "kv_heads": 3, "mixer": {"kind": "lsh", "chunk": 64}}},
    "global": {"attention": {"pattern": "causal & (window(3) | global_tokens(first=1))", "global_projections": True}},
    "untied, bias": {"head": {"kind": "lm", "tied": False, "bias": True}},
    "encoder-decoder": {"topology": "encoder-decoder"},
}


def pair(changes):
    """A model whose weights are of usual size, and its int8 twin."""
    plain = randomise(af.build(af.spec(BASE, changes)), 0).eval()
    return plain, quantize(copy.deepcopy(plain), "int8")


def logits(model, ids):
    two = model.spec.topology == "encoder-decoder"
    return model(ids, **({"decoder_input_ids": ids} if two else {})).logits


@pytest.mark.parametrize("name", SHAPES)
def test_int8_model_of_every_shape_answers_nearly_as_the_original(name):
    plain, small = pair(SHAPES[name])
    ids = torch.randint(0, 37, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = difference(logits(small, ids), logits(plain, ids))
        # The blocks call nothing but whole numbers, however they are called.
        maps = [m for n, m in small.named_modules() if isinstance(m, Linear) and "blocks" in n and "global_" not in n]
    assert 1e-4 < found < 0.05
    assert maps == []
    assert small.head.quantised is not None


def test_int8_model_generates_and_reads_as_its_own_cache_does():
    _, small = pair({})
    ids = torch.randint(0, 37, (3, 7), generator=torch.Generator().manual_seed(0))
    cached = af.generate(small, ids, max_new_tokens=8)
    assert torch.equal(cached, af.generate(small, ids, max_new_tokens=8, use_cache=False))
    for row, want in zip(ids, cached, strict=True):
        assert torch.equal(af.generate(small, row[None], max_new_tokens=8)[0], want)


def test_int8_model_takes_a_byte_for_each_weight_of_its_products():
    plain, small = pair({"head": {"kind": "lm", "tied": False}})
    products = [m for m in small.modules() if isinstance(m, QuantizedLinear)]
    numbers = sum(p.numel() for n, p in plain.named_parameters() if p.dim() == 2 and "embed" not in n)
    assert sum(m.data_OI.nbytes for m in products) == numbers
    kept = sum(p.nbytes for p in small.parameters()) + sum(b.nbytes for b in small.buffers())
    assert kept < 0.5 * sum(p.nbytes for p in plain.parameters())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    small_run(folder)
    return folder


def test_load_quantised_gives_a_model_that_reads(run):
    plain, small, tokenizer = af.load(run), af.load(run, quantize="int8"), af.tokenizer(run)
    found = compare(plain, small, tokenizer, TEXT)
    assert found.before == pytest.approx(score(plain, tokenizer, TEXT).nats, rel=1e-6)
    assert found.after == pytest.approx(score(small, tokenizer, TEXT).nats, rel=1e-5)
    assert 0 < found.mean_kl < 0.05
    assert 0.7 < found.agreement <= 1


def test_quality_of_a_model_against_itself_is_no_loss(run):
    model, tokenizer = af.load(run), af.tokenizer(run)
    once = compare(model, model, tokenizer, TEXT)
    assert (once.mean_kl, once.agreement, once.before) == (0.0, 1.0, once.after)
    assert once.line().startswith(f"perplexity {once.perplexity[0]:,.3f} -> {once.perplexity[0]:,.3f} (+0.00%)")
    both = once + compare(model, model, tokenizer, "the dog")
    assert (both.tokens, both.bytes) == (once.tokens + len(tokenizer.encode("the dog")), once.bytes + 7)
    assert compare_ids(model, model, [[1, 2, 3]]).bits_per_byte is None


def test_quantise_refuses_what_it_cannot_do_with_the_reason(run):
    with pytest.raises(InputError, match=r"quantize: 'int3' is unknown \(known: int8, int4\)"):
        af.load(run, quantize="int3")
    with pytest.raises(CapabilityError, match="on the meta device has no weights"):
        af.load(run, device="meta", quantize="int8")
    small = af.load(run, quantize="int8")
    with pytest.raises(CapabilityError, match="is quantised already"):
        quantize(small, "int8")
    x = torch.zeros(1, small.spec.width, requires_grad=True)
    with pytest.raises(CapabilityError, match="a quantised model can't learn"):
        small.decoder.blocks[0].ffn.body.down.product(x)


def test_int4_linear_of_odd_widths_is_refused():
    with pytest.raises(CapabilityError, match="int4: 20 inputs are no multiple of 16"):
        numbers_of(torch.randn(4, 20), "int4")
    wide = QuantizedLinear(numbers_of(torch.randn(4, 96), "int4"), torch.randn(4))
    assert wide.group == 32
    assert wide(torch.randn(2, 3, 96)).shape == (2, 3, 4)


def test_int8_linear_takes_no_rows_and_rows_in_any_layout():
    linear = QuantizedLinear(
        numbers_of(torch.randn(640, 640, generator=torch.Generator().manual_seed(0)), "int8"), None
    )
    x = torch.randn(640, 3, generator=torch.Generator().manual_seed(1))
    assert linear(x[:, :0].t()).shape == (0, 640)
    assert torch.equal(linear(x.t()), linear(x.t().contiguous()))
