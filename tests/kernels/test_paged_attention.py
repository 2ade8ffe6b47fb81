"""Attention to pages: what it refuses, which patterns it understands, and the kernel against its plain reference.

The kernel runs on CUDA, or on any machine with Triton if TRITON_INTERPRET=1 is set; without either its tests skip.
"""

import dataclasses
import os
from typing import Any

import pytest
import torch

from anyformer.errors import InputError
from anyformer.kernels import attention
from anyformer.kernels.attention import choice, paged_cuda, reference
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.block_table import BlockTable
from anyformer.kernels.dispatch import KernelRequest
from anyformer.parts.mixers.relu import Relu
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.specs.cache_policy import CachePolicy
from anyformer.specs.patterns import Tokens
from tests.kernels.paged_calls import Case, made, pattern
from tests.tolerances import assert_close

pytestmark = pytest.mark.cuda(required=False)
CUDA = torch.cuda.is_available()
runs = pytest.mark.skipif(
    not paged_cuda.has_triton() or not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs Triton, and CUDA or TRITON_INTERPRET=1",
)
ASKED = KernelRequest(
    device="cuda", dtype=torch.bfloat16, phase="decode", shape="pattern", pattern=Causal(), mixer=Softmax(), plain=False,
    paged=True,
)  # fmt: skip


CASES = {
    "plain": Case(),
    "mqa": Case(groups=1, heads=6, dim=24),
    "mha": Case(groups=4, dim=40, size=64),
    "one-stretch": Case(counts=(5, 30, 32)),
    "nobody": Case(counts=(0, 0, 40)),
    "several-queries": Case(queries=3, counts=(3, 50, 201)),
    "many-queries": Case(queries=8, heads=8, groups=1, counts=(8, 9, 140)),
    "tiles-of-queries": Case(queries=40, heads=8, groups=2, counts=(40, 41, 90)),
    "window": Case("window(40)", counts=(3, 41, 200)),
    "window-and-queries": Case("causal & window(33)", queries=4, counts=(4, 70, 199)),
    "chunked": Case("causal & chunked(48)", queries=2, counts=(2, 49, 200)),
    "first": Case("causal & (window(20) | global_tokens(3, False))", counts=(2, 60, 100)),
    "ring": Case("window(40)", keep=CachePolicy(recent=40), counts=(3, 40, 200)),
    "ring-and-queries": Case("window(40)", keep=CachePolicy(recent=43), queries=4, counts=(4, 43, 201)),
    "ring-and-first": Case(
        "causal & (window(20) | global_tokens(3, False))", keep=CachePolicy(recent=20, first=3), counts=(2, 23, 100)
    ),
    "soft-cap": Case(softcap=2.0),
    "sinks": Case(sinks=True, counts=(1, 20, 200)),
    "slopes": Case(slopes=True, queries=2, counts=(2, 20, 200)),
    "table": Case(table=True, queries=2, counts=(2, 20, 200)),
    "int8": Case(int8=True),
    "all": Case(
        "window(70)", queries=2, heads=6, groups=2, dim=24, keep=CachePolicy(recent=71), sinks=True, slopes=True, softcap=3.0,
        int8=True, size=32, counts=(2, 69, 300),
    ),
    "half": Case(dtype=torch.float16, sinks=True),
}  # fmt: skip
ON_CUDA = {
    "bf16": Case(dtype=torch.bfloat16, heads=32, groups=8, dim=128, counts=(1, 2000, 400), size=64, sizes=()),
    "bf16-256": Case(dtype=torch.bfloat16, heads=8, groups=4, dim=256, counts=(1, 2000, 5000), sizes=(), softcap=50.0),
    "bf16-96": Case(dtype=torch.bfloat16, heads=32, groups=32, dim=96, counts=(1, 700, 400), size=256, sizes=()),
    "bf16-512": Case(dtype=torch.bfloat16, heads=8, groups=1, dim=512, counts=(1, 700, 400), sizes=()),
    "bf16-queries": Case(dtype=torch.bfloat16, heads=32, groups=8, dim=128, queries=8, counts=(8, 9, 3001), sizes=()),
    "bf16-tiles": Case(dtype=torch.bfloat16, heads=64, groups=1, dim=64, queries=16, counts=(16, 90, 3001), sizes=()),
    "bf16-int8": Case(dtype=torch.bfloat16, heads=16, groups=8, dim=128, int8=True, counts=(1, 9, 3001), sizes=()),
    "bf16-ring": Case(
        "window(1000)", dtype=torch.bfloat16, heads=16, groups=8, dim=128, keep=CachePolicy(recent=1000), sinks=True, sizes=(),
        counts=(7, 1000, 90001),
    ),
    "bf16-window": Case("window(1000)", dtype=torch.bfloat16, heads=16, groups=8, dim=128, sizes=(), counts=(7, 9001)),
    "fp32-128": Case(heads=16, groups=8, dim=128, counts=(1, 2000, 300), sizes=(), slopes=True),
    "fp32-256": Case(heads=16, groups=8, dim=256, counts=(1, 2000, 300), sizes=()),
    "long": Case(dtype=torch.bfloat16, heads=8, groups=2, dim=64, counts=(60000, 3), sizes=()),
}  # fmt: skip


