"""Every promise, over every registered kind and over random specs."""

import dataclasses
import functools

import pytest
import torch

import anyformer as af
from anyformer.registry import OpenAxis
from anyformer.specs import Position
from tests.contract.contracts import CONTRACTS, compiles, model_of
from tests.contract.draw import BASE, COMPARING, FIXED, REPEATS, draw, every_kind, spec_of_kind
from tests.contract.feed import document
from tests.quick import few
from tests.tolerances import assert_close

DRAWN = range(352)
"""Seeds among which every kind is drawn, each together with others."""
SEEDS = DRAWN[:160]
"""Those whose promises are checked every time; raise it before a change that reaches every spec."""
COMPILED = range(8)
TRACED = dict.fromkeys(("ffn", "norm", "init"), ("alone",)) | dict.fromkeys(("embed", "head"), ("alone", "padded"))
"""How tokens come where kinds of an axis are traced: some treat each token by itself, some are at the ends of a row."""

by_contract = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.__name__)


@by_contract
@pytest.mark.parametrize(("axis", "kind"), every_kind())
def test_kind_keeps_promise(axis, kind, contract):
    contract(spec_of_kind(axis, kind))


@pytest.mark.parametrize("seed", few(SEEDS, 16))
def test_random_spec_keeps_every_promise(seed):
    spec = draw(seed)
    for contract in CONTRACTS:
        try:
            contract(spec)
        except Exception as error:
            error.add_note(f"contract {contract.__name__}, spec of seed {seed}:\n{spec.to_toml()}")
            raise


@pytest.mark.parametrize(("axis", "kind"), every_kind())
def test_kind_compiles_as_one_graph(axis, kind):
    # One layer has all that is traced of a kind, and the loss is the head's. Random specs have several and a loss.
    rows = TRACED.get(axis, ("packed",))
    compiles(spec_of_kind(axis, kind).vary({"depth": 1}), rows, labelled=axis == "head")


@pytest.mark.parametrize("seed", few(COMPILED, 1))
def test_random_spec_compiles_as_one_graph(seed):
    compiles(draw(seed), ("alone", "packed" if seed % 2 else "padded"))


@pytest.mark.parametrize(
    ("position", "pattern", "pads"),
    [(kind, "window(9)", 3) for kind in Position.kinds()] + [("rope", "causal", None), ("t5", "causal", None)],
)
def test_compiled_decoding_of_64_steps_compiles_at_most_twice(position, pattern, pads):
    node = {"kind": position} | FIXED.get(("position", position), {}) | ({"rows": 10} if position == "axial" else {})
    spec = af.spec(BASE, {"depth": 1, "context": 70, "position": node, "attention.pattern": pattern})
    model = model_of(spec)
    compilations = 0

    def backend(graph, inputs):
        nonlocal compilations
        compilations += 1
        return graph.forward

    torch.compiler.reset()
    fast = torch.compile(model, fullgraph=True, backend=backend)
    ids = torch.stack([document(spec, 70, seed).source for seed in (0, 1)])
    mask = None
    if pads:
        mask = torch.ones(2, 6, dtype=torch.long)
        mask[1, :pads] = 0
    cache, plain = model.new_cache(2, 70), model.new_cache(2, 70)
    with torch.no_grad():
        for each in (cache, plain):
            model(ids[:, :6], attention_mask=mask, cache=each)
        for t in range(6, 70):
            found = fast(ids[:, t : t + 1], cache=cache).logits
            assert_close("formula", found, model(ids[:, t : t + 1], cache=plain).logits)
    assert 1 <= compilations <= 2


@functools.cache
def drawn():
    return [draw(seed) for seed in DRAWN]


def test_random_specs_reach_the_hard_cases():
    """The generator can reach what breaks models: otherwise the promises above would be cheap."""
    specs = drawn()
    layers = [layer for s in specs for stack in s.stacks for layer in stack.layers]
    assert sum(s.topology != "decoder" for s in specs) >= 60
    assert len(set(specs)) >= 300
    reached = {
        "one kv head": any(x.attention.kv_heads == 1 and x.attention.heads > 1 for x in layers),
        "kv heads = heads": any(x.attention.kv_heads in (None, x.attention.heads) for x in layers),
        "odd heads": any(x.attention.heads % 2 and x.attention.heads > 1 for x in layers),
        "layers of other sizes": any(len({(x.attention.heads, x.attention.head_dim) for x in stack.layers}) > 1 for s in specs for stack in s.stacks),
        "no room beyond a document": any(s.context == 21 and s.position.limit(21) for s in specs),
        "a token that sees only itself": any("window(1)" in str(x.attention.pattern) for x in layers),
        "no norm at all": any(x.norm.of_attention() == "none" for x in layers),
        "head_dim free of width": any(x.attention.heads * (x.attention.head_dim or 0) % s.width for s in specs for x in s.stacks[0].layers),
        "dropout": any(x.attention.dropout and x.block.dropout and x.ffn.dropout for x in layers),
        "window": any("window(" in str(x.attention.pattern) for x in layers),
        "chunks": any("chunked(" in str(x.attention.pattern) for x in layers),
        "mixed positions": any(len({x.position for x in stack.layers}) > 1 for s in specs for stack in s.stacks),
        "length-dependent rope": any(x.position.needs_length for x in layers),
        "one bias of a feed-forward": any(x.ffn.down_bias is not None for x in layers),
        "shared layers": sum(any(stack.shared for stack in s.stacks) for s in specs) >= 40,
        "shared layers that differ": any(len(set(stack.shared)) > 1 for s in specs for stack in s.stacks),
        "positions added and in layers": any(s.embed.position is not None and s.position.acts() for s in specs),
        "cross-attention with positions": any(s.topology == "encoder-decoder" and s.attention.cross_position for s in specs),
    }  # fmt: skip
    assert all(reached.values()), [name for name, yes in reached.items() if not yes]


def kinds_in(value):
    """(axis, kind) of every leaf in a tree of nodes."""
    if isinstance(value, OpenAxis) and value.kind:
        yield value.axis, value.kind
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from kinds_in(getattr(value, field.name))


def test_random_specs_draw_every_kind_of_every_axis():
    layers = [layer for spec in drawn() for stack in spec.stacks for layer in stack.layers]
    found = {pair for value in (*layers, *drawn()) for pair in kinds_in(value)}
    wanted = {(axis, kind) for axis, kind in every_kind() if axis != "pattern" or kind not in REPEATS}
    wanted -= {("head", kind) for kind in COMPARING}
    assert wanted <= found, sorted(wanted - found)


@pytest.mark.parametrize(
    ("leaf", "name"),
    [
        ("rope", "fraction"),
        ("rope", "dims"),
        ("rope", "theta"),
        ("rope", "on_values"),
        ("learned", "offset"),
        ("shaw", "shared"),
    ],
)
def test_random_specs_move_optional_fields_off_their_defaults(leaf, name):
    found = [layer.position for spec in drawn() for layer in spec.stacks[0].layers if layer.position.kind == leaf]
    assert len({getattr(position, name) for position in found}) > 1
