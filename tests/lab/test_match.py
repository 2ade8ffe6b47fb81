"""Matching: solved sizes are as close as they are said to be, in the model that is built; what can't be solved is named."""

import math
import random
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer.errors import InputError, SpecError
from anyformer.lab.match import costs, matched, solve
from anyformer.lab.study import Match
from anyformer.lab.variants import Run, Variant, changed, read_base
from anyformer.specs import FeedForward, ModelSpec, Norm, Position
from anyformer.specs.overrides import Overrides
from anyformer.train.config import ModelPart
from tests.contract.contracts import part_of_flops
from tests.contract.draw import PATTERNS, draw, pattern_leaf, spec_of_kind
from tests.lab.small_study import study_of, variants_of, write_base

LENGTH = 16
LARGE = {"width": 48, "ffn.width": 160}
"""Sizes at which a feed-forward channel more is a small part of all."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("match"))


@pytest.fixture(scope="module")
def begun(base):
    return read_base(study_of(base))


def run_of(begun: Run, spec: ModelSpec) -> Run:
    """A run of any spec."""
    config = replace(begun.config, model=ModelPart(spec=Overrides.of(spec.to_data())))
    return changed(Run(config=config, spec=spec), {})


def pair(begun: Run, spec: ModelSpec, changes: dict) -> list[Variant] | None:
    """A spec and another one with changes, if both can be trained."""
    try:
        first = Variant(name="base", run=run_of(begun, spec))
        return [first, replace(first.with_spec(changes), name="other", changes=changes)]
    except (SpecError, InputError):
        return None


def built_params(spec: ModelSpec) -> int:
    return sum(p.numel() for p in af.build(spec, device="meta").parameters())


def built_flops(spec: ModelSpec) -> float:
    """Of a forward pass, counted by torch; scores, which kernels compute for more pairs than are allowed, by the spec."""
    model = af.build(spec).eval()
    ids_BT = torch.randint(4, 30, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids_BT)
    by_module = counter.get_flop_counts().items()
    counted = sum(sum(by.values()) for name, by in by_module if part_of_flops(name) is not None)
    return counted + spec.count().flops(LENGTH).scores


def trained_decoder(spec: ModelSpec) -> bool:
    return spec.topology == "decoder" and spec.embed.kind == "tokens" and spec.head.kind == "lm"


def check_pair(every: list[Variant], to: str, match: Match) -> bool:
    """Solve, and look at the models that come of it; whether there was something to solve."""
    try:
        base, other = matched(every, match)
    except InputError as error:
        refused = str(error)
    else:
        check_built(every, base, other, to, match)
        return bool(other.solved)
    # Then nothing near is within the tolerance, and the closest is named.
    best = solve(every[1], costs(to), costs(to)(every[0]), match)
    assert best.distance > match.within
    assert f"other: the closest is {said(best.variant)}, {best.off_by:+.3%}" in refused
    assert closest_by_hand(best.variant, every[0], to) >= best.distance - 1e-12
    return False


def check_built(every: list[Variant], base: Variant, other: Variant, to: str, match: Match) -> None:
    assert (base.solved, base.off_by) == ({}, 0.0)
    built = built_params if to == "params" else built_flops
    mine, theirs = built(base.run.spec), built(other.run.spec)
    assert abs(theirs / mine - 1) <= match.within == 0.005
    assert other.off_by == pytest.approx(theirs / mine - 1, abs=1e-12)
    # What was solved is what is trained, and nothing else was changed.
    assert other.run.config.model.spec.written() == other.run.spec.to_data()
    assert other.run.spec == every[1].run.spec.vary(other.solved)


def said(variant: Variant) -> str:
    return ", ".join(f"{name}={value}" for name, value in variant.solved.items()) or "as it is"


def closest_by_hand(best: Variant, base: Variant, to: str) -> float:
    """How close the two feed-forward widths beside a solved one come."""
    cost, found = costs(to), math.inf
    for away in (-1, 1):
        width = best.solved.get("ffn.width", 0) + away
        if width > 0:
            found = min(found, abs(cost(best.with_spec({"ffn.width": width})) / cost(base) - 1))
    return found


@pytest.mark.parametrize("to", ["params", "flops"])
def test_match_of_random_decoders_is_close_in_the_built_model(begun, to):
    """Of each drawn spec, one with another feed-forward, position or number of layers is solved for."""
    solved = tried = 0
    for seed in range(60):
        rng, spec = random.Random(seed), draw(seed)
        if not trained_decoder(spec):
            continue
        changes = rng.choice([
            {"ffn.kind": rng.choice(FeedForward.kinds())},
            {"position.kind": rng.choice(Position.kinds())},
            {"depth": spec.depth + 1},
            {"attention.kv_heads": 1},
            {"norm.placement": rng.choice(("sandwich", "post")), "ffn.kind": "glu"},
        ])  # fmt: skip
        try:
            every = pair(begun, spec.vary(LARGE), changes)
        except SpecError:
            continue
        if every is not None:
            tried += 1
            solved += check_pair(every, to, Match(to=to, by=("ffn.width",)))
    assert tried >= 14
    assert solved >= 8


KINDS = [
    *(("position", kind) for kind in Position.kinds()),
    *(("ffn", kind) for kind in FeedForward.kinds()),
    *(("norm", kind) for kind in Norm.kinds()),
]


@pytest.mark.parametrize("to", ["params", "flops"])
def test_match_of_every_kind_of_the_registries_is_close_in_the_built_model(begun, to):
    """A kind, with fields drawn, in place of the base's, at the base's cost."""
    done = set[tuple[str, str]]()
    for axis, kind in KINDS:
        spec = spec_of_kind(axis, kind)
        node = spec.to_data().get(axis, {})
        node = {"kind": node} if isinstance(node, str) else node
        plain = begun.spec.vary({**LARGE, "attention.head_dim": 4, "attention.heads": 6, "depth": 2, "context": 64})
        changes = {f"{axis}.{name}": value for name, value in node.items() if name != "width"}
        every = pair(begun, plain, changes)
        if every is None:
            continue
        check_pair(every, to, Match(to=to, by=("ffn.width",)))
        done.add((axis, kind))
    assert len(done) >= len(KINDS) - 4, sorted(set(KINDS) - done)


def test_match_of_every_pattern_is_close_by_its_allowed_pairs(begun):
    """Fewer pairs are made up for by wider feed-forwards; kernels differ in what they compute, so the spec counts."""
    done = 0
    for kind in PATTERNS:
        spec = begun.spec.vary({**LARGE, "depth": 2, "context": 64})
        every = pair(begun, spec, {"attention.pattern": f"causal & ({pattern_leaf(random.Random(1), kind, 2)})"})
        if every is None:
            continue
        base, other = matched(every, Match(to="flops", by=("ffn.width",)))
        found = [each.run.spec.count().flops(LENGTH).total for each in (base, other)]
        assert abs(found[1] / found[0] - 1) <= 0.005
        assert (other.run.spec.ffn.width or 0) >= (base.run.spec.ffn.width or 0) > 0
        done += 1
    assert done >= 8


def test_match_by_coarse_and_fine_knobs_respects_what_divides(begun):
    """Widths are multiples of what the heads need, layers whole, and the feed-forward makes up for the rest."""
    spec = begun.spec.vary({"width": 96, "ffn.width": 256, "depth": 4, "attention.heads": 6, "context": 64})
    for changes in ({"head.tied": False, "vocab": 97}, {"ffn.kind": "relu"}, {"attention.kv_heads": 2}):
        every = pair(begun, spec, changes)
        assert every is not None
        for by in (("width", "ffn.width"), ("depth", "ffn.width"), ("depth", "width", "ffn.width")):
            base, other = matched(every, Match(to="params", by=by))
            assert abs(built_params(other.run.spec) / built_params(base.run.spec) - 1) <= 0.005
            assert other.run.spec.width % 12 == 0
            assert set(other.solved) <= set(by)


def test_match_by_round_widths_first_and_by_single_channels_where_they_are_too_coarse(begun):
    spec = begun.spec.vary({"width": 96, "ffn.width": 303, "depth": 4, "context": 64})
    every = pair(begun, spec, {"ffn.kind": "relu"})
    assert every is not None
    rounded = matched(every, Match(to="params", tolerance=0.02))[1]
    exact = matched(every, Match(to="params", tolerance=0.0009))[1]
    assert rounded.solved["ffn.width"] % 8 == 0
    assert exact.solved["ffn.width"] % 8 != 0
    assert abs(exact.off_by or 1) <= 0.0009


def test_match_where_only_some_widths_can_be_finds_the_nearest_of_them(begun):
    """With a quarter of each head rotated, only every fourth width can be: the one above is nearer than the one below."""
    spec = begun.spec.vary({
        "width": 128, "depth": 2, "attention.heads": 4, "position": {"kind": "rope", "fraction": 0.25}, "context": 64,
    })  # fmt: skip
    for depth, tied in ((3, True), (4, True), (3, False), (5, False)):
        every = pair(begun, spec, {"depth": depth, "head.tied": tied})
        assert every is not None
        cost, target = costs("params"), float(every[0].params)
        best = solve(every[1], cost, target, Match(to="params", by=("width",), tolerance=0.0001))
        by_hand = {}
        for width in range(8, 400, 8):
            try:
                by_hand[width] = abs(cost(every[1].with_spec({"width": width})) / target - 1)
            except (SpecError, InputError):
                continue
        assert best.distance == pytest.approx(min(by_hand.values()))
        assert best.variant.run.spec.width == min(by_hand, key=by_hand.__getitem__)


def test_match_does_not_turn_what_a_variant_is_about(base):
    everything = {"to": "flops", "by": ["width", "depth", "ffn.width", "steps"]}
    bundles = [
        {"name": "wide", "set": {"ffn.width": 48}},
        {"name": "long", "set": {"stages.steps": 24, "depth": 2}},
        {"name": "some layers", "set": {"layers.order": "1 a", "layers.a.ffn.width": 20, "depth": 3}},
        {"name": "sized", "set": {"width": 32, "depth": 2, "ffn.width": 40, "stages.steps": 5}},
    ]
    study = study_of(base, set={"stages.steps": 1000}, vary={"ffn.kind": ["gelu"]}, variants=bundles, match=everything)
    every = {each.name: each for each in variants_of(base, set={"stages.steps": 1000}, variants=bundles)}
    by = {name: solve(each, costs("flops"), every["base"].train_flops, study.match) for name, each in every.items()}
    assert by["wide"].variant.run.spec.ffn.width == 48
    assert by["wide"].distance <= 0.005
    assert by["long"].variant.run.config.steps == 24
    assert by["long"].variant.run.spec.depth == 2
    assert "steps" not in by["long"].variant.solved
    layer = by["some layers"].variant.run.spec.stacks[0].layers[0]
    assert (layer.ffn.width, by["some layers"].variant.run.spec.depth) == (20, 3)
    by_width = solve(
        every["some layers"], costs("flops"), every["base"].train_flops, Match(to="flops", by=("ffn.width",))
    )
    assert (by_width.variant.solved, by_width.variant.run) == ({}, every["some layers"].run)
    assert by["sized"].variant.solved == {}
    assert by["sized"].variant.run.config.steps == 5


def test_match_by_steps_keeps_sizes_and_the_shares_of_stages(base):
    every = variants_of(base, set={"stages.steps": 1000}, vary={"depth": [2, 3], "stages.length": [8]})
    found = matched(every, Match(to="flops", by=("steps",)))
    for each, given in zip(found, every, strict=True):
        assert each.run.spec == given.run.spec
        assert abs(each.train_flops / every[0].train_flops - 1) <= 0.005
    assert [each.solved for each in found] == [{}, *({"steps": each.run.config.steps} for each in found[1:])]
    assert found[1].run.config.steps < 1000 < found[3].run.config.steps


def test_match_that_can_not_be_names_every_variant_and_its_closest(base):
    every = variants_of(base, vary={"depth": [2, 3], "position.kind": ["alibi"], "width": [32]})
    with pytest.raises(InputError) as caught:
        matched(every, Match(to="params", by=("width",)))
    lines = str(caught.value).splitlines()
    assert lines[0] == "params can't be matched within 0.50% of the base by width, so nothing was begun:"
    assert [line.split(":")[0].strip() for line in lines[1:-1]] == ["depth=2", "depth=3", "width=32"]
    assert "width=32: the closest is as it is, +" in lines[3]
    assert lines[-1].startswith("add a finer knob (match.by), a larger tolerance, or leave these variants out")


def test_match_by_a_knob_that_changes_nothing_ends(begun):
    """Layers that share their parameters have as many at every depth: no depth is enough, and none is tried for ever."""
    spec = begun.spec.vary({"width": 48, "depth": 4, "context": 64})
    every = pair(begun, spec, {"layers.shared": "all"})
    assert every is not None
    with pytest.raises(InputError, match=r"other: the closest is .*, -"):
        matched(every, Match(to="params", by=("depth",)))
