"""Study files: they survive a round trip, and everything that is wrong with one is named at once."""

import subprocess
import sys

import pytest

from anyformer.errors import InputError
from anyformer.lab.study import Budget, Match, Study

WHOLE = """
title = "Everything that a study can say"
base = "recipes/base.toml"
set = { "stages.length" = 128, depth = 3 }
design = "grid"
cross = ["lr"]
budget = "20M tokens"
seeds = 5
first_seed = 7
metric = "loss@512"
derive = [{ name = "edge", along = "lr", below = 4.5 }]
[vary]
"ffn.kind" = ["relu", "swiglu"]
"attention.kv_heads" = [1, 2]
lr = [1, 2.5]
[match]
to = "flops"
by = ["width", "ffn.width"]
tolerance = 0.01
[tune]
factors = [0.5, 1.0]
seeds = 2
[measure]
lengths = [512, 1024]
rows = ["packed"]
steps_to = [3.5]
gradients = true
decode_batch = 4
[then]
set = { "stages.steps" = 60 }
convert = { kv_heads = 2 }
[[variants]]
name = "both"
set = { "ffn.kind" = "relu", "norm.kind" = "layernorm", "then.convert.pool" = "first" }
[[claims]]
claim = "Gated is better"
paper = "Shazeer 2020"
better = "both"
margin = 0.02
"""


def refused(data):
    with pytest.raises(InputError) as caught:
        Study.from_data(data, "made.toml")
    return str(caught.value)


def test_study_written_as_toml_and_read_again_is_the_same(tmp_path):
    place = tmp_path / "study.toml"
    place.write_text(WHOLE)
    study = Study.from_file(place)
    assert study.axes() == {"attention.kv_heads": [1, 2], "ffn.kind": ["relu", "swiglu"], "lr": [1, 2.5]}
    assert study.then is not None
    assert study.match == Match(to="flops", by=("width", "ffn.width"), tolerance=0.01)
    again = tmp_path / "again.toml"
    again.write_text(study.to_toml())
    assert Study.from_file(again) == study
    assert Study.from_data(study.to_data()) == study
    smallest = Study(base="quickstart")
    again.write_text(smallest.to_toml())
    assert Study.from_file(again) == smallest


def test_study_with_many_faults_names_each_with_the_nearest_name():
    said = refused({
        "base": "x.toml", "seedz": 3, "design": "gird", "seeds": 0, "first_seed": -1, "budget": "5 parsecs", "cross": ["lrr"],
        "vary": {"lr": [1, 2], "ffn.kind": []},
        "match": {"to": "flop", "by": ["ffn.widht", "steps"], "tolerance": 2.0},
        "measure": {"lengths": [1], "decode_batch": 0, "decode_context": -1, "speedz": True},
        "tune": {"factors": [1.0, -2.0], "seeds": 0},
        "variants": [{"name": "a", "set": {"depth": 1}}, {"name": "a", "set": {"depth": 2}}],
        "derive": [{"name": "edge", "along": "lrr", "below": 1.0}],
    })  # fmt: skip
    assert said.startswith("made.toml can't be used:\n")
    for line in (
        "seedz: is unknown; did you mean 'seeds'?",
        "design: 'gird'",
        "did you mean 'grid'?",
        "seeds: 0 is not at least 1",
        "first_seed: -1 is not from 0 to 2^31 - 1",
        "budget: '5 parsecs' can't be read; write a time (90s, 5m, 2h), or 2000 steps",
        "cross: 'lrr' is no axis of vary; did you mean 'lr'?",
        "vary.ffn.kind: has no value; give at least one",
        "match.to: 'flop'",
        "did you mean 'flops'?",
        "match.by: 'ffn.widht' can't be solved for; did you mean 'ffn.width'?",
        "match.tolerance: 2 is not between 0 and 1",
        "measure.lengths: [1] are not all at least 2",
        "measure.decode_batch: 0 is not at least 1",
        "measure.decode_context: -1 is not at least 0",
        "measure.speedz: is unknown; did you mean 'speeds'?",
        "tune.factors: [1.0, -2.0] are not all above 0",
        "tune.seeds: 0 is not at least 1",
        "variants: 'a' is there twice",
        "derive: along: 'lrr' is not varied; did you mean 'lr'?",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"vary": {"lr": [2]}, "match": {"to": "params", "by": ["steps"]}}, "match.by: 'steps' changes no parameter"),
        ({"vary": {"lr": [2]}, "match": {"to": "flops", "by": []}}, "match.by: names nothing to solve for"),
        ({"seeds": 1}, "vary: nothing is varied, and one run has nothing to be compared with"),
        (
            {"vary": {"lr": [2]}, "match": {"to": "time"}, "measure": {"speeds": False}},
            "measure.speeds: is false, and match.to = 'time' needs it",
        ),
        ({"variants": [{"name": "base", "set": {"depth": 2}}]}, "variants: 'base' is there twice"),
        ({"vary": [1]}, "vary: [1] is not a table of overrides"),
        ({"vary": {"lr": [2]}, "claims": [{"claim": "x"}]}, "paper"),
    ],
)
def test_study_that_contradicts_itself_is_refused(data, said):
    assert said in refused({"base": "x.toml"} | data)