def launch(case: Case, q, k, v, terms):
    plan = paged_cuda.plan(case.groups, case.dim, k.element_size())
    if case.sizes:
        plan = plan._replace(**dict(zip(("block", "least", "most", "few"), case.sizes)))
    return paged_cuda.run(q, k, v, terms, plan)


def compare(case: Case):
    """The kernel against the reference in fp64 on the same numbers."""
    found = launch(case, *made(case))
    wanted = paged_cuda.plain(*made(case, dtype=torch.float64))
    row = {torch.float32: "single", torch.bfloat16: "bf16", torch.float16: "bf16"}[case.dtype]
    assert found.dtype == case.dtype
    assert_close(row, found, wanted)


@runs
@pytest.mark.parametrize("name", CASES)
def test_paged_kernel_matches_its_reference(name):
    compare(CASES[name])


@pytest.mark.cuda
@pytest.mark.parametrize("name", ON_CUDA)
def test_paged_kernel_matches_its_reference_at_the_sizes_of_models(name):
    compare(ON_CUDA[name])


@runs
@pytest.mark.parametrize("name", ["plain", "window", "ring-and-queries", "sinks"])
def test_paged_kernel_row_alone_gives_the_same_bits_as_in_a_batch(name):
    case = CASES[name]
    q, k, v, terms = made(case)
    together = launch(case, q, k, v, terms)
    pages = terms.pages
    for row in range(len(case.counts)):
        one = slice(row, row + 1)
        used = -(-case.keep.filled(case.counts[row]) // case.size)
        places = Tokens(terms.mask.q.pos[one])
        alone = launch(case, q[one], k, v, terms._replace(
            mask=AttentionMask(terms.mask.pattern, places, places, heads=case.heads),
            pages=BlockTable(pages.table_BN[one, : max(used, 1)].contiguous(), case.size, pages.count_B[one], case.keep),
        ))  # fmt: skip
        assert torch.equal(alone, together[one])


@runs
def test_paged_kernel_layers_that_share_a_mask_do_not_disturb_each_other():
    case = CASES["plain"]
    q, k, v, terms = made(case)
    first = launch(case, q, k, v, terms)
    other = launch(case, q, v, k, terms)
    assert not torch.equal(other, first)
    assert torch.equal(launch(case, q, k, v, terms), first)


@pytest.mark.parametrize("name", ["plain", "ring", "ring-and-first", "window-and-queries"])
def test_paged_reference_reads_each_token_of_a_row_once(name):
    """Against plain attention over the row's tokens in order."""
    case = CASES[name]
    q, k, v, terms = made(case, "cpu", dtype=torch.float64)
    found = paged_cuda.plain(q, k, v, terms)
    pages: Any = terms.pages
    for row, count in enumerate(case.counts):
        kept = [n for n in range(count) if case.keep.held(case.keep.slot(n), count) == n]
        slots = [case.keep.slot(n) for n in kept]
        at = [(int(pages.table_BN[row, s // case.size]), s % case.size) for s in slots]
        keys, values = (torch.stack([pool[p, i] for p, i in at])[None] for pool in (k, v))
        places = Tokens(terms.mask.q.pos[row : row + 1])
        attn_mask = AttentionMask(terms.mask.pattern, places, Tokens(torch.tensor([kept])), heads=case.heads)
        alone = reference.run(q[row : row + 1], keys, values, terms._replace(mask=attn_mask, pages=None))
        assert_close("kernel", found[row : row + 1], alone)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("causal", paged_cuda.Span()),
        ("causal & full", paged_cuda.Span()),
        ("window(5)", paged_cuda.Span(5)),
        ("causal & window(5) & window(4000)", paged_cuda.Span(5)),
        ("causal & chunked(8)", paged_cuda.Span(ranged=True)),
        ("causal & prefix(5)", paged_cuda.Span(ranged=True)),
        ("causal & (window(5) | global_tokens(2, False))", paged_cuda.Span(5, first=2)),
        ("(global_tokens(2, False) | window(5)) & causal", paged_cuda.Span(5, first=2)),
        ("full", None),
        ("causal | prefix(5)", None),
        ("causal & strided(3)", None),
        ("causal & (window(5) | strided(3))", None),
        ("causal & (window(5) | global_tokens(2))", None),
        ("causal & (chunked(5) | global_tokens(2, False))", None),
        ("dilated_window(5, 2)", None),
    ],
)
def test_span_says_what_a_pattern_lets_a_query_see(text, span):
    assert paged_cuda.span(pattern(text)) == span


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"paged": False}, "not in pages"),
        ({"device": "cpu"}, "for cuda, not cpu"),
        ({"compiling": True}, "torch.compile"),
        ({"phase": "train"}, "no gradient"),
        ({"dtype": torch.float64}, "float32 at most, not float64"),
        ({"mixer": Relu()}, "not relu"),
        ({"dropout": True}, "dropout"),
        ({"reads_probs": True}, "does not expose the weights"),
        ({"bias": True, "reads_content": True}, "reads queries or keys"),
        ({"pattern": pattern("causal & strided(3)")}, "'causal & strided(3)' is no interval"),
    ],
)
def test_paged_refuses_what_it_cannot_do(monkeypatch, change, words):
    monkeypatch.setattr(paged_cuda, "has_triton", lambda: True)
    assert paged_cuda.why_not(ASKED) is None
    reason = paged_cuda.why_not(dataclasses.replace(ASKED, **change))
    assert reason is not None
    assert words in reason


def test_paged_without_triton_leaves_the_request_to_others(monkeypatch):
    monkeypatch.setattr(paged_cuda, "has_triton", lambda: False)
    assert dict(choice(ASKED).refusals)["paged"] == "Triton is not installed"
    assert not choice(ASKED).kernel.reads_pages


def test_paged_is_asked_first_and_only_about_pages(monkeypatch):
    monkeypatch.setattr(paged_cuda, "has_triton", lambda: True)
    monkeypatch.setattr(attention, "_chosen", {})
    assert choice(ASKED).kernel.name == "paged"
    assert "paged" not in dict(choice(dataclasses.replace(ASKED, paged=False)).refusals)


def test_paged_without_pages_is_an_error():
    q, k, v, terms = made(CASES["plain"], "cpu")
    with pytest.raises(InputError, match=r"terms\.pages"):
        paged_cuda.run(q, k, v, terms._replace(pages=None))
