"""Bytes of a step: a known sequence of allocations, and what no hook on tensors would see."""

import os

import pytest
import torch
from torch.nn import functional as F

from anyformer.evals.memory import Used, added, used
from anyformer.kernels.memory import free

KB = 1024


def zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def test_used_of_known_allocations_gives_what_is_left_and_the_peak():
    kept = zeros(64 * KB)

    def step():
        first = zeros(10 * KB)
        second = zeros(30 * KB)
        del second
        third = zeros(5 * KB)
        view = third[: 2 * KB]
        return first, view, kept.clone()

    # 10 + 30 at once; then 10, 5 (the view keeps all of it) and a new 64.
    assert used(step) == Used(left=79 * KB, peak=79 * KB)

    def gone():
        step()
        zeros(100 * KB)

    assert used(gone) == Used(left=0, peak=100 * KB)


def test_used_counts_neither_inputs_nor_what_was_there_before():
    a = zeros(64 * KB)
    assert used(lambda: a) == Used(0, 0)
    assert used(lambda: a.zero_()) == Used(0, 0)


def test_used_sees_what_an_operator_allocates_inside():
    q = torch.randn(1, 2, 300, 16)
    found = used(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert found.left >= q.nbytes
    # The fused kernel holds its tiles in a buffer of its own.
    assert found.peak > found.left


def test_used_of_a_backward_pass_holds_what_the_forward_kept():
    x = torch.randn(1000, requires_grad=True)
    forward = used(lambda: x.exp().exp())
    # The first result is kept for the backward pass, beside the second, which is the output.
    assert forward == Used(left=8000, peak=8000)

    def whole():
        (gradient,) = torch.autograd.grad(x.exp().exp().sum(), x)
        return gradient

    assert used(whole).left == 4000
    assert used(whole).peak >= 3 * 4000


def test_used_of_a_step_that_fails_leaves_the_next_count_right():
    def fails():
        zeros(KB)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        used(fails)
    assert used(lambda: zeros(KB)) == Used(KB, KB)


def test_added_follows_the_highest_partial_sum():
    assert added([5, -5, 3, 4, -1]) == Used(left=6, peak=7)
    assert added([]) == Used(0, 0)


def test_free_memory_is_some_of_what_the_machine_has():
    assert 0 < free() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
