"""Attention to pages on a CPU, by groups of rows: against the plain way, however rows are shared out."""

import dataclasses

import pytest
import torch

from anyformer.kernels.attention import choice, paged_cpu, paged_cuda
from anyformer.kernels.dispatch import KernelRequest
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from tests.kernels.paged_calls import Case, made, pattern
from tests.tolerances import assert_close

ASKED = KernelRequest(
    device="cpu", dtype=torch.float32, phase="decode", shape="pattern", pattern=Causal(), mixer=Softmax(), plain=False,
    paged=True,
)  # fmt: skip
CASES = {
    "plain": Case(counts=(1, 200, 77, 3, 201)),
    "mqa": Case(groups=1, heads=6, dim=24),
    "mha": Case(groups=4, dim=40, size=64),
    "alike": Case(counts=(32, 32, 32)),
    "several-queries": Case(queries=3, counts=(3, 50, 201)),
    "int8": Case(int8=True),
}


@pytest.mark.parametrize("limit", [1, 2**15, 2**30])
@pytest.mark.parametrize("name", CASES)
def test_grouped_attention_is_the_plain_one(name, limit, monkeypatch):
    monkeypatch.setattr(paged_cpu, "BYTES", limit)
    q, k, v, terms = made(CASES[name], device="cpu", dtype=torch.float64)
    if not CASES[name].int8:
        k, v = k.nan_to_num(), v.nan_to_num()
    else:
        pages = terms.pages
        terms = terms._replace(pages=dataclasses.replace(pages, scales=tuple(s.nan_to_num() for s in pages.scales)))
    found = paged_cpu.run(q, k, v, terms)
    parts = next(made for name, made in terms.mask.notes.items() if name[0] == "groups")
    rows = len(CASES[name].counts)
    assert len(parts) == {1: rows, 2**30: 1}.get(limit, len(parts))
    assert sorted(torch.cat([part.rows_R for part in parts]).tolist()) == list(range(rows))
    if name == "alike":
        assert all(part.mask is None for part in parts)
    assert_close("kernel", found, paged_cuda.plain(q, k, v, terms))


def test_grouped_attention_serves_pages_on_a_cpu():
    assert choice(ASKED).kernel is paged_cpu.KERNEL
    assert choice(dataclasses.replace(ASKED, paged=False)).kernel is not paged_cpu.KERNEL


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"paged": False}, "not in pages"),
        ({"device": "cuda"}, "for a CPU, not cuda"),
        ({"compiling": True}, "on the host"),
        ({"phase": "train"}, "no gradient"),
        ({"bias": True}, "adds nothing"),
        ({"softcap": True}, "cap"),
        ({"mixer": Softmax(sinks=True)}, "sink"),
        ({"pattern": pattern("window(5)")}, "lets a query see something else"),
    ],
)
def test_grouped_attention_says_what_it_does_not_serve(changes, words):
    assert words in paged_cpu.why_not(dataclasses.replace(ASKED, **changes))
