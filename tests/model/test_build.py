"""build: any device, seeded, and a print that reads like the architecture."""

import subprocess
import sys

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from tests.contract.draw import BASE

PHI_3_MINI = {
    "vocab": 32064, "width": 3072, "depth": 32, "context": 4096, "attention": {"heads": 32},
    "ffn": {"kind": "swiglu", "width": 8192}, "norm": {"kind": "rmsnorm", "eps": 1e-5},
}  # fmt: skip


def test_print_of_phi_3_mini_on_meta_reads_like_the_architecture():
    text = repr(af.build(af.spec(PHI_3_MINI), device="meta"))
    lines = [line.strip() for line in text.splitlines()]
    for wanted in (
        "tokens: 32064 x 3072", "32 x block (blocks 0-31): serial", "q: 3072 -> 3072", "k: 3072 -> 3072",
        "v: 3072 -> 3072", "o: 3072 -> 3072", "gate: 3072 -> 8192", "up: 3072 -> 8192", "down: 8192 -> 3072",
        "inner: rmsnorm 3072, eps 1e-05", "final_norm: rmsnorm 3072, eps 1e-05", "head: 3072 -> 32064",
    ):  # fmt: skip
        assert wanted in lines
    assert "3,821,079,552 parameters" in lines[0]
    assert len(lines) < 30


def test_print_shows_equal_blocks_once_with_their_places():
    spec = af.spec(
        BASE,
        {"depth": 6, "layers": {"order": "2 near, 1 far", "near": {"attention": {"pattern": "window(4)"}}, "far": {}}},
    )
    text = repr(af.build(spec, device="meta"))
    assert "4 x block (blocks 0-1, 3-4)" in text
    assert "2 x block (blocks 2, 5)" in text


def test_build_with_the_same_seed_gives_the_same_weights():
    a, b, c = (af.build(af.spec(BASE), seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.embed.tokens.weight, c.embed.tokens.weight)


def test_build_does_not_touch_the_global_generator():
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    af.build(af.spec(BASE))
    assert torch.equal(torch.rand(3), wanted)


def test_build_in_another_dtype_is_the_same_model_rounded():
    single, half = (af.build(af.spec(BASE), dtype=d) for d in (torch.float32, torch.bfloat16))
    assert all(torch.equal(p.bfloat16(), q) for p, q in zip(single.parameters(), half.parameters(), strict=True))


def test_build_refuses_a_dtype_without_a_point():
    with pytest.raises(InputError, match="floating-point"):
        af.build(af.spec(BASE), dtype=torch.int32)


def test_build_of_70b_on_meta_allocates_nothing():
    spec = af.spec({
        "vocab": 128256, "width": 8192, "depth": 80, "context": 8192, "attention": {"heads": 64, "kv_heads": 8},
        "ffn": {"kind": "swiglu", "width": 28672},
    })  # fmt: skip
    model = af.build(spec, device="meta")
    assert sum(p.numel() for p in model.parameters()) == spec.count().params == 70_553_706_496


def test_bf16_model_runs_forward_and_backward_in_a_child_process():
    """A matmul in bf16 needs an instruction set that some virtual machines only claim to have; the variable tames it."""
    code = """
import torch, anyformer as af
spec = af.spec({"vocab": 37, "width": 24, "depth": 2, "context": 64, "attention": {"heads": 4, "kv_heads": 2},
                "position": "alibi", "ffn": {"kind": "swiglu", "width": 20}})
for position in ("rope", "alibi"):
    model = af.build(spec.vary({"position": position}), dtype=torch.bfloat16)
    exact = af.build(spec.vary({"position": position}))
    x = torch.arange(12)[None]
    out = model(x, labels=x)
    out.loss.backward()
    assert out.logits.dtype == torch.bfloat16 and out.loss.dtype == torch.float32
    gap = (out.logits.float() - exact(x).logits).abs().max() / exact(x).logits.abs().max()
    assert gap < 0.05, gap
    cache = model.new_cache(1, 12)
    steps = torch.cat([model(x[:, t:t+1], cache=cache).logits for t in range(12)], 1)
    assert (steps.float() - out.logits.float()).abs().max() / exact(x).logits.abs().max() < 0.05
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "fine", done.stderr
