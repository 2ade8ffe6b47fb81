"""What is measured of attention: every kernel or its reason, bytes that can be reckoned, and the guard."""

import pytest
import torch

from anyformer.errors import InputError
from anyformer.evals import attention
from anyformer.evals.attention import Case, MemoryGrowth, Setting, Step, cases, measure, steps
from anyformer.kernels.attention import KERNELS


def setting(**changes) -> Setting:
    given = {"heads": 4, "kv_heads": 2, "head_dim": 8, "window": 16, "lengths": (64,), "repeats": 1}
    return Setting(**given | changes)


def test_ways_name_every_kernel_once_or_say_why_not():
    served, refused = cases(setting())
    causal = [way.kernel.name for way in served if way.shape == "causal"]
    assert sorted(causal + [r.kernel for r in refused if r.pattern == "causal"]) == sorted(k.name for k in KERNELS)
    assert {"sdpa", "tiled", "reference"} <= set(causal)
    assert all(refusal.reason for refusal in refused)
    assert [way.name for way in served if way.shape == "pattern"] == ["window(16): banded"]


def test_ways_on_cuda_serve_a_window_with_flex():
    served, _ = cases(setting(device="cuda", dtype=torch.bfloat16, backward=True))
    assert served[-1].name == "window(16): flex"


def test_setting_names_mha_gqa_and_mqa_once_each():
    assert setting().attentions() == {"MHA": 4, "GQA": 2, "MQA": 1}
    assert setting(kv_heads=1).attentions() == {"MHA": 4, "MQA": 1}
    assert setting(heads=1, kv_heads=1).attentions() == {"MHA": 1}
    with pytest.raises(InputError, match="kv_heads: 3 does not divide heads=4"):
        setting(kv_heads=3)


@pytest.mark.parametrize("backward", [False, True])
def test_measure_has_a_row_for_every_way_with_bytes_that_add_up(backward):
    table = measure(setting(lengths=(64, 96), backward=backward))
    served, _ = cases(setting(backward=backward))
    assert len(table.rows) == 3 * 2 * len(served)
    for row in table.rows:
        out = row.tokens * 4 * 8 * 4
        assert row.seconds > 0
        assert row.peak_bytes >= row.allocated_bytes >= out
        if not backward:
            assert row.allocated_bytes == out
        if row.kernel == "reference":
            assert row.peak_bytes >= row.tokens**2 * 4 * 4
    if backward:
        kept = {row.kernel: row.allocated_bytes for row in table.rows if (row.attention, row.tokens) == ("MHA", 96)}
        # The reference keeps its weights for the backward pass; what is tiled makes them anew.
        assert kept["reference"] > 96**2 * 4 * 4 > kept["tiled"] - 96 * 4 * 8 * 4


def test_step_gives_the_same_output_by_every_way_of_one_pattern():
    asked = setting()
    step = Step(asked, 2, 64)
    served, _ = cases(asked)
    outs = [step.forward(way) for way in served if way.shape == "causal"]
    assert all(torch.allclose(out, outs[0], atol=1e-5) for out in outs)
    window = served[-1]
    reference = next(kernel for kernel in KERNELS if kernel.name == "reference")
    want = step.forward(Case(reference, window.pattern, window.shape))
    assert torch.allclose(step.forward(window), want, atol=1e-5)
    assert not torch.allclose(want, outs[0], atol=1e-2)


def test_measure_beyond_the_memory_skips_with_the_figures(monkeypatch):
    monkeypatch.setattr(attention, "FIRST", 32)
    monkeypatch.setattr(attention, "free", lambda device: 400_000)
    table = measure(setting(lengths=(32, 256)))
    skipped = [row for row in table.rows if row.skipped]
    assert {row.tokens for row in skipped} == {256}
    assert "reference" in {row.kernel for row in skipped}
    assert "more than half of the 0.0004 GB that are free" in skipped[0].skipped
    assert all(row.seconds is None and row.peak_bytes is None for row in skipped)
    assert {row.kernel for row in table.rows if row.tokens == 32 and row.seconds} == {row.kernel for row in table.rows}


def test_course_expects_what_the_last_two_lengths_say():
    course = MemoryGrowth()
    assert course.expected(100) == 0
    course.known.append((100, 1000))
    assert course.expected(200) == 4000
    course.known.append((200, 2000))
    assert course.expected(400) == 4000
    course.known.append((400, 16000))
    assert course.expected(800) == 64000


def test_steps_double_up_to_the_longest_that_is_asked_for():
    assert steps([3000, 700]) == [512, 700, 1024, 2048, 3000]
    assert steps([64]) == [64]
