"""Parameters that stay in float32 whatever a model is cast to: through casts, autocast, files, training and FSDP."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh

import anyformer as af
from anyformer.families.family import Family
from anyformer.families.io import load, stored_dtype
from anyformer.parts.exact import held_exactly
from anyformer.specs.parameters import weights
from anyformer.train.distributed.fsdp import spread
from anyformer.train.ranks import Meshes

ROUTERS = {"ffn.exact_router": True, "ffn.router_bias": True}
SPEC = af.ModelSpec.from_data(
    {
        "vocab": 61, "width": 32, "depth": 2, "context": 32, "attention": {"heads": 4}, "position": {"kind": "rope"},
        "ffn": {"kind": "moe", "experts": 5, "top_k": 2, "width": 12, "score": "sigmoid", "selection_bias": True},
        "embed": {"kind": "tokens"}, "head": {"kind": "lm"}, "norm": {"kind": "rmsnorm"},
        "init": {"kind": "normal", "std": 0.1},
    }
)  # fmt: skip
IDS = torch.arange(3, 15)[None]
HALVES = (torch.float16, torch.bfloat16)


def made(spec=SPEC, dtype=torch.float32):
    """A model whose biases of the choice have no short form in 16 bits."""
    model = af.build(spec, dtype=dtype, seed=3)
    with torch.no_grad():
        for block in model.decoder.blocks:
            block.ffn.body.selection_bias.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(1))
    return model.eval()


def biases(model):
    return [block.ffn.body.selection_bias for block in model.decoder.blocks]


def assert_kept(model, other, dtype):
    """The biases are those of another model, to the bit, in fp32; the rest has this dtype."""
    assert all(b.dtype == torch.float32 for b in biases(model))
    assert all(torch.equal(a, b) for a, b in zip(biases(model), biases(other), strict=True))
    kept = {id(p) for p in held_exactly(model)}
    assert {p.dtype for p in model.parameters() if id(p) not in kept} == {dtype}


@pytest.mark.parametrize("cast", [
    lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to("cpu", torch.float16),
    lambda m: m.double().half(), lambda m: m.half().float().bfloat16(), lambda m: copy.deepcopy(m.half()),
    lambda m: pickle.loads(pickle.dumps(m.half())), lambda m: m.type(torch.bfloat16),
    lambda m: [block.half() for block in m.decoder.blocks] and m.half(),
])  # fmt: skip
def test_cast_of_a_model_leaves_the_biases_of_the_choice_as_they_are(cast):
    model = cast(made())
    assert_kept(model, made(), model.embed.tokens.weight.dtype)
    assert model.embed.tokens.weight.dtype in HALVES


def test_cast_to_float64_widens_them_and_back_loses_nothing():
    model = made().double()
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert_kept(model.float(), made(), torch.float32)


def test_cast_in_training_casts_no_gradient_of_what_stays():
    model = made(SPEC.vary(ROUTERS)).train()
    model(IDS).logits.square().mean().backward()
    router = model.decoder.blocks[0].ffn.body.router
    before = router.weight.grad.clone()
    model.half()
    assert router.weight.dtype == router.weight.grad.dtype == router.bias.dtype == torch.float32
    assert torch.equal(router.weight.grad, before)
    assert model.embed.tokens.weight.grad.dtype == torch.float16


def test_module_and_spec_agree_on_what_stays_exact():
    kinds = [SPEC, SPEC.vary(ROUTERS), *(_small(kind) for kind in ("glm4_moe", "ernie4_5_moe", "qwen3_moe", "flint"))]
    found = []
    for spec in kinds:
        model = af.build(spec, device="meta", dtype=torch.bfloat16)
        wide = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
        assert wide == {name for name, weight in weights(spec).items() if weight.exact}
        found.append(len(wide))
    assert found == [2, 6, 2, 4, 0, 3]


def _small(kind):
    family = Family.named(kind)
    assert family is not None
    return family.spec_from(family.small)


@torch.no_grad()
def test_autocast_and_a_cast_choose_the_experts_that_the_exact_bias_says():
    model, half = made(), made().half()
    with torch.no_grad():
        for each in (model, half):
            for bias in biases(each):
                # Two experts whose biases are one number in fp16, far above the others.
                bias.copy_(torch.tensor([100.0, 100.02, 0.0, 100.01, 0.0]))
    with torch.autocast("cpu", dtype=torch.float16):
        casts = _chosen(model)
    assert _chosen(model) == casts == _chosen(half) == {1, 3}


def _chosen(model):
    """All experts that any token was sent to, whose scores are nearly the same."""
    body, seen = model.decoder.blocks[0].ffn.body, []
    x = torch.zeros(1, 4, 32, dtype=body.router.weight.dtype)
    body(x, None, seen)
    return set(seen[0][1].flatten().tolist())


@pytest.mark.parametrize("dtype", HALVES)
def test_model_saved_in_16_bits_comes_back_with_the_exact_bias(dtype, tmp_path):
    model = made(dtype=dtype)
    af.save(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.get_slice("decoder.blocks.0.ffn.body.selection_bias").get_dtype() == "F32"
    assert_kept(load(tmp_path, dtype=dtype), model, dtype)
    assert_kept(load(tmp_path, dtype=torch.float32), model, torch.float32)
    assert stored_dtype(tmp_path) == dtype


@pytest.mark.parametrize("kind", ["glm4_moe", "ernie4_5_moe", "minimax_m2"])
def test_published_folder_in_bf16_keeps_them_in_float32_and_is_bf16_all_the_same(kind, tmp_path):
    model = af.build(_small(kind), dtype=torch.bfloat16, seed=1)
    with torch.no_grad():
        for p in held_exactly(model):
            p.normal_(generator=torch.Generator().manual_seed(2))
    model.family = kind
    af.save(model, tmp_path, format="hf")
    again = load(tmp_path, dtype=torch.bfloat16)
    assert stored_dtype(tmp_path) == torch.bfloat16
    pairs = zip(again.named_parameters(), model.parameters(), strict=True)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for (_, a), b in pairs)
    assert {p.dtype for p in held_exactly(again)} == {torch.float32}


def test_public_class_in_bf16_comes_over_with_the_exact_bias_and_goes_back():
    ours = af.build(_small("glm4_moe"), dtype=torch.bfloat16, seed=1)
    with torch.no_grad():
        for p in held_exactly(ours):
            p.normal_(generator=torch.Generator().manual_seed(2))
    ours.family = "glm4_moe"
    theirs = af.to_hf(ours)
    bias = theirs.model.layers[1].mlp.gate.e_score_correction_bias
    assert bias.dtype == torch.float32
    assert torch.equal(bias, ours.decoder.blocks[1].ffn.body.selection_bias)
    again = af.from_hf(theirs)
    assert all(torch.equal(a, b) for a, b in zip(held_exactly(again), held_exactly(ours), strict=True))


def test_model_trained_cast_generated_with_saved_and_trained_again_keeps_the_bias(tmp_path):
    model = made(SPEC.vary(ROUTERS)).train()

    def step(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        model(IDS).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(model)
    assert_kept(model, made(), torch.float32)
    half = copy.deepcopy(model).half().eval()
    af.generate(half, IDS, max_new_tokens=4)
    assert_kept(half, made(), torch.float16)
    af.save(half, tmp_path)
    again = load(tmp_path, dtype=torch.float32).train()
    step(again)
    assert_kept(again.half(), made(), torch.float16)


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        yield Meshes(init_device_mesh("cpu", (1,), mesh_dim_names=("parts",)), None)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("exact_router", [False, True])
def test_spread_model_gathers_blocks_in_bf16_and_what_is_exact_in_float32(alone, autocast, exact_router):
    spec = SPEC.vary(ROUTERS) if exact_router else SPEC
    plain = made(spec)
    values = {name: p.detach() for name, p in plain.named_parameters()}
    dtype = torch.float32 if autocast else torch.bfloat16
    model = spread(spec, alone, values.__getitem__, device=torch.device("cpu"), dtype=dtype, autocast=autocast)
    block = model.decoder.blocks[0]
    body = block.ffn.body
    if exact_router:
        body.router.unshard()
    block.unshard()
    assert body.experts.up.weight.dtype == torch.bfloat16
    assert body.router.weight.dtype == (torch.float32 if exact_router else torch.bfloat16)
    assert body.selection_bias.dtype == torch.float32
    assert torch.equal(body.selection_bias, plain.decoder.blocks[0].ffn.body.selection_bias)


def test_spread_model_with_exact_routers_learns_what_a_plain_one_learns(alone):
    spec = SPEC.vary(ROUTERS)
    plain = made(spec)
    values = {name: p.detach().clone() for name, p in plain.named_parameters()}
    model = spread(spec, alone, values.__getitem__, device=torch.device("cpu"), dtype=torch.float32)
    for each in (plain, model):
        each(IDS).logits.square().mean().backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=name)
