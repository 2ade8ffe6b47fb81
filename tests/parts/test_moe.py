"""The mixture of experts: published blocks, the ways to its products, its losses, its counts and its refusals."""

import types

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import CapabilityError, SpecError
from anyformer.kernels import moe as ways
from anyformer.kernels.moe import Stacked, Work
from anyformer.model.quantize import quantize
from anyformer.model.token_layout import place
from anyformer.parts.ffns.gated import Geglu, Swiglu
from anyformer.parts.ffns.moe import Moe
from anyformer.parts.moe import MoE
from anyformer.specs.axes import FeedForward
from anyformer.train.compile import compiled, recompute
from tests.contract.contracts import CONTRACTS, compiles
from tests.contract.draw import BASE
from tests.parts.samples import dims, lifted, random, randomised, small_model, small_spec
from tests.tolerances import assert_close

X = random(2, 9, 12, seed=5)


def mixture(**fields):
    leaf = Moe(**({"experts": 6, "top_k": 3, "width": 16} | fields))
    net = MoE(leaf, dims(ffn_width=leaf.hidden(12)))
    return randomised(net)


def theirs_of(made):
    """A published block in fp64, every parameter and buffer random."""
    made = randomised(made, seed=20)
    for i, buffer in enumerate(made.buffers()):
        buffer.copy_(random(*buffer.shape, seed=90 + i))
    return made


def fill(ours, named):
    with torch.no_grad():
        for name, value in named.items():
            ours.get_parameter(name).copy_(value)
    assert named.keys() == dict(ours.named_parameters()).keys()
    return ours


def gate_up(block):
    gate, up = block.experts.gate_up_proj.chunk(2, 1)
    return {"experts.gate.weight": gate, "experts.up.weight": up, "experts.down.weight": block.experts.down_proj}


def shared(block):
    return {f"shared.{name}.weight": getattr(block, f"{name}_proj").weight for name in ("gate", "up", "down")}


SIZES = {"hidden_size": 12, "_experts_implementation": "eager"}


def mixtral():
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    config = MixtralConfig(intermediate_size=16, num_local_experts=6, num_experts_per_tok=3, **SIZES)
    block = theirs_of(MixtralSparseMoeBlock(config))
    return block, fill(mixture(), {"router.weight": block.gate.weight} | gate_up(block))


def qwen2(normalise=False):
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeConfig, Qwen2MoeSparseMoeBlock

    config = Qwen2MoeConfig(
        moe_intermediate_size=16, shared_expert_intermediate_size=20, num_experts=6, num_experts_per_tok=3,
        norm_topk_prob=normalise, **SIZES,
    )  # fmt: skip
    block = theirs_of(Qwen2MoeSparseMoeBlock(config))
    named = {"router.weight": block.gate.weight, "shared_gate.weight": block.shared_expert_gate.weight}
    ours = mixture(normalise=normalise, shared_width=20, shared_gate=True)
    return block, fill(ours, named | gate_up(block) | shared(block.shared_expert))


def deepseek():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3MoE

    config = DeepseekV3Config(
        moe_intermediate_size=16, n_shared_experts=2, n_routed_experts=6, num_experts_per_tok=3, n_group=1, topk_group=1,
        routed_scaling_factor=2.5, norm_topk_prob=True, **SIZES,
    )  # fmt: skip
    block = theirs_of(DeepseekV3MoE(config))
    named = {"router.weight": block.gate.weight, "selection_bias": block.gate.e_score_correction_bias}
    ours = mixture(score="sigmoid", selection_bias=True, scale=2.5, shared_width=32)
    return block, fill(ours, named | gate_up(block) | shared(block.shared_experts))


