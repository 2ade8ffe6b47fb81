"""Many processes: the same curve and the same tokens however many there are, and no hang when one of them dies."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import InputError
from anyformer.specs import Mixer, Pattern
from anyformer.train.distributed.tensor_parallel import check, cuts, divided, problems
from anyformer.train.ranks import Layout, layout
from tests.contract.draw import every_kind, spec_of_kind
from tests.tolerances import TABLE

STEPS = 10
SERVED = ("position", "mixer", "ffn", "head", "embed", "rope scaling")
"""Axes whose kinds are all compared."""
SPREAD = 9
"""Random specs whose products two processes can share: as many decoders as encoders and encoder-decoders."""
ROOT = Path(__file__).parents[2]
BASE = {"vocab": 37, "width": 24, "depth": 2, "context": 32, "attention": {"heads": 6, "kv_heads": 2, "head_dim": 4},
        "ffn": {"kind": "swiglu", "width": 20}}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What processes found that are forked from one fresh one: `found(group, check)`, the same on every process.

    It takes minutes, so the first of pytest's workers that comes here does it for all of them.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "many"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            command = [sys.executable, "-m", "tests.train.many", str(folder)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
            (folder / "done").write_text(done.stderr[-4000:] if done.returncode else "")
    assert not (folder / "done").read_text(), (folder / "done").read_text()
    notes = {file.stem: json.loads(file.read_text()) for file in folder.glob("*-[0-9].json")}

    def one(group, name):
        all_of = [note[name] for place, note in sorted(notes.items()) if place.rpartition("-")[0] == group]
        assert all_of
        faults = [each["error"] for each in all_of if "error" in each]
        assert not faults, faults[0]
        return all_of

    return one


def apart(curve, other):
    """The largest difference of two loss curves, over the steps of the first."""
    assert curve["loss"]
    return max(abs(loss - other["loss"][step]) for step, loss in curve["loss"].items())


@pytest.mark.parametrize(
    ("group", "name"), [("two", "full"), ("two", "none"), ("two", "tensor"), ("four", "both ways")]
)
def test_run_on_several_processes_gives_the_curve_and_tokens_of_one(found, group, name):
    alone = found("one", "alone")[0]
    for curve in found(group, name):
        assert len(curve["loss"]) == STEPS
        assert curve["digest"] == alone["digest"]
        assert apart(curve, alone) <= TABLE["spread"].limit
        assert max(abs(loss - alone["look"][step]) for step, loss in curve["look"].items()) <= TABLE["spread"].limit
        assert max(abs(norm - alone["norm"][step]) for step, norm in curve["norm"].items()) <= TABLE["spread"].limit


def test_sample_of_a_spread_model_is_spoken_by_the_first_with_whole_weights(found):
    alone, (first, second) = found("one", "alone")[0], found("two", "tensor")
    assert alone["said"] == first["said"]
    assert first["said"][0].startswith("0 True")
    assert not any(second["said"])


def test_resume_on_another_number_of_processes_goes_on_with_the_same_tokens_and_curve(found):
    alone = found("one", "alone")[0]
    pieces = [found("two", "begun")[0], found("four", "moved")[0], found("one_again", "ended")[0]]
    assert [piece["resumed"] for piece in pieces] == [None, 4, 8]
    assert {step: digest for piece in pieces for step, digest in piece["digest"].items()} == alone["digest"]
    assert max(apart(piece, alone) for piece in pieces) <= TABLE["spread"].limit


def test_checkpoint_in_parts_is_read_by_one_process_and_becomes_plain(found):
    alone = found("one", "alone")[0]
    assert found("one_again", "form")[0]["parts"]
    after = found("one_again", "after parts")[0]
    assert after["resumed"] == 8
    assert apart(after, alone) <= TABLE["spread"].limit


def test_checkpoint_rewritten_from_parts_to_plain_and_back_holds_the_same(found):
    told = found("one_again", "rewritten")[0]
    assert told["parts"] == [True, False, True, False]
    assert told["same"]
    assert told["tables"] == ["ema.safetensors", "model.safetensors", "optimizer.safetensors"]
    assert told["loaded"] == int(found("one", "alone")[0]["said"][0].split()[2])


def test_part_with_a_changed_byte_is_found_out(found):
    assert "optimizer-00001-of-00002.safetensors: is damaged" in found("one_again", "damaged")[0]["message"]


def test_batch_that_can_not_be_divided_is_refused_before_anything_is_written(found):
    for each in found("two", "odd batch"):
        assert "3 rows can't be shared out over 2 processes; pick a multiple of 2" in each["message"]
        assert not each["left"]


def test_nan_in_the_rows_of_one_process_moves_nothing_on_any(found):
    assert found("two", "nan") == [{"skipped": True, "moved": 0, "then": False}] * 2


def test_part_that_can_not_be_written_ends_all_and_leaves_the_checkpoint_before(found):
    first, second = found("two", "full disk")
    assert "another process could not write its part" in first["message"]
    assert "No space left on device" in second["message"]
    assert first["step"] == second["step"] == 3
    assert first["left"] == ["step-00000000", "step-00000003"]


def test_dead_process_is_noticed_and_a_restart_resumes(found):
    alone, restart = found("one", "alone")[0], found("restarts", "restart")[0]
    assert "another process of this run is gone" in restart["words"]
    assert restart["resumed"] == 3
    assert apart(restart, alone) <= TABLE["spread"].limit


REFUSED = {("ffn", "moe"), ("mixer", "lsh")}
"""Kinds whose products are not shared; every other one must be, and be right."""


@pytest.mark.parametrize(("axis", "kind"), [pair for pair in every_kind() if pair[0] in SERVED])
def test_shared_products_of_a_kind_equal_the_plain_model_or_are_refused(found, axis, kind):
    for each in found("two", f"{axis} {kind}"):
        assert ("refused" in each) == ((axis, kind) in REFUSED), each
        assert each.get("worst", 0.0) <= TABLE["promise"].limit


@pytest.mark.parametrize("number", range(SPREAD))
@pytest.mark.parametrize("way", ["", " in parts"])
def test_spread_random_spec_equals_the_plain_model(found, number, way):
    for each in found("two", f"draw {number}{way}"):
        assert each["worst"] <= TABLE["promise"].limit


@pytest.mark.parametrize("kind", ["block", "selective"])
def test_recomputed_blocks_of_shared_products_equal_the_plain_model(found, kind):
    for each in found("two", f"recompute {kind}"):
        assert each["worst"] <= TABLE["promise"].limit


@pytest.mark.parametrize("way", ["", " in parts", " recomputed"])
def test_layers_that_share_parameters_equal_the_plain_model_when_spread(found, way):
    for each in found("two", f"shared layers{way}"):
        assert each["worst"] <= TABLE["promise"].limit


@pytest.mark.parametrize("name", ["hybrid 1", "hybrid 2", "none 2", "full 2"])
def test_four_processes_in_two_directions_equal_the_plain_model(found, name):
    for each in found("four", name):
        assert each["worst"] <= TABLE["promise"].limit


TABLE_OF_REFUSALS = {
    "attention.heads: 6 is no multiple of 4": {},
    "attention.kv_heads: 2 is neither 1 nor a multiple of 4": {"attention.heads": 8},
    "ffn.width: 20 is no multiple of 3": {"attention.heads": 3, "attention.kv_heads": 3},
    "attention.qk_norm.scope: 'whole'": {"attention.qk_norm": {"scope": "whole"}},
    "attention.v_norm.scope: 'whole'": {"attention.v_norm": {"scope": "whole"}},
    "attention.pattern: ": {"attention.pattern": "causal & (heads(0, 2) & window(4) | heads(2, 6))"},
    "attention.mixer: 'lsh'": {"attention.mixer.kind": "lsh", "attention.kv_heads": 6},
    "attention.dropout: 0.1": {"attention.dropout": 0.1},
    "ffn.dropout: 0.1": {"ffn.dropout": 0.1},
}


@pytest.mark.parametrize(("words", "changes"), TABLE_OF_REFUSALS.items())
def test_products_that_can_not_be_shared_are_refused_by_name(words, changes):
    spec = af.spec(BASE).vary(changes)
    n = 4 if " 4" in words else 3 if " 3" in words else 2
    with pytest.raises(InputError) as refusal:
        check(spec, n)
    assert words in str(refusal.value)
    assert "It can be 1" in str(refusal.value)


@pytest.mark.parametrize("kind", Pattern.kinds())
def test_pattern_is_refused_exactly_if_it_tells_heads_apart(kind):
    spec = spec_of_kind("pattern", kind).vary({"attention.kv_heads": 2})
    told = any("attention.pattern" in why for why in problems(spec, 2))
    assert told == spec.attention.pattern.per_head


def test_division_cuts_what_goes_by_heads_and_sums_what_all_have():
    spec = af.spec(BASE).vary({"attention.kv_heads": 1, "attention.qk_norm": {}, "position": {"kind": "t5"}})
    found = cuts(spec, 2)
    body = "decoder.blocks.0.attention.body"
    assert found[f"{body}.q.weight"].dim == 0
    assert found[f"{body}.o.weight"].dim == 1
    assert found[f"{body}.k.weight"] == (None, True, False)
    assert found[f"{body}.q_norm.weight"] == (None, True, False)
    assert found["decoder.positions.0.table"].dim == 1
    assert found["embed.tokens.weight"] == (None, False, False)
    assert divided(spec, 2) == spec
    assert divided(spec, 2).stacks[0].layers[0].attention.heads == 3
    assert divided(spec, 2).to_toml() == spec.to_toml()


def test_layout_of_processes_is_what_was_asked_for_or_refused():
    assert layout(8, shard="full", tensor=2, machine=8) == Layout(1, 4, 2)
    assert layout(8, shard="none", tensor=1, machine=8) == Layout(8, 1, 1)
    assert layout(16, shard="hybrid", tensor=2, machine=8) == Layout(2, 4, 2)
    assert layout(16, shard="hybrid", tensor=2, machine=8).dp_size == 8
    with pytest.raises(InputError, match="6 processes can't be grouped by 4; pick one of 1, 2, 3, 6"):
        layout(6, shard="full", tensor=4, machine=6)
    with pytest.raises(InputError, match="needs machines with equally many processes"):
        layout(6, shard="hybrid", tensor=1, machine=4)


def test_mixers_that_are_exact_are_all_shared():
    assert {kind for axis, kind in REFUSED if axis == "mixer"} == {k for k in Mixer.kinds() if not Mixer.named(k).exact}
