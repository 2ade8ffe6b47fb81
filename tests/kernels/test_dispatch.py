"""Which kernel serves, and what those before it in order say against the request."""

import dataclasses

import pytest
import torch

from anyformer.errors import CapabilityError
from anyformer.kernels.attention import KERNELS, choice, sdpa
from anyformer.kernels.dispatch import KernelRequest, choose
from anyformer.parts.mixers.relu import Relu
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.chunked import Chunked
from anyformer.parts.patterns.full import Full
from anyformer.parts.patterns.global_tokens import GlobalTokens
from anyformer.parts.patterns.strided import Strided
from anyformer.parts.patterns.symmetric_window import SymmetricWindow
from anyformer.parts.patterns.window import Window

PLAIN = KernelRequest(
    device="cpu", dtype=torch.float32, phase="train", shape="causal", pattern=Causal(), mixer=Softmax(), plain=True
)
LOCAL = dataclasses.replace(PLAIN, shape="pattern", pattern=Window(size=8))
LONGFORMER = SymmetricWindow(radius=4) | GlobalTokens(first=1)


def reasons(found):
    return dict(found.refusals)


@pytest.mark.parametrize("shape", ["none", "causal", "pattern"])
@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plain", [True, False])
def test_choice_plain_softmax_over_all_keys_is_sdpa(shape, phase, dtype, plain):
    pattern = Full() if shape == "none" else Causal()
    found = choice(dataclasses.replace(PLAIN, shape=shape, pattern=pattern, phase=phase, dtype=dtype, plain=plain))
    assert found.kernel.name == "sdpa"
    assert reasons(found)["banded"] == f"'{pattern}' does not bound how far a query sees"


@pytest.mark.parametrize("change", [{"bias": True}, {"dropout": True}, {"bias": True, "dtype": torch.float64}])
def test_choice_what_sdpa_can_do_stays_with_it(change):
    assert choice(dataclasses.replace(PLAIN, **change)).kernel.name == "sdpa"


BOUNDED = [
    Window(size=8),
    SymmetricWindow(radius=4),
    Causal() & Chunked(size=16),
    Window(size=8) | Chunked(size=4),
    LONGFORMER,
    Causal() & LONGFORMER,
    Causal() & SymmetricWindow(radius=4),
]


@pytest.mark.parametrize("pattern", BOUNDED, ids=str)
@pytest.mark.parametrize("phase", ["train", "prefill"])
@pytest.mark.parametrize("change", [{}, {"plain": False}, {"bias": True}, {"dropout": True}], ids=str)
def test_choice_bounded_pattern_on_cpu_is_banded(pattern, phase, change):
    assert choice(dataclasses.replace(LOCAL, pattern=pattern, phase=phase, **change)).kernel.name == "banded"


@pytest.mark.parametrize("pattern", [Strided(stride=4), Window(size=8) | Strided(stride=4), Full()], ids=str)
def test_choice_pattern_that_reaches_far_is_not_banded(pattern):
    found = choice(dataclasses.replace(LOCAL, pattern=pattern))
    assert (found.kernel.name, reasons(found)["banded"]) == ("sdpa", f"'{pattern}' does not bound how far a query sees")


@pytest.mark.parametrize(
    ("change", "served", "reason"),
    [
        ({"phase": "decode"}, "sdpa", "one query is no block"),
        (
            {"compiling": True, "plain": False},
            "sdpa",
            "with padded or packed rows it must look at positions, which can't be done while compiling",
        ),
        (
            {"compiling": True, "pattern": LONGFORMER},
            "sdpa",
            "it must look for the marked tokens, which can't be done while compiling",
        ),
        (
            {"bias": True, "reads_content": True},
            "sdpa",
            "a position bias that reads queries or keys differs from block to block",
        ),
        ({"softcap": True}, "tiled", "it cannot cap scores"),
        ({"mixer": Softmax(sinks=True)}, "tiled", "its softmax has no sink logits"),
    ],
)
def test_choice_bounded_pattern_that_blocks_cannot_serve_goes_on_with_the_reason(change, served, reason):
    found = choice(dataclasses.replace(LOCAL, **change))
    assert (found.kernel.name, reasons(found)["banded"]) == (served, reason)


def test_choice_compiled_plain_rows_stay_banded():
    first = Window(size=8) | GlobalTokens(first=2, marks=False)
    for pattern in (Window(size=8), Causal() & first):
        assert choice(dataclasses.replace(LOCAL, pattern=pattern, compiling=True)).kernel.name == "banded"


REFUSALS = {
    "sinks": ({"mixer": Softmax(sinks=True)}, "its softmax has no sink logits"),
    "softcap": ({"softcap": True}, "it cannot cap scores"),
    "reads_probs": (
        {"reads_probs": True},
        "it does not expose the weights, which this position scheme adds to the values",
    ),
    "bias_bf16": ({"bias": True, "dtype": torch.bfloat16}, "it would round the position bias to 16 bits"),
    "bias_fp16": ({"bias": True, "dtype": torch.float16}, "it would round the position bias to 16 bits"),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
def test_choice_softmax_that_sdpa_cannot_do_is_tiled_but_for_one_query(case, phase):
    change, reason = REFUSALS[case]
    found = choice(dataclasses.replace(PLAIN, phase=phase, **change))
    assert reasons(found)["sdpa"] == reason
    assert found.kernel.name == ("reference" if phase == "decode" else "tiled")
    if phase == "decode":
        assert reasons(found)["tiled"] == "one query's scores are no larger than its keys"


def test_choice_another_mixer_goes_to_the_reference_with_every_reason():
    found = choice(dataclasses.replace(LOCAL, mixer=Relu()))
    assert found.kernel.name == "reference"
    assert reasons(found) == {
        "flex": "its fused kernels with gradients run on cuda, not cpu",
        "banded": "it computes softmax weights, not relu",
        "sdpa": "it computes softmax weights, not relu",
        "tiled": "its running sums are those of a softmax, not of relu",
    }


@pytest.mark.parametrize("pattern", [*BOUNDED, Strided(stride=4)], ids=str)
@pytest.mark.parametrize("change", [{}, {"bias": True}, {"softcap": True}, {"plain": False}], ids=str)
def test_choice_pattern_in_training_on_cuda_is_flex(pattern, change):
    found = choice(dataclasses.replace(LOCAL, pattern=pattern, device="cuda", dtype=torch.bfloat16, **change))
    assert (found.kernel.name, found.refusals) == ("flex", ())


def test_choice_plain_causal_on_cuda_is_sdpa():
    assert choice(dataclasses.replace(PLAIN, device="cuda", dtype=torch.bfloat16)).kernel.name == "sdpa"


def test_kernels_last_in_order_refuses_nothing():
    everything = dataclasses.replace(
        LOCAL, dtype=torch.bfloat16, mixer=Relu(), bias=True, reads_content=True, products=True, softcap=True,
        reads_probs=True, dropout=True, compiling=True, plain=False,
    )  # fmt: skip
    assert [kernel.name for kernel in KERNELS] == ["paged", "grouped", "flex", "banded", "sdpa", "tiled", "reference"]
    assert KERNELS[-1].why_not(everything) is None
    assert all(kernel.why_not(everything) for kernel in KERNELS[:-1])


def test_choose_without_a_kernel_that_serves_names_every_refusal():
    with pytest.raises(CapabilityError, match="no kernel serves this request: sdpa: it cannot cap scores"):
        choose(dataclasses.replace(PLAIN, softcap=True), (sdpa.KERNEL,))
