"""Tensors that we leave out of a checkpoint: the public class reads none of them either, or they are checked."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.families.family import Family
from tests.families.cases import cases, config_of
from tests.families.oracle import inputs, is_ignored, oracle, public_class
from tests.tolerances import assert_close

SOME = [(kind, variant) for kind, variant in cases() if variant in ("tiny", "untied")]
COMPUTED = ("transformer", "fsmt", "roformer", "roformer_decoder")
"""Families whose class reads a table of sines from its file."""


def saved(kind, variant, place):
    """The public model of a family in a folder, and the names that we leave out, stored or made by the class itself."""
    family = Family.named(kind)
    assert family is not None
    config = config_of(kind, variant)
    model = oracle(family, config, seed=2).float()
    model.save_pretrained(place)
    spec = family.spec_from(config)
    table = family.weights(spec)
    held = dict(model.named_buffers()) | model.state_dict()
    return family, spec, table, {name: tensor for name, tensor in held.items() if is_ignored(name, table)}


def put(folder, name, tensor):
    tensors = load_file(folder / "model.safetensors") | {name: tensor}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def logits(family, spec, folder):
    ids = torch.randint(3, spec.vocab or 61, (1, 17), generator=torch.Generator().manual_seed(0))
    given = {k: v.float() if v.is_floating_point() else v for k, v in inputs(spec, ids).items()}
    given |= {"decoder_input_ids": ids} if spec.topology == "encoder-decoder" else {}
    with torch.no_grad():
        return public_class(family).from_pretrained(folder)(**given).logits


@pytest.mark.parametrize(("kind", "variant"), SOME, ids=[f"{kind}-{variant}" for kind, variant in SOME])
def test_tensor_that_is_left_out_is_not_read_by_the_public_class_or_is_checked(kind, variant, tmp_path):
    family, spec, table, names = saved(kind, variant, tmp_path)
    if not names:
        pytest.skip("it leaves nothing out that its class makes")
    before, stored = logits(family, spec, tmp_path), load_file(tmp_path / "model.safetensors")
    ours = af.load(tmp_path)
    generator = torch.Generator().manual_seed(1)
    # One of each kind; layers are alike.
    for name, tensor in {re.sub(r"\d+", "0", name): (name, tensor) for name, tensor in names.items()}.values():
        other = torch.randn(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor * 0 + 1
        save_file(stored | {name: other}, tmp_path / "model.safetensors", {"format": "pt"})
        if any(re.fullmatch(pattern, name) for pattern in table.computed):
            assert not torch.equal(logits(family, spec, tmp_path), before), f"{name} need not be checked"
            with pytest.raises(CheckpointError, match=f"{re.escape(name)}: differs from the sines by up to"):
                af.load(tmp_path)
        else:
            # Not to the bit: views of the file begin elsewhere now, and products differ with the address of a matrix.
            assert_close("fp32-oracle", logits(family, spec, tmp_path), before)
            again = af.load(tmp_path)
            assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("kind", COMPUTED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_sine_table_of_the_class_passes_in_every_dtype_and_one_row_that_moved_does_not(kind, dtype, tmp_path):
    _, _, table, names = saved(kind, "tiny", tmp_path)
    name = next(name for name in names if any(re.fullmatch(pattern, name) for pattern in table.computed))
    sines = names[name].to(dtype)
    put(tmp_path, name, sines)
    af.load(tmp_path)
    moved = sines.clone()
    moved[9] = sines[10]
    put(tmp_path, name, moved)
    with pytest.raises(CheckpointError, match="if the table is damaged, take it out of the file"):
        af.load(tmp_path)
    put(tmp_path, name, sines[:, :-2].contiguous())
    with pytest.raises(CheckpointError, match=r"not .* numbers in a row"):
        af.load(tmp_path)


@pytest.mark.parametrize("kind", COMPUTED)
def test_public_model_in_memory_with_another_sine_table_is_refused(kind):
    family = Family.named(kind)
    assert family is not None
    model = oracle(family, family.small)
    af.from_hf(model)
    name = next(name for name in model.state_dict() if name.endswith("embed_positions.weight"))
    model.state_dict()[name].mul_(1.5)
    with pytest.raises(CheckpointError, match=r"differs from the sines by up to 0\.5"):
        af.from_hf(model)
