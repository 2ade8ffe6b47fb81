"""Quantised models on disk: every drawn spec comes back to the bit, and what does not fit is refused by name."""

import copy
import json
import pickle
import warnings

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import CheckpointError, InputError
from anyformer.model.native_checkpoint import KEY, load
from anyformer.model.quantize import HEAD, install, products, quantize
from anyformer.parts.heads import LMHead
from anyformer.parts.moe import MoE
from anyformer.parts.quantized import is_quantized, numbers_of
from anyformer.train.components import check_fit
from tests.contract.contracts import randomise
from tests.contract.draw import BASE, draw
from tests.contract.feed import alone, document
from tests.tolerances import assert_close

SEEDS = range(60)


def answer(model, dtype=torch.float32):
    doc = document(model.spec, 9, 3)
    doc.source = doc.source.to(dtype) if doc.source.is_floating_point() else doc.source
    with torch.no_grad():
        out = alone(model, doc)
    return out.hidden if out.logits is None else out.logits


def quantised(seed, kind):
    """The model of a drawn spec with numbers wherever this kind has them; None if it has none anywhere."""
    plain = randomise(af.build(draw(seed)), seed).eval()
    if any(isinstance(module, MoE) for module in plain.modules()):
        return None
    if kind == "int8":
        return quantize(plain, kind)
    found = {w: plain.get_parameter(w) for _, names in products(plain) for w in names.values()}
    if isinstance(plain.head, LMHead):
        found[HEAD] = plain.head.product()[0]
    numbers = {name: numbers_of(w, kind) for name, w in found.items() if w.shape[1] % 16 == 0}
    return install(plain, numbers) if numbers else None


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("seed", SEEDS)
def test_quantised_model_of_a_drawn_spec_is_saved_and_loaded_to_the_bit(seed, kind, tmp_path):
    model = quantised(seed, kind)
    if model is None:
        pytest.skip("nothing of this spec can be quantised so")
    want = answer(model)
    af.save(model, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if kind == "int4" else "error")
        found = af.load(tmp_path)
    assert is_quantized(found)
    assert torch.equal(answer(found), want)
    af.save(found, tmp_path / "again")
    one, two = (load_file(place / "model.safetensors") for place in (tmp_path, tmp_path / "again"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(answer(copy.deepcopy(found)), want)
    assert torch.equal(answer(pickle.loads(pickle.dumps(found))), want)


@pytest.mark.parametrize("seed", range(12))
def test_int8_model_of_a_drawn_spec_answers_alone_as_in_a_batch(seed):
    model = quantised(seed, "int8")
    if model is None or model.spec.embed.kind != "tokens" or model.spec.topology != "decoder":
        pytest.skip("fed as one row only")
    ids = torch.randint(0, 37, (3, 9), generator=torch.Generator().manual_seed(seed))
    rest = {} if not model.spec.embed.token_types else {"token_types": torch.zeros_like(ids)}
    with torch.no_grad():
        together = model(ids, **rest).hidden
        apart = torch.cat([model(r[None], **{k: v[:1] for k, v in rest.items()}).hidden for r in ids])
    assert_close("fused", apart, together)


@pytest.fixture
def wide():
    """Products that are large enough to be packed."""
    changes = {"width": 640, "attention": {"heads": 10, "kv_heads": 10, "head_dim": 64}, "ffn": {"width": 704}}
    return randomise(af.build(af.spec(BASE, changes | {"head": {"kind": "lm", "tied": True}})), 0).eval()


def test_wide_int8_model_reads_by_digits_and_by_tiles_alike_and_copies_drop_what_was_packed(wide, tmp_path):
    small = quantize(wide, "int8")
    ids = torch.randint(0, 37, (2, 12), generator=torch.Generator().manual_seed(0))
    cache = small.new_cache(2, 12)
    with torch.no_grad():
        whole = small(ids).logits
        steps = torch.cat([small(ids[:, i : i + 1], cache=cache).logits for i in range(12)], 1)
    assert_close("fused", steps, whole)
    af.save(small, tmp_path)
    for other in (af.load(tmp_path), copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        cache = other.new_cache(2, 12)
        with torch.no_grad():
            again = torch.cat([other(ids[:, i : i + 1], cache=cache).logits for i in range(12)], 1)
        assert torch.equal(again, steps)


def test_int8_model_in_another_dtype_keeps_its_scales(tmp_path):
    small = quantize(randomise(af.build(af.spec(BASE)), 0).eval(), "int8")
    af.save(small, tmp_path)
    want = answer(small)
    double = af.load(tmp_path, dtype=torch.float64)
    assert_close("fused", answer(double), want.double())
    assert double.head.quantised.scale.dtype == torch.float32
    assert torch.equal(answer(small.to(torch.float64)), answer(double))
    assert torch.equal(answer(double.to(torch.float32)), want)
    assert all(p.is_meta for p in af.load(tmp_path, device="meta").parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_quantised_folder_dequantised_is_a_plain_model_with_the_same_answers(tied, tmp_path):
    plain = randomise(af.build(af.spec(BASE, {"head": {"kind": "lm", "tied": tied}})), 0).eval()
    small = quantize(copy.deepcopy(plain), "int8")
    af.save(small, tmp_path)
    back = load(tmp_path, dequantise=True)
    assert not is_quantized(back)
    assert dict(back.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    with torch.no_grad():
        ids = torch.arange(9)[None]
        # A tied head reads the table, which was never rounded.
        assert_close("fused", back(ids).hidden, small(ids).hidden)


def recipe_of(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as stored:
        return json.loads(stored.metadata()[KEY])


def rewrite(folder, tensors=lambda t: None, recipe=lambda r: r):
    """Change a saved model."""
    file = folder / "model.safetensors"
    with safe_open(file, framework="pt") as stored:
        metadata = stored.metadata()
    held = load_file(file)
    tensors(held)
    changed = recipe(json.loads(metadata[KEY]))
    save_file(held, file, metadata | {KEY: changed if isinstance(changed, str) else json.dumps(changed)})


@pytest.fixture
def saved(tmp_path):
    small = quantize(randomise(af.build(af.spec(BASE, {"attention": {"bias": "q"}})), 0).eval(), "int8")
    af.save(small, tmp_path)
    return tmp_path


def test_quantised_file_has_a_packed_tensor_and_a_scale_for_each_target(saved):
    found, tensors = recipe_of(saved), load_file(saved / "model.safetensors")
    told = {k: v for k, v in found.items() if k != "targets"}
    assert told == {
        "version": 1, "kind": "int8", "num_bits": 8, "symmetric": True, "strategy": "channel", "group_size": None,
    }  # fmt: skip
    assert "decoder.blocks.1.attention.body.v.weight" in found["targets"]
    for name in found["targets"]:
        packed, scale = tensors.pop(f"{name}_packed"), tensors.pop(f"{name}_scale")
        assert packed.dtype == torch.int8
        assert (scale.dtype, scale.shape) == (torch.float32, packed.shape[:1])
    assert "decoder.blocks.0.attention.body.q.bias" in tensors
    assert "decoder.blocks.0.attention.body.k.bias" not in tensors
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


NAME = "decoder.blocks.0.ffn.body.down.weight"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"recipe": lambda r: r | {"version": 2}}, "is of version 2, and this anyformer reads 1; update anyformer"),
        ({"recipe": lambda r: r | {"kind": "int3"}}, r"kind: 'int3' is unknown \(known: int8, int4\)"),
        ({"recipe": lambda r: r | {"symmetric": False}}, "symmetric: False; of int8 it is True"),
        ({"recipe": lambda r: r | {"zeros": 1}}, "zeros: 1; of int8 it is None"),
        ({"recipe": lambda r: r | {"targets": [NAME, NAME]}}, "targets: names a parameter twice"),
        ({"recipe": lambda r: r | {"targets": 3}}, "targets: is no list"),
        ({"recipe": lambda r: "{"}, "quantization: is not JSON"),
        ({"recipe": lambda r: "[]"}, "quantization: holds list"),
        ({"recipe": lambda r: r | {"targets": ["embed.tokens.weight"]}}, "embed.tokens.weight: is no product of this"),
        ({"recipe": lambda r: r | {"targets": [NAME]}}, f"{NAME.replace('.ffn.', '.attention.')[:25]}.*is missing"),
        ({"tensors": lambda t: t.pop(f"{NAME}_scale")}, f"{NAME}_scale: is missing"),
        ({"tensors": lambda t: t.update({f"{NAME}_scale": torch.ones(3)})}, f"{NAME}_scale: has shape"),
        ({"tensors": lambda t: t.update({f"{NAME}_packed": torch.ones(24, 20)})}, f"{NAME}: holds F32 where int8 has I8"),
        ({"tensors": lambda t: t.update({NAME: torch.ones(24, 20)})}, f"{NAME}: is no parameter of this spec"),
    ],
)  # fmt: skip
def test_quantised_file_that_does_not_fit_is_refused_by_name(saved, change, match):
    rewrite(saved, **change)
    with pytest.raises(CheckpointError, match=match):
        af.load(saved)


def test_quantised_folder_is_not_quantised_again_exported_or_trained(saved, tmp_path):
    with pytest.raises(InputError, match="holds int8 weights already; leave quantize out"):
        af.load(saved, quantize="int4")
    small = af.load(saved)
    with pytest.raises(InputError, match="it is quantised, and published classes have no files for that"):
        af.save(small, tmp_path / "hf", format="hf")
    assert not (tmp_path / "hf").exists()
    with pytest.raises(InputError, match="is quantised, and whole numbers can't learn"):
        check_fit(small, small.spec, str(saved))
    assert not any(p.requires_grad for p in small.parameters())


def test_int4_on_a_cpu_says_that_it_is_slow(tmp_path):
    changes = {"width": 32, "attention": {"heads": 4, "kv_heads": 2, "head_dim": 8}, "ffn": {"width": 48}}
    af.save(randomise(af.build(af.spec(BASE, changes)), 0), tmp_path)
    with pytest.warns(UserWarning, match="int4 weights on a CPU are unpacked for every product"):
        small = af.load(tmp_path, quantize="int4")
    af.save(small, tmp_path / "small")
    with pytest.warns(UserWarning, match="int4 weights on a CPU"):
        found = af.load(tmp_path / "small")
    assert torch.equal(answer(found), answer(small))


def test_quantised_model_is_no_view_of_its_file(saved):
    from anyformer.parts.quantized import QuantizedLinear

    model = af.load(saved)
    before = {
        name: module.data_OI.clone() for name, module in model.named_modules() if isinstance(module, QuantizedLinear)
    }
    with (saved / "model.safetensors").open("r+b") as file:
        file.seek(0, 2)
        size = file.tell()
        file.seek(size // 2)
        file.write(b"\x55" * (size // 2))
    for name, data in before.items():
        assert torch.equal(model.get_submodule(name).data_OI, data), name
