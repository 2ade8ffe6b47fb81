"""Kernels as `explain` names them, against those that models of every kind really ask for."""

import pytest
import torch

from anyformer.explain.groups import groups
from anyformer.explain.kernels import kernel_table, requests
from anyformer.generation.engine import Engine
from anyformer.kernels.attention import KERNELS, flex
from anyformer.model import stack
from tests.contract.contracts import keeps_a_cache, length_of, model_of, prefix_of, step
from tests.contract.draw import draw, every_kind, spec_of_kind
from tests.contract.feed import alone, document
from tests.explain.specs import CHANGES, spec_named

LENGTH = 17
SPECS = {f"{axis}-{kind}": (spec_of_kind, axis, kind) for axis, kind in every_kind()}
SPECS |= {f"random-{seed}": (draw, seed) for seed in range(40)}


@pytest.fixture
def asked(monkeypatch):
    """All requests that models make of kernels from here on."""
    found = set()

    def spy(request):
        made = choice(request)
        if not request.paged or made.kernel.reads_pages:
            found.add(request)
        return made

    choice = stack.choice
    monkeypatch.setattr(stack, "choice", spy)
    return found


def check(spec, asked, *phases):
    """Global tokens with projections of their own ask for a kernel besides."""
    every = [each for group in groups(spec) for each in requests(spec, group, "cpu", torch.float64)]
    said = {request for _, phase, request, _ in every if phase in phases and request.mixer.weighs}
    more = any(layer.attention.global_projections for stack in spec.stacks for layer in stack.layers)
    assert said <= asked if more else said == asked


@pytest.mark.parametrize("name", SPECS)
def test_kernels_of_training_and_inference_are_those_that_a_model_asks_for(asked, name):
    make, *given = SPECS[name]
    spec = make(*given)
    model, doc = model_of(spec), document(spec, length_of(spec), 1)
    try:
        alone(model.train(), doc)
    finally:
        model.eval()
    check(spec, asked, "training")
    if spec.topology == "encoder":
        asked.clear()
        with torch.no_grad():
            alone(model, doc)
        check(spec, asked, "inference")


@pytest.mark.parametrize("name", SPECS)
def test_kernels_of_decoding_are_those_that_a_model_with_a_cache_asks_for(asked, name):
    make, *given = SPECS[name]
    spec = make(*given)
    if not keeps_a_cache(spec):
        pytest.skip("it keeps no cache")
    model, doc = model_of(spec), document(spec, LENGTH, 1)
    tokens = doc.source if doc.target is None else doc.target
    first = max(prefix_of(spec), len(tokens) - 1)
    cache = model.new_cache(1, len(tokens))
    with torch.no_grad():
        step(model, doc, tokens[None, :first], cache)
        check(spec, asked, "prefill", "inference")
        asked.clear()
        step(model, doc, tokens[None, first:], cache)
    if len(tokens) - first == 1:
        check(spec, asked, "decoding")


@pytest.mark.parametrize(
    "name", [name for name in SPECS if name.startswith(("position", "pattern", "mixer", "random"))]
)
def test_kernels_of_paged_decoding_are_those_that_continuous_batching_asks_for(asked, name):
    make, *given = SPECS[name]
    spec = make(*given)
    if spec.topology != "decoder" or spec.head.kind != "lm" or prefix_of(spec) or spec.embed.kind != "tokens":
        pytest.skip("requests are texts for a decoder")
    engine = Engine(model_of(spec), max_num_seqs=2, max_model_len=LENGTH, block_size=4, max_num_batched_tokens=64)
    engine.add_request(torch.arange(9) % spec.vocab, max_new_tokens=3, stop=())
    engine.step()
    asked.clear()
    engine.step()
    check(spec, asked, "paged decoding")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CHANGES)
def test_kernels_name_every_layer_once_in_each_phase_and_a_reason_for_every_other_kernel(name, device):
    spec = spec_named(name)
    table = kernel_table(spec, device)
    assert (table.device, table.dtype) == (device, {"cpu": "float32", "cuda": "bfloat16"}[device])
    names = [kernel.name for kernel in KERNELS]
    for _, use in table.uses:
        if use.kernel is not None:
            assert [use.kernel, *(other for other, _ in use.others)] == sorted(
                names, key=lambda each, use=use: (each != use.kernel, names.index(each))
            )
            assert all(why for _, why in use.others)
    assert {use.phase for _, use in table.uses} >= {"training"}
    assert {use.attention for _, use in table.uses} == ({"self", "cross"} if spec.stacks[-1].cross else {"self"})


def test_kernels_say_what_another_device_and_dtype_would_change():
    spec = spec_named("local-global")
    uses = {(where, use.phase): use for where, use in kernel_table(spec, "cuda").uses}
    local = next(use for (where, phase), use in uses.items() if phase == "training" and "0-4" in where)
    assert local.kernel == flex.KERNEL.name
    double = kernel_table(spec, "cuda", "float64").uses
    assert dict(next(use for _, use in double if use.phase == "training").others)[flex.KERNEL.name].endswith(
        "not float64"
    )
