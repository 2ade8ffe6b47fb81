"""Loaded weights are held once; what they were read from is never written, and can be replaced."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.families.family import Family
from anyformer.families.io import load, save

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["anyformer", "hf"])
def folder(request, tmp_path):
    family = Family.named("gpt_neox")
    save(af.build(family.spec_from(family.small), seed=3), tmp_path, format=request.param)
    return tmp_path


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(model, kept):
    return all(torch.equal(p, kept[name]) for name, p in model.named_parameters())


def test_weights_that_are_written_to_leave_the_file_as_it_was(folder):
    before = (folder / "model.safetensors").read_bytes()
    kept, model = values(load(folder)), load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.arange(6)[None], labels=torch.arange(6)[None]).loss.backward()
    optimizer.step()
    assert not same(model, kept)
    assert (folder / "model.safetensors").read_bytes() == before
    assert same(load(folder), kept)


def test_model_survives_that_its_own_file_is_replaced_or_deleted(folder):
    model = load(folder)
    kept = values(model)
    form = "hf" if (folder / "config.json").is_file() else "anyformer"
    save(model, folder, format=form)
    save(af.build(model.spec, seed=9), folder, format=form)
    assert same(model, kept)
    assert not same(load(folder), kept)
    (folder / "model.safetensors").unlink()
    assert same(model, kept)


def test_two_models_of_one_file_don_t_share_what_is_written(folder):
    one, two = load(folder), load(folder)
    with torch.no_grad():
        next(one.parameters()).zero_()
    assert next(two.parameters()).abs().sum() > 0


def test_load_holds_the_weights_once(tmp_path):
    """Peak memory of a process that loads 64 MB and uses them, beyond what it had before."""
    code = (
        "import sys, torch, anyformer as af\n"
        "from anyformer.families import checkpoint\nfrom anyformer.model import native_checkpoint\n"
        "def peak(name): return next(int(l.split()[1]) * 1024 for l in open('/proc/self/status') if l.startswith(name))\n"
        "af.spec(sys.argv[1]); torch.zeros(8) @ torch.zeros(8); before = peak('VmRSS:')\n"
        "m = af.load(sys.argv[1]); sum(float(p.sum()) for p in m.parameters()); print(peak('VmHWM:') - before)"
    )
    spec = af.spec("llama-7b", {"width": 512, "depth": 4, "vocab": 4096, "attention.heads": 8, "attention.kv_heads": 8, "ffn.width": 1408})  # fmt: skip
    save(af.build(spec), tmp_path, format="hf")
    size = (tmp_path / "model.safetensors").stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # Twice would be 2; a small file leaves room for what torch allocates once.
    assert int(done.stdout) < 1.4 * size


@pytest.mark.parametrize("blanks", range(0, 64, 8))
def test_weights_of_our_own_format_give_the_same_bits_wherever_they_lie_in_a_file(tmp_path, blanks):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    family = Family.named("llama")
    model = af.build(family.spec_from(family.small | {"hidden_size": 48}), seed=3).eval()
    save(model, tmp_path)
    file = tmp_path / "model.safetensors"
    with safe_open(file, framework="pt") as stored:
        metadata = stored.metadata() | {"x": "." * blanks}
    save_file({n: t.clone() for n, t in load_file(file).items()}, file, metadata)
    again = load(tmp_path)
    assert all(p.data_ptr() % 64 == 0 for p in again.parameters())
    ids = torch.arange(7)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