def gpt_oss():
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssMLP

    config = GptOssConfig(intermediate_size=16, num_local_experts=6, num_experts_per_tok=3, **SIZES)
    block = theirs_of(GptOssMLP(config))
    e = block.experts
    named = {"router.weight": block.router.weight, "router.bias": block.router.bias}
    named |= {"experts.down.weight": e.down_proj.mT, "experts.down.bias": e.down_proj_bias}
    for i, name in enumerate(("gate", "up")):
        named[f"experts.{name}.weight"] = e.gate_up_proj[..., i::2].mT
        named[f"experts.{name}.bias"] = e.gate_up_proj_bias[..., i::2]
    ours = mixture(expert=Geglu(form="quick", clamp=7.0, offset=1.0), bias=True, router_bias=True)
    return block, fill(ours, named)


def llama4():
    from transformers.models.llama4.modeling_llama4 import Llama4TextConfig, Llama4TextMoe

    config = Llama4TextConfig(
        intermediate_size=16, num_local_experts=6, num_experts_per_tok=1, hidden_size=12, num_attention_heads=2
    )
    block = theirs_of(Llama4TextMoe(config))
    gate, up = block.experts.gate_up_proj.mT.chunk(2, 1)
    named = {"experts.gate.weight": gate, "experts.up.weight": up, "experts.down.weight": block.experts.down_proj.mT}
    ours = mixture(top_k=1, score="sigmoid", normalise=False, gates="input", shared_width=16)
    return block, fill(ours, {"router.weight": block.router.weight} | named | shared(block.shared_expert))


