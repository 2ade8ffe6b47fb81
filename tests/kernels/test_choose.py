"""Which kernel serves, and what those before it in order say against the request."""

import dataclasses

import pytest
import torch

from anyformer.errors import CapabilityError
from anyformer.kernels.attention import KERNELS, choice, native
from anyformer.kernels.choose import Request, choose
from anyformer.parts.mixers.relu import Relu
from anyformer.parts.mixers.softmax import Softmax

PLAIN = Request(device="cpu", dtype=torch.float32, phase="train", mask="causal", mixer=Softmax())

REFUSALS = {
    "relu": ({"mixer": Relu()}, "it computes softmax weights, not relu"),
    "sinks": ({"mixer": Softmax(sinks=True)}, "its softmax has no sink logits"),
    "softcap": ({"softcap": True}, "it cannot cap scores"),
    "reads_probs": (
        {"reads_probs": True},
        "it does not expose the weights, which this position scheme adds to the values",
    ),
    "bias_bf16": ({"bias": True, "dtype": torch.bfloat16}, "it would round the position bias to 16 bits"),
    "bias_fp16": ({"bias": True, "dtype": torch.float16}, "it would round the position bias to 16 bits"),
}


@pytest.mark.parametrize("mask", ["none", "causal", "dense"])
@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_choice_plain_softmax_is_sdpa_without_refusals(mask, phase, dtype):
    found = choice(dataclasses.replace(PLAIN, mask=mask, phase=phase, dtype=dtype))
    assert (found.kernel.name, found.refusals) == ("sdpa", ())


@pytest.mark.parametrize("change", [{"bias": True}, {"dropout": True}, {"bias": True, "dtype": torch.float64}])
def test_choice_what_sdpa_can_do_stays_with_it(change):
    assert choice(dataclasses.replace(PLAIN, **change)).kernel.name == "sdpa"


@pytest.mark.parametrize("case", REFUSALS)
def test_choice_what_sdpa_cannot_do_goes_to_the_reference_with_the_reason(case):
    change, reason = REFUSALS[case]
    found = choice(dataclasses.replace(PLAIN, **change))
    assert (found.kernel.name, found.refusals) == ("reference", (("sdpa", reason),))


def test_kernels_last_in_order_refuses_nothing():
    everything = dataclasses.replace(
        PLAIN, dtype=torch.bfloat16, mixer=Relu(), bias=True, softcap=True, reads_probs=True, dropout=True, mask="dense"
    )
    assert [kernel.name for kernel in KERNELS] == ["sdpa", "reference"]
    assert KERNELS[-1].why_not(everything) is None


def test_choose_without_a_kernel_that_serves_names_every_refusal():
    with pytest.raises(CapabilityError, match="no kernel serves this request: sdpa: it cannot cap scores"):
        choose(dataclasses.replace(PLAIN, softcap=True), (native.KERNEL,))
