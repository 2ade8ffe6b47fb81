"""Variants: which there are and what they are called; what all of them share to the bit; and what can't be is refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.lab.experiment import Experiment
from anyformer.lab.study import Match
from anyformer.lab.variants import Run, Variant, read_base, variants
from anyformer.specs import FeedForward, Norm, Position
from anyformer.specs.parameters import weights
from anyformer.train.resolve import resolved
from tests.lab.small_study import BASE, study_of, variants_of, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("variants"))


def names(every: list[Variant]) -> list[str]:
    return [each.name for each in every]


def refused(base: str, **more) -> str:
    with pytest.raises(InputError) as caught:
        variants_of(base, **more)
    return str(caught.value)


def rates(run: Run) -> list[float | None]:
    """All learning rates of a run."""
    optim = run.config.optim
    leaf = optim.leaf
    return [leaf.matrices, optim.tables, optim.vectors, optim.head]


def test_variants_one_axis_at_a_time_are_named_by_what_is_changed(base):
    every = variants_of(
        base,
        vary={"ffn.kind": ["relu", "gelu"], "depth": [2], "norm.eps": [1e-3], "head.tied": [False], "run.clip": [0.5]},
    )
    assert names(every) == [
        "base", "depth=2", "ffn=relu", "ffn=gelu", "head.tied=false", "norm.eps=0.001", "run.clip=0.5",
    ]  # fmt: skip
    by = {each.name: each for each in every}
    assert by["depth=2"].run.spec.depth == 2
    assert by["ffn=gelu"].run.spec.ffn.kind == "gelu"
    assert by["run.clip=0.5"].run.config.run.clip == 0.5
    assert by["ffn=relu"].changes == {"ffn.kind": "relu"}
    # The base says what its own values are.
    assert by["base"].changes == {
        "depth": 1, "ffn.kind": by["base"].run.spec.ffn.kind, "head.tied": True, "norm.eps": by["base"].run.spec.norm.leaf.eps,
        "run.clip": 1.0,
    }  # fmt: skip
    # Nothing else is touched, and what a job is given says so too.
    kept = by["base"].run.spec
    assert by["ffn=relu"].run.spec == kept.vary({"ffn.kind": "relu"})
    assert by["ffn=relu"].run.config.model.spec.written() == kept.vary({"ffn.kind": "relu"}).to_data()


def test_variants_of_a_grid_are_all_combinations_but_the_base(base):
    every = variants_of(base, design="grid", vary={"depth": [1, 2], "head.tied": [False, True]})
    assert names(every) == [
        "base", "depth=1, head.tied=false", "depth=2, head.tied=false", "depth=2, head.tied=true",
    ]  # fmt: skip
    assert (every[2].run.spec.depth, every[2].run.spec.to_data()["head"]["tied"]) == (2, False)


def test_variants_that_leave_one_out_have_the_plain_value(base):
    every = variants_of(base, design="leave-one-out", vary={"head.tied": [], "ffn.kind": ["gelu"], "depth": [2, 3]})
    assert names(every) == ["base", "depth=2", "depth=3", "without ffn.kind", "without head.tied"]
    assert every[4].run.spec.to_data()["head"]["tied"] is False
    said = refused(base, design="leave-one-out", vary={"attention.softcap": []})
    assert "attention.softcap: the base has the plain value, 'none', so there is nothing to leave out" in said


def test_variants_in_bundles_have_several_changes_under_a_name(base):
    bundles = [
        {"name": "old", "set": {"ffn.kind": "relu", "norm.kind": "layernorm", "stages.steps": 6}},
        {"name": "hot", "set": {"lr": 4, "depth": 2}},
    ]
    every = variants_of(base, vary={"depth": [3]}, variants=bundles)
    assert names(every) == ["base", "depth=3", "old", "hot"]
    old, hot = every[2:]
    assert (old.run.spec.ffn.kind, old.run.spec.norm.leaf.kind, old.run.config.steps) == ("relu", "layernorm", 6)
    assert rates(hot.run) == [rate and 4 * rate for rate in rates(every[0].run)]


def test_variants_that_are_the_base_are_left_out_and_twins_are_refused(base):
    own = read_base(study_of(base)).spec
    assert names(variants_of(base, vary={"depth": [1, 2], "ffn.kind": [own.ffn.kind]})) == ["base", "depth=2"]
    said = refused(base, vary={"depth": [2]}, variants=[{"name": "deep", "set": {"depth": 2}}])
    assert "deep: is the same as depth=2; leave one of them out" in said


def test_variants_of_lr_multiply_every_learning_rate(base):
    every = variants_of(base, vary={"lr": [0.5, 1, 8]})
    assert names(every) == ["base", "lr=0.5", "lr=8"]
    assert every[0].changes == {"lr": 1.0}
    for each, factor in zip(every[1:], (0.5, 8), strict=True):
        assert rates(each.run) == [rate and factor * rate for rate in rates(every[0].run)]
        assert each.run.spec == every[0].run.spec
    assert "lr: -1 is not a factor above 0" in refused(base, vary={"lr": [-1]})
    assert "lr: True is not a factor above 0" in refused(base, vary={"lr": [True]})


def test_variants_crossed_with_an_axis_are_there_with_each_of_its_values(base):
    every = variants_of(base, vary={"depth": [2], "lr": [1, 2]}, cross=["lr"])
    assert names(every) == ["base", "lr=2", "depth=2, lr=1", "depth=2, lr=2"]


def test_variants_of_a_second_run_keep_the_first_one(base):
    then = {"set": {"stages.steps": 4}, "convert": {"kv_heads": 1}}
    every = variants_of(base, then=then, vary={"then.convert.pool": ["mean", "first"], "then.stages.steps": [8]})
    assert names(every) == ["base", "then.convert.pool=mean", "then.convert.pool=first", "then.stages.steps=8"]
    assert all(each.run == every[0].run for each in every)
    assert [each.then.config.steps for each in every if each.then] == [4, 4, 4, 8]
    assert [each.convert for each in every[1:3]] == [{"kv_heads": 1, "pool": "mean"}, {"kv_heads": 1, "pool": "first"}]
    assert {each.last.spec.attention.kv_heads for each in every} == {1}
    assert every[0].train_flops == every[0].run.train_flops + every[0].last.train_flops
    # Surgery that changes no shape shows in what the second run costs.
    seen = variants_of(base, then={"convert": {"window": 3}}, vary={"depth": [2]})[0]
    assert seen.last.train_flops < seen.run.train_flops
    assert seen.last.spec.attention.pattern is not None


def test_second_run_that_can_not_be_is_refused_with_the_nearest_name(base):
    assert "then.convert.kv_haeds: is unknown; did you mean 'kv_heads'?" in refused(
        base, then={}, vary={"then.convert.kv_haeds": [1]}
    )
    said = refused(base, then={"set": {"width": 32}}, vary={"depth": [2]})
    assert "then: " in said
    assert "change shapes by then.convert" in said
    assert "kv-heads: the 2 of layer 0 of the decoder can't be pooled into 3" in refused(
        base, then={"convert": {"kv_heads": 3}}, vary={"depth": [2]}
    )
    assert "the study has no second run; add the table [then]" in refused(base, vary={"then.stages.steps": [4]})


WRONG = {
    "ffn.kind": ["reluu", "gelu"], "positon.kind": ["alibi"], "attention.kv_heads": [3], "optim.decai": [0.1],
    "stages.lenght": [8], "lr": [0], "norm.placement": ["pree"],
}  # fmt: skip


def test_unknown_axes_and_values_are_all_named_before_anything_is_written(base, tmp_path):
    folder = tmp_path / "study"
    with pytest.raises(InputError) as caught:
        Experiment(study=study_of(base, vary=WRONG), folder=folder, device="cpu").run()
    said = str(caught.value)
    assert said.startswith("these variants can't be, so nothing was begun:\n")
    for line in (
        "ffn=reluu: ffn.kind: 'reluu' is unknown; did you mean 'relu'?",
        "positon=alibi: positon: is unknown; did you mean 'position'?",
        "attention.kv_heads=3: attention.kv_heads: 3 does not divide heads=2; pick one of [1, 2]",
        "optim.decai: is unknown; did you mean 'decay'?",
        "stages[0].lenght: is unknown; did you mean 'length'?",
        "lr=0: lr: 0 is not a factor above 0",
        "norm.placement: 'pree' is unknown; did you mean 'pre'?",
    ):
        assert line in said
    assert "ffn=gelu" not in said
    assert not folder.exists()


def test_study_that_can_not_be_matched_writes_nothing(base, tmp_path):
    folder = tmp_path / "study"
    study = study_of(base, vary={"depth": [2]}, match={"to": "params", "by": ["width"]})
    with pytest.raises(InputError, match="depth=2: the closest is "):
        Experiment(study=study, folder=folder, device="cpu").run()
    assert not folder.exists()


def test_base_that_can_not_be_read_is_refused_with_the_way_out(base, tmp_path):
    with pytest.raises(InputError, match=r"base: .*none.toml: can't be read: No such file"):
        read_base(study_of(str(tmp_path / "none.toml")))
    with pytest.raises(InputError, match="quickstart is an architecture, and says nothing of data; name a folder"):
        read_base(study_of("quickstart"))
    with pytest.raises(InputError, match=r"set.lr: is for variants"):
        read_base(study_of(base, set={"lr": 2}))
    claims = [{"claim": "x", "paper": "y", "better": "depht=2"}]
    assert "claims: there is no variant 'depht=2'; they are base, depth=2" in refused(
        base, vary={"depth": [2]}, claims=claims
    )


def test_base_is_a_config_a_spec_a_preset_or_a_run_folder(base, tmp_path):
    config = read_base(study_of(base)).config
    data = {"data.folder": config.data.folder}
    spec = tmp_path / "spec.toml"
    spec.write_text(read_base(study_of(base)).spec.to_toml())
    of_spec = read_base(study_of(str(spec), set=data | {"stages.batch": 2, "stages.steps": 3}))
    assert of_spec.spec == read_base(study_of(base)).spec
    # A stage that nobody wrote is no longer than the context.
    assert (of_spec.config.stages[0].length, of_spec.config.stages[0].batch, of_spec.config.steps) == (32, 2, 3)
    (tmp_path / "config.toml").write_text(BASE.replace("DATA", config.data.folder).replace("STEPS", "7"))
    assert read_base(study_of(str(tmp_path))).config.steps == 7
    changed = read_base(study_of(base, set={"depth": 2, "stages.steps": 5}))
    assert (changed.spec.depth, changed.config.steps) == (2, 5)
    preset = read_base(study_of("gpt2", set=data | {"depth": 2, "stages.length": 16}))
    assert (preset.spec.width, preset.spec.depth, preset.config.stages[0].length) == (768, 2, 16)


UNTOUCHED = {
    "position.kind": [kind for kind in Position.kinds() if kind not in ("axial", "longrope")],
    "norm.kind": list(Norm.kinds()),
    "ffn.kind": [kind for kind in FeedForward.kinds() if kind != "moe"],
    "block.wiring": ["parallel2"],
    "attention.pattern": ["causal & window(4)"],
    "attention.qk_norm.kind": ["rmsnorm"],
    "head.softcap": [5.0],
}


def possible(base: str) -> list[Variant]:
    """The base and one variant for each kind that the rules let it have."""
    found = list[Variant]()
    for axis, values in UNTOUCHED.items():
        for value in values:
            try:
                every = variants_of(base, vary={axis: [value]})
            except InputError:
                continue
            found += every[1:] if found else every
    return found


def test_variants_with_one_seed_begin_with_the_same_weights_but_for_what_is_varied(base):
    """A parameter that has its name, shape and role in both begins with the same values; only what is new is drawn."""
    every = possible(base)
    assert len(every) >= 25
    first, own = af.build(every[0].run.spec, seed=3), weights(every[0].run.spec)
    other = dict(af.build(every[0].run.spec, seed=4).named_parameters())
    drawn = [name for name, p in first.named_parameters() if not torch.equal(p, other[name])]
    assert len(drawn) > 5
    for variant in every[1:]:
        model, theirs = af.build(variant.run.spec, seed=3), weights(variant.run.spec)
        mine = dict(first.named_parameters())
        shared = [n for n in mine if n in theirs and (own[n].shape, own[n].role) == (theirs[n].shape, theirs[n].role)]
        # What is not varied is there under the same name: embedding, attention and all that the change leaves alone.
        assert {name for name in mine if ".q." in name or name.startswith("embed")} <= set(shared), variant.name
        different = [name for name in shared if not torch.equal(mine[name], dict(model.named_parameters())[name])]
        assert different == [], variant.name


def test_match_of_nothing_leaves_variants_as_they_are(base):
    assert Match().within == 0
    every = variants(study_of(base, vary={"depth": [2]}), read_base(study_of(base)))
    assert [each.solved for each in every] == [{}, {}]


def test_variant_of_a_base_with_weights_keeps_its_other_overrides(base, tmp_path):
    af.save(af.build(read_base(study_of(base)).spec, seed=0), tmp_path / "weights")
    own = f'[model]\nweights = "{tmp_path / "weights"}"\n[model.spec]\nattention = {{ softcap = 30.0 }}\n[data]'
    fine = tmp_path / "fine.toml"
    fine.write_text(re.sub(r"\[model\.spec\].*?\[data\]", lambda _: own, Path(base).read_text(), flags=re.DOTALL))
    _, made = variants_of(str(fine), vary={"attention.pattern": ["window(8)"]})
    again = resolved(made.run.config.model, vocab=32, ids={})
    assert (again.attention.softcap, str(again.attention.pattern)) == (30.0, "window(8)")
    assert again == made.run.spec


@pytest.mark.parametrize("name", ["run.seed", "run.folder", "compute.device"])
def test_what_a_study_fills_in_can_not_be_varied(base, name):
    with pytest.raises(InputError, match=f"{name}: (is the study's|all runs)"):
        variants_of(base, vary={name: ["1"]})


def test_crossed_axis_leaves_out_what_is_the_base_with_it(base):
    made = variants_of(base, vary={"position.kind": ["rope", "alibi"], "lr": [0.5, 2.0]}, cross=["lr"])
    assert [v.name for v in made] == [
        "base", "lr=0.5", "lr=2", "position=alibi, lr=0.5", "position=alibi, lr=2",
    ]  # fmt: skip


def test_base_does_not_say_values_that_are_unset(base):
    (first, *_) = variants_of(base, vary={"attention.kv_heads": [1], "attention.softcap": [9.0]})
    assert first.changes == {}


def test_tokens_of_a_step_are_the_mean_over_stages(base):
    run = read_base(study_of(base))
    stages = (
        replace(run.config.stages[0], steps=10, length=8, batch=2),
        replace(run.config.stages[0], steps=30, length=16, batch=4),
    )
    assert Run(config=replace(run.config, stages=stages), spec=run.spec).tokens_per_step == (10 * 16 + 30 * 64) / 40