PUBLISHED = {
    "Mixtral": mixtral,
    "Qwen2-MoE": qwen2,
    "Qwen3-MoE's sum of 1": lambda: qwen2(normalise=True),
    "DeepSeek-V3": deepseek,
    "gpt-oss": gpt_oss,
    "Llama 4": llama4,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_mixture_equals_the_published_block_in_value_and_gradient(name):
    theirs, ours = PUBLISHED[name]()
    x, up = X.clone().requires_grad_(), random(2, 9, 12, seed=6)
    with lifted():
        wanted = theirs(x)
    wanted = (wanted[0] if isinstance(wanted, tuple) else wanted).view_as(x)
    assert_close("oracle", ours(x), wanted)
    (found,) = torch.autograd.grad(ours(x), x, up)
    with lifted():
        (expected,) = torch.autograd.grad(wanted, x, up)
    assert_close("oracle", found, expected)


WAYS = {"gathered": ways.gathered, "grouped": ways.grouped, "everywhere": ways.everywhere}


def work(*, bias, on_input, dtype, expert=None):
    """Tokens of which some expert gets many and some none."""
    leaf, made = expert or Swiglu(), [random(7, 12, 8, seed=1), random(7, 12, 8, seed=2), random(7, 8, 12, seed=3)]
    stacked = [w.to(dtype).requires_grad_() for w in made[: len(leaf.inputs)] + made[2:]]
    biases = [random(7, w.shape[1], seed=4 + i).to(dtype).requires_grad_() for i, w in enumerate(stacked)]
    maps = [Stacked(w, b if bias else None) for w, b in zip(stacked, biases, strict=True)]
    chosen = torch.tensor([[0, 3], [3, 1], [0, 3], [5, 3], [3, 0]])
    x, share = random(5, 8, seed=8).to(dtype).requires_grad_(), random(5, 2, seed=9).to(dtype).abs().requires_grad_()
    return Work(x, chosen, share, maps[:-1], maps[-1], leaf.combine, on_input), [
        x, share, *stacked, *(biases if bias else []),
    ]  # fmt: skip


def by_hand(given):
    """Each choice of each token alone."""
    rows = []
    for n, x in enumerate(given.x_ND):
        total = 0.0
        for e, share in zip(given.chosen_NK[n].tolist(), given.share_NK[n], strict=True):
            read = x * share if given.on_input else x
            inner = given.combine(
                *[F.linear(read, m.weight[e], None if m.bias is None else m.bias[e]) for m in given.inputs]
            )
            y = F.linear(inner, given.down.weight[e], None if given.down.bias is None else given.down.bias[e])
            total = total + (y if given.on_input else share * y)
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("on_input", [False, True], ids=["output", "input"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("way", ["slices", *WAYS])
def test_way_equals_one_choice_after_the_other_in_value_and_gradient(way, bias, on_input):
    # The grouped product has no fp64.
    exact = way != "grouped"
    given, leaves = work(bias=bias, on_input=on_input, dtype=torch.float64 if exact else torch.float32)
    up = random(5, 8, seed=11).to(given.x_ND.dtype)
    assert ways.groups(given) is not exact
    found, wanted = getattr(ways, way)(given), by_hand(given)
    row = "formula" if exact else "single"
    assert_close(row, found, wanted)
    expected = torch.autograd.grad(wanted, leaves, up)
    for ours, theirs in zip(torch.autograd.grad(found, leaves, up), expected, strict=True):
        assert_close(row, ours, theirs)


@pytest.mark.parametrize("tokens", [1, 30])
def test_compiled_mixture_has_one_graph_of_fixed_shapes_in_fp32(tokens):
    net, x = mixture().float(), random(1, tokens, 12, seed=7).float()
    torch.compiler.reset()
    fast = torch.compile(net, fullgraph=True, backend="eager")
    assert_close("single", fast(x), net(x))
    # Other values send other numbers of tokens to each expert, and nothing is compiled again.
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_close("single", fast(-3 * x), net(-3 * x))


VARIANTS = {
    "mixtral": {},
    "top 1 on the input": {"top_k": 1, "normalise": False, "score": "sigmoid", "gates": "input", "shared_width": 9},
    "deepseek": {"score": "sigmoid", "selection_bias": True, "scale": 2.5, "shared_width": 12},
    "plain biased experts": {
        "expert": "gelu",
        "bias": True,
        "router_bias": True,
        "shared_width": 7,
        "shared_gate": True,
    },
    "not renormalised": {"normalise": False, "top_k": 3},
}


def contract_spec(changes, **more):
    return af.spec(BASE, {"ffn": {"kind": "moe", "experts": 5, "width": 20} | changes, **more})


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_with_router_losses_keeps_every_promise(variant):
    spec = contract_spec(VARIANTS[variant], loss={"balance": 0.1, "router_z": 0.01})
    for contract in CONTRACTS:
        contract(spec)


def test_variant_with_router_losses_compiles_as_one_graph():
    compiles(contract_spec(VARIANTS["deepseek"], loss={"balance": 0.1, "router_z": 0.01}))


@pytest.mark.parametrize("topology", ["encoder", "encoder-decoder"])
def test_mixture_in_other_topologies_keeps_every_promise(topology):
    spec = contract_spec(VARIANTS["deepseek"], topology=topology, loss={"balance": 0.1, "router_z": 0.01})
    for contract in CONTRACTS:
        contract(spec)


@pytest.mark.parametrize("wiring", ["parallel", "parallel2", "reversible"])
def test_mixture_under_every_wiring_keeps_every_promise(wiring):
    spec = contract_spec({}, block={"wiring": wiring}, **{"layers": {"1": {"ffn": {"kind": "gelu"}}}})
    for contract in CONTRACTS:
        contract(spec)


def test_reversible_mixture_has_the_gradient_of_the_plain_loop():
    model = small_model({"ffn": {"kind": "moe", "experts": 5, "width": 8}, "block.wiring": "reversible"})
    ids = torch.arange(24).view(2, 12)
    x = model.embed(ids, None)
    found = torch.autograd.grad(model(ids, labels=ids).loss, list(model.parameters()))
    streams = [x, x]
    scene = model.decoder.self_metadata(model.decoder.kinds[0], 0, x, place(2, 12, x.device), None)
    for block in model.decoder.blocks:
        streams = block(streams, scene)
    states = model.decoder.final_norm((streams[0] + streams[1]) / 2)
    loss = F.cross_entropy(model.head(states)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close("promise", ours, theirs)


LOSSES = {"ffn": {"kind": "moe", "experts": 5, "width": 8}, "loss.balance": 0.3, "loss.router_z": 0.2}


def routers(model, ids, **given):
    """Logits of every router in a pass, by hooks."""
    found, hooks = [], []
    for module in model.modules():
        if isinstance(module, MoE):
            hooks.append(module.router.register_forward_hook(lambda m, given, out: found.append(out.flatten(0, 1))))
    out = model(ids, **given)
    for hook in hooks:
        hook.remove()
    return found, out


def test_router_losses_equal_the_published_ones_and_are_added_with_their_weights():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    model, ids = small_model(LOSSES), torch.arange(30).view(2, 15)
    found, out = routers(model, ids, labels=ids)
    assert len(found) == 2
    with lifted():
        wanted = sum(load_balancing_loss_func((logits,), 5, 2) for logits in found) / 2
    assert_close("oracle", out.losses["balance"], wanted)
    z = sum(logits.exp().sum(-1).log().square().mean() for logits in found) / 2
    assert_close("formula", out.losses["router_z"], z)
    assert list(out.losses) == ["cross_entropy", "balance", "router_z"]
    assert_close("formula", out.loss, out.losses["cross_entropy"] + 0.3 * wanted + 0.2 * z)


def test_router_losses_ignore_padding_as_the_published_one_does():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    model, ids = small_model(LOSSES), torch.arange(30).view(2, 15)
    mask = torch.ones_like(ids)
    mask[0, 9:], mask[1, :4] = 0, 0
    found, out = routers(model, ids, labels=ids, attention_mask=mask)
    with lifted():
        wanted = sum(load_balancing_loss_func((logits,), 5, 2, mask) for logits in found) / 2
    assert_close("oracle", out.losses["balance"], wanted)
    other = ids.masked_fill(mask == 0, 30)
    again = model(other, labels=ids, attention_mask=mask)
    for name in ("balance", "router_z"):
        assert_close("promise", again.losses[name], out.losses[name])
    # Not by weighing everything alike: without the mask it is another number.
    assert (model(ids, labels=ids).losses["balance"] - out.losses["balance"]).abs() > 1e-3


def test_router_losses_of_packed_documents_are_those_of_the_documents_alone():
    model, docs = small_model(LOSSES), [torch.arange(9)[None], torch.arange(9, 16)[None]]
    alone = [model(doc, labels=doc).losses["router_z"] for doc in docs]
    row, segments = torch.cat(docs, 1), torch.tensor([[0] * 9 + [1] * 7])
    packed = model(row, labels=row, segments=segments).losses["router_z"]
    assert_close("promise", packed, (9 * alone[0] + 7 * alone[1]) / 16)


def test_balance_is_top_k_when_even_and_more_when_all_tokens_go_one_way():
    from anyformer.kernels.loss import Routed, balance

    even = torch.eye(6).double().roll(1, 0) * 1e-9
    chosen = torch.stack((torch.arange(6), (torch.arange(6) + 1) % 6), -1)
    assert_close("formula", balance([(Routed(even[None], chosen[None], False), None)]), torch.tensor(2.0).double())
    crowded = torch.zeros(1, 4, 6).double()
    crowded[..., :2] = 50.0
    for sigmoid in (False, True):
        found = balance([(Routed(crowded, torch.zeros(1, 4, 1).long(), sigmoid), None)])
        assert float(found) > 1.4
    nobody = torch.zeros(1, 4, dtype=torch.bool)
    assert float(balance([(Routed(crowded, torch.zeros(1, 4, 1).long(), False), nobody)])) == 0.0


@pytest.mark.parametrize("name", ["balance", "router_z"])
def test_router_loss_reaches_the_router_and_what_stands_before_it(name):
    model, ids = small_model({"ffn": LOSSES["ffn"], f"loss.{name}": 1.0}), torch.arange(30).view(2, 15)
    model(ids, labels=ids).losses[name].backward()
    for wanted in ("decoder.blocks.0.ffn.body.router.weight", "embed.tokens.weight"):
        grad = model.get_parameter(wanted).grad
        assert grad.isfinite().all()
        assert float(grad.abs().max()) > 1e-6
    assert model.get_parameter("decoder.blocks.1.ffn.body.experts.down.weight").grad is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("kept", ["none", "selective"])
def test_router_losses_of_blocks_that_are_compiled_and_recomputed_are_those_of_plain_ones(kept):
    model, ids = small_model(LOSSES | {"depth": 3}).train(), torch.arange(30).view(2, 15)
    wanted = model(ids, labels=ids)
    grads = torch.autograd.grad(wanted.loss, list(model.parameters()))
    recompute(model, kept)
    for kind in ("none", "block"):
        torch.compiler.reset()
        graphs = compiled(model, kind, backend="aot_eager")
        out = model(ids, labels=ids)
        assert graphs.made == (kind == "block")
        assert_close("promise", out.loss, wanted.loss)
        for ours, theirs in zip(torch.autograd.grad(out.loss, list(model.parameters())), grads, strict=True):
            assert_close("promise", ours, theirs)


def test_router_losses_are_not_computed_without_weight_or_labels():
    ids = torch.arange(10)[None]
    assert list(small_model({"ffn": LOSSES["ffn"]})(ids, labels=ids).losses) == ["cross_entropy"]
    assert small_model(LOSSES)(ids).losses == {}


def test_model_with_fused_products_routes_and_weighs_as_map_by_map():
    model, ids = small_model(LOSSES), torch.arange(30).view(2, 15)
    want = model(ids, labels=ids)
    with torch.no_grad():
        found = model(ids, labels=ids)
    assert_close("promise", found.logits, want.logits)
    assert_close("promise", found.loss, want.loss)


def test_quantising_a_mixture_is_refused_with_the_reason():
    model = small_model({"ffn": LOSSES["ffn"]}).float()
    with pytest.raises(CapabilityError, match="experts of a mixture"):
        quantize(model, "int8")
    assert model(torch.arange(5)[None]).logits.isfinite().all()


@pytest.mark.parametrize("kind", [kind for kind in FeedForward.kinds() if kind != "moe"])
def test_every_dense_kind_can_be_an_expert(kind):
    leaf = Moe(expert=FeedForward.named(kind)(), experts=3, top_k=3, width=16, shared_width=20)
    assert not list(leaf.problems())
    net = randomised(MoE(leaf, dims()))
    share = (X @ net.router.weight.T).softmax(-1)
    maps = dict(net.experts.named_parameters())

    def one(i):
        return (
            leaf.expert.combine(*[X @ maps[f"{n}.weight"][i].T for n in leaf.expert.inputs]) @ maps["down.weight"][i].T
        )

    wanted = sum(share[..., i : i + 1] * one(i) for i in range(3)) + net.shared(X)
    assert_close("formula", net(X), wanted)


def test_expert_dropout_acts_in_training_only():
    net = mixture(dropout=0.5, shared_width=8)
    assert torch.equal(net.eval()(X), net.eval()(X))
    torch.manual_seed(0)
    assert not torch.equal(net.train()(X), net.train()(X))


def test_router_computes_in_fp32_under_autocast():
    net = mixture().float()
    seen = []
    net.router.register_forward_hook(lambda module, given, out: seen.append((given[0].dtype, out.dtype)))
    with torch.autocast("cpu", torch.bfloat16):
        net.router(X.bfloat16())
        net.router(X.float())
    assert seen == [(torch.bfloat16, torch.float32), (torch.float32, torch.float32)]
    exact = mixture().router(X.float().double())
    assert_close("single", net.router(X.float()), exact.float())


MIXTRAL = {
    "vocab": 32000, "width": 4096, "depth": 32, "context": 32768,
    "attention": {"heads": 32, "kv_heads": 8, "head_dim": 128}, "position": {"kind": "rope", "theta": 1e6},
    "ffn": {"kind": "moe", "experts": 8, "top_k": 2, "width": 14336}, "norm": {"kind": "rmsnorm", "eps": 1e-5},
}  # fmt: skip


def test_counts_of_mixtral_8x7b_are_the_published_ones():
    count = af.spec(MIXTRAL).count()
    assert count.params == 46_702_792_704
    assert count.active_params == 12_879_925_248
    assert count.flops(1).ffn == 32 * 2 * (4096 * 8 + 2 * 3 * 4096 * 14336)
    # A decoding step of one row reads 2 experts of each layer, of four rows all 8 at the most.
    unread = 32 * 6 * 3 * 4096 * 14336 * 2
    moved = [count.bytes_moved("decode", 1, "bfloat16", batch) - batch * count.kv_bytes(2) for batch in (1, 4)]
    assert moved[1] - moved[0] == unread


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"experts": 1}, "ffn.experts: 1 is not at least 2"),
        ({"experts": 4, "top_k": 5}, "ffn.top_k: 5 is not from 1 to experts=4"),
        ({"top_k": 1}, "ffn.normalise: with top_k=1"),
        ({"scale": 0.0}, "ffn.scale: is 0"),
        ({"shared_gate": True}, "ffn.shared_gate: has no effect without shared_width"),
        ({"shared_width": 0}, "ffn.shared_width: 0 is not at least 1"),
        ({"expert": "moe"}, "ffn.expert.kind: 'moe' can't be an expert"),
        ({"expert": {"kind": "gelu", "width": 7}}, "ffn.expert.width: has no effect here: set ffn.width"),
        ({"expert": {"kind": "gelu", "bias": True}}, "ffn.expert.bias: has no effect here: set ffn.bias"),
        ({"expert": {"kind": "gelu", "chunk": 7}}, "ffn.expert.chunk: has no effect here: leave it out"),
        ({"expert": {"kind": "glu", "clamp": -1.0}}, "ffn.expert.clamp: -1.0 is not above 0"),
        ({"chunk": 4}, "ffn.chunk: is unknown"),
    ],
)
def test_mixture_that_cannot_be_is_named(changes, problem):
    with pytest.raises(SpecError) as info:
        small_spec({"ffn": {"kind": "moe"} | changes})
    assert problem in str(info.value)


