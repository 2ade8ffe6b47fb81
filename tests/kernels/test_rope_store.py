"""Rotate and store: the plain way against the parts that it replaces, and the kernel against the plain way.

The kernel runs on CUDA, or on any machine with Triton if TRITON_INTERPRET=1 is set; without either its tests skip.
"""

import os
from typing import NamedTuple

import pytest
import torch

from anyformer.kernels.block_table import to_int8
from anyformer.kernels.small_gemm import NormTerms, rope_store
from anyformer.kernels.small_gemm.rope_store import RopeStoreArgs
from anyformer.kernels.triton_launch import has_triton
from anyformer.parts.norms.layernorm import LayerNorm
from anyformer.parts.norms.rmsnorm import RMSNorm
from anyformer.parts.positions.rope import Rope
from anyformer.specs.axes import Norm
from tests.tolerances import assert_close

pytestmark = pytest.mark.cuda(required=False)
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
runs = pytest.mark.skipif(
    not has_triton() or not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs Triton, and CUDA or TRITON_INTERPRET=1",
)
TOKENS, PAGES, SIZE = 3, 4, 8


class Case(NamedTuple):
    rope: Rope | None = Rope()
    norm: Norm | None = None
    v_norm: Norm | None = None
    each: bool = False
    """A gain for each head."""
    last: bool = False
    clip: float | None = None
    heads: int = 4
    groups: int = 2
    dim: int = 16
    int8: bool = False
    dtype: torch.dtype = torch.float32


CASES = {
    "half": Case(),
    "interleaved": Case(Rope(layout="interleaved"), heads=3, groups=3),
    "part": Case(Rope(fraction=0.5), dim=24),
    "part-interleaved": Case(Rope(layout="interleaved", dims=8), dim=24),
    "none": Case(None),
    "normed": Case(norm=RMSNorm()),
    "normed-values": Case(norm=RMSNorm(gain="one_plus", gain_at="before_cast"), v_norm=RMSNorm(gain="none")),
    "normed-last": Case(norm=RMSNorm(), last=True),
    "centred": Case(norm=LayerNorm(), each=True, dim=24),
    "centred-interleaved": Case(Rope(layout="interleaved"), norm=LayerNorm(bias=False), each=True),
    "clipped": Case(clip=0.7),
    "int8": Case(int8=True, norm=RMSNorm()),
    "fp16": Case(norm=RMSNorm(), dtype=torch.float16),
}
ON_CUDA = {
    "bf16": Case(heads=32, groups=8, dim=128, dtype=torch.bfloat16),
    "bf16-normed": Case(norm=RMSNorm(), heads=16, groups=8, dim=128, dtype=torch.bfloat16),
    "bf16-gemma": Case(
        norm=RMSNorm(gain="one_plus", gain_at="before_cast"), heads=8, groups=4, dim=256, dtype=torch.bfloat16
    ),
    "bf16-int8": Case(heads=32, groups=32, dim=96, int8=True, dtype=torch.bfloat16),
}