def test_study_without_a_base_or_a_readable_file_is_refused(tmp_path):
    assert "base: is missing" in refused({"vary": {"lr": [2]}})
    with pytest.raises(InputError, match="can't be read: No such file"):
        Study.from_file(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("base = [")
    with pytest.raises(InputError, match="is not TOML"):
        Study.from_file(broken)


def test_match_without_a_tolerance_has_that_of_what_is_matched():
    assert [Match(to=to).within for to in ("none", "params", "flops", "time")] == [0.0, 0.005, 0.005, 0.03]
    assert Match(to="time", tolerance=0.2).within == 0.2


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("90s", "seconds", 90.0),
        ("5m", "seconds", 300.0),
        ("0.5 hours", "seconds", 1800.0),
        ("2000 steps", "steps", 2000.0),
        ("2k steps", "steps", 2000.0),
        ("20M tokens", "tokens", 2e7),
        ("1.5B tokens", "tokens", 1.5e9),
        ("1e15 flops", "flops", 1e15),
        (" 3e-2 G FLOPs ", "flops", 3e7),
    ],
)
def test_budget_is_read_with_its_unit(text, kind, amount):
    found = Budget.parse(text)
    assert found.kind == kind
    assert found.amount == pytest.approx(amount)


@pytest.mark.parametrize(
    "text", ["", "5", "steps", "5 lightyears", "-3 steps", "0 steps", "5k s", "1.2.3 steps", "2Mm", "1e400 flops"]
)
def test_budget_that_is_none_is_refused_with_examples(text):
    with pytest.raises(InputError, match="budget: "):
        Budget.parse(text)


def test_study_is_read_without_torch(tmp_path):
    place = tmp_path / "study.toml"
    place.write_text(WHOLE)
    code = (
        "import sys; from anyformer.lab.study import Study; from anyformer.lab import experiment, variants, match, plan; "
        f"Study.from_file({str(place)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"metric": "acuracy"}, "metric: 'acuracy' is measured nowhere; did you mean 'accuracy'?"),
        ({"metric": "loss@512"}, "metric: 'loss@512' is measured nowhere; add 512 to measure.lengths"),
        ({"match": {"to": "time"}, "then": {}}, "match.to: 'time' is measured of one run"),
        ({"derive": [{"name": "max_lr", "along": "lr", "below": 4.0}]}, "derive[0].name: 'max_lr' does not say"),
        (
            {"claims": [{"claim": "a", "paper": "b", "better": "base", "margin": 0.0}]},
            "claims[0].margin: 0 is not above 0",
        ),
    ],
)
def test_study_that_could_not_be_judged_is_refused_before_it_runs(more, words):
    with pytest.raises(InputError) as caught:
        Study.from_data({"base": "x.toml", "vary": {"lr": [1, 2]}, "seeds": 2} | more)
    assert words in str(caught.value)