@pytest.mark.parametrize("name", ["balance", "router_z"])
def test_router_loss_that_would_do_nothing_is_refused(name):
    for changes, problem in (
        ({}, "no layer has a router"),
        ({"ffn.kind": "moe", "block.wiring": "reversible"}, "'reversible'"),
        ({"ffn.kind": "moe", "head": "none"}, "has no effect on a 'none' head"),
    ):
        with pytest.raises(SpecError, match=problem):
            small_spec(changes | {f"loss.{name}": 0.1})
    with pytest.raises(SpecError, match="is not at least 0"):
        small_spec({"ffn.kind": "moe", f"loss.{name}": -0.1})


def test_experts_start_as_a_dense_network_of_one_expert_would():
    model = af.build(small_spec({"width": 64, "ffn": {"kind": "moe", "experts": 16, "width": 96}}))
    net = model.decoder.blocks[0].ffn.body
    for name, into, out in (("gate", 64, 96), ("down", 96, 64)):
        spread = net.experts.get_parameter(f"{name}.weight").detach().std()
        assert abs(spread / (2 / (into + out)) ** 0.5 - 1) < 0.03


def test_block_takes_the_static_way_while_a_stream_is_captured(monkeypatch):
    given, _ = work(bias=False, on_input=False, dtype=torch.float64)
    on_gpu = types.SimpleNamespace(device=types.SimpleNamespace(type="cuda"), dtype=torch.float64)
    there = given._replace(x_ND=on_gpu)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for capturing, wanted in ((True, ways.everywhere), (False, ways.slices)):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        assert ways.way_for(there) is wanted
    assert ways.way_for(there._replace(chosen_NK=given.chosen_NK[:3])) is ways.gathered