def made(case: Case, device="cpu", dtype=None):
    """Keyword arguments of rotate_store, with a pool that holds -1 where nothing is written."""
    random = torch.Generator().manual_seed(0)
    dtype = dtype or case.dtype
    like = torch.zeros((), dtype=dtype)

    def numbers(*shape):
        return torch.randn(*shape, generator=random).to(case.dtype).to(dtype).to(device)

    def norm_of(leaf, heads):
        if leaf is None:
            return None
        shape = (heads, case.dim) if case.each else (case.dim,)
        return NormTerms(leaf, {name: numbers(*w.shape) for name, w in leaf.weights(shape).items()})

    cos = sin = None
    if case.rope is not None:
        turning = case.rope.rotated(case.dim)
        frequency = torch.tensor([10000.0 ** (-2 * i / turning) for i in range(turning // 2)], dtype=torch.float64)
        pos = torch.tensor([[5], [0], [1000]])
        cos, sin = (
            part.flatten(0, 2).to(device) for part in case.rope.angles({"frequency": frequency}, pos, None, like)
        )
    shape = (PAGES, SIZE, case.groups, case.dim)
    kind = torch.int8 if case.int8 else dtype
    scales = tuple(torch.full(shape[:3], -1.0, device=device) for _ in range(2)) if case.int8 else None
    return dict(
        qkv_NC=numbers(TOKENS, (case.heads + 2 * case.groups) * case.dim), heads=case.heads, kv_heads=case.groups,
        dim=case.dim, slot_N=torch.tensor([9, 31, 16], device=device), cos_ND=cos, sin_ND=sin,
        layout="half" if case.rope is None else case.rope.layout,
        k_PsGK=torch.full(shape, -1, dtype=kind, device=device), v_PsGK=torch.full(shape, -1, dtype=kind, device=device),
        scales=scales, q_norm=norm_of(case.norm, case.heads), k_norm=norm_of(case.norm, case.groups),
        v_norm=norm_of(case.v_norm, case.groups), norm_last=case.last, clip=case.clip,
    )  # fmt: skip


def started(start, given):
    """Queries and what the pools hold then, from the plain way or from the kernel."""
    q = start(RopeStoreArgs(**given))
    return q, given["k_PsGK"], given["v_PsGK"], *(given["scales"] or ())


def compare(case: Case):
    from anyformer.kernels.small_gemm.rope_store_triton import launch

    found = started(launch, made(case, DEVICE))
    wanted = started(rope_store.plain, made(case, DEVICE))
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype
        if got.dtype == torch.int8:
            # Halfway between two numbers, either may be the nearer one.
            assert int((got.int() - want.int()).abs().max()) <= 1
            assert float((got != want).float().mean()) < 0.01
        else:
            assert_close("single" if got.dtype == torch.float32 else "bf16", got, want)


@runs
@pytest.mark.parametrize("name", CASES)
def test_rotate_kernel_matches_the_plain_way(name):
    compare(CASES[name])


@pytest.mark.cuda
@pytest.mark.parametrize("name", ON_CUDA)
def test_rotate_kernel_matches_the_plain_way_at_the_sizes_of_models(name):
    compare(ON_CUDA[name])


@pytest.mark.parametrize("name", CASES)
def test_rotate_store_does_what_the_parts_do_one_by_one(name):
    case = CASES[name]
    given = made(case, dtype=torch.float64)
    q = rope_store.rope_and_store_kv(RopeStoreArgs(**given))
    x = made(case, dtype=torch.float64)["qkv_NC"].view(TOKENS, 1, -1, case.dim)
    x = x if case.clip is None else x.clamp(-case.clip, case.clip)
    parts = x.split((case.heads, case.groups, case.groups), 2)
    wanted = []
    for part, norm, turns in zip(parts, ("q_norm", "k_norm", "v_norm"), (True, True, False), strict=True):
        terms, late = given[norm], case.last and turns
        y = terms.leaf.apply(part, terms.own) if terms is not None and not late else part
        if turns and case.rope is not None:
            y = case.rope.rotate(y, (given["cos_ND"][:, None, None], given["sin_ND"][:, None, None]))
        wanted.append((terms.leaf.apply(y, terms.own) if terms is not None and late else y)[:, 0])
    assert_close("formula", q, wanted[0])
    empty = torch.ones(PAGES * SIZE, dtype=torch.bool)
    empty[given["slot_N"]] = False
    for i, pool in enumerate((given["k_PsGK"], given["v_PsGK"])):
        flat = pool.flatten(0, 1)
        assert bool((flat[empty] == -1).all())
        stored = flat[given["slot_N"]].double()
        if case.int8:
            scale = given["scales"][i].flatten(0, 1)[given["slot_N"]][..., None]
            assert bool(((stored * scale - wanted[1 + i]).abs() <= scale * 0.5001).all())
        else:
            assert_close("formula", stored, wanted[1 + i])


def test_to_int8_zeros_stay_zeros_and_the_largest_is_127():
    whole, scale = to_int8(torch.tensor([[[0.0, 0.0], [-2.54, 1.27]]]))
    assert whole.tolist() == [[[0, 0], [-127, 64]]]
    assert_close("single", scale, torch.tensor([[0.0, 0.02]]))
