"""Plans: the jobs of a study, what they share, what is kept on disk, and which study may go on with one."""

import json
from dataclasses import replace

import pytest

from anyformer.errors import InputError
from anyformer.lab.match import matched
from anyformer.lab.plan import FILE, TUNING_SEEDS, Plan, plan_of, slugs, with_threads
from anyformer.lab.study import Study
from anyformer.lab.variants import read_base, variants
from tests.lab.small_study import study_of, variants_of, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("plan"))


def planned(study: Study) -> Plan:
    every = matched(variants(study, read_base(study)), study.match) if study.match.to != "none" else None
    every = every or variants(study, read_base(study))
    told = {
        "budget": "12 steps",
        "match": "nothing",
        "machine": {"device": "cpu"},
        "devices": ["cpu"],
        "date": "2026-01-01",
    }
    return plan_of(every, study, **told)


def test_plan_has_a_job_for_each_variant_and_seed(base, tmp_path):
    study = study_of(base, vary={"ffn.kind": ["relu"], "lr": [2]}, seeds=3, first_seed=5)
    jobs = planned(study).jobs(study, tmp_path)
    assert [(job.variant, job.seed) for job in jobs] == [
        (name, seed) for seed in (5, 6, 7) for name in ("base", "ffn=relu", "lr=2")
    ]
    assert len({job.id for job in jobs}) == len({job.folder for job in jobs}) == 9
    assert not any(job.after or job.shared for job in jobs)
    assert jobs[1].config["model"]["spec"]["ffn"]["kind"] == "relu"
    # The seed and the folder are given when a job is executed.
    assert all("seed" not in job.config["run"] and "folder" not in job.config["run"] for job in jobs)
    one, two = jobs[0].config["optim"], jobs[2].config["optim"]
    assert two["matrices"] == 2 * one["matrices"]


def test_plan_lets_variants_that_differ_only_in_the_second_run_share_the_first(base, tmp_path):
    then = {"set": {"stages.steps": 4}, "convert": {"kv_heads": 1}}
    vary = {"then.convert.pool": ["mean", "first"], "then.stages.steps": [8], "depth": [2]}
    study = study_of(base, then=then, vary=vary)
    plan = planned(study)
    jobs = plan.jobs(study, tmp_path)
    first, second = [job for job in jobs if not job.after], [job for job in jobs if job.after]
    # Two architectures and two seeds; five variants and two seeds.
    assert (len(first), len(second)) == (4, 10)
    assert jobs[:4] == first
    assert all(job.shared for job in first)
    assert not any(job.shared for job in second)
    known = {job.id: job for job in first}
    for job in second:
        before = known[job.after]
        assert (job.start, job.seed) == (before.folder, before.seed)
        assert (job.variant == "depth=2") == (before.config["model"]["spec"]["depth"] == 2)
    by = {job.variant: job for job in second if job.seed == 0}
    assert by["then.convert.pool=first"].convert == {"kv_heads": 1, "pool": "first"}
    assert by["then.stages.steps=8"].config["stages"][0]["steps"] == 8
    assert by["base"].config["stages"][0]["steps"] == 4


def test_plan_tunes_on_seeds_that_no_judged_run_has(base, tmp_path):
    study = study_of(base, vary={"depth": [2]}, tune={"factors": [0.5, 4], "seeds": 2}, seeds=5)
    plan = planned(study)
    tuning, judged = plan.tuning_jobs(study, tmp_path), plan.jobs(study, tmp_path, {"base": 4.0, "depth=2": 0.5})
    assert len(tuning) == 2 * 2 * 2
    seeds = {job.seed for _, _, job in tuning}
    assert seeds == {TUNING_SEEDS, TUNING_SEEDS + 1}
    assert seeds.isdisjoint({job.seed for job in judged})
    assert {job.folder for _, _, job in tuning}.isdisjoint({job.folder for job in judged})
    own = plan.variants[0].config["optim"]["matrices"]
    assert {(name, job.config["optim"]["matrices"] / own) for name, _, job in tuning} == {
        (name, factor) for name in ("base", "depth=2") for factor in (0.5, 4.0)
    }
    assert {(job.variant, job.config["optim"]["matrices"] / own) for job in judged} == {("base", 4.0), ("depth=2", 0.5)}


def test_plan_read_again_is_the_same_and_another_file_is_refused(base, tmp_path):
    study = study_of(base, vary={"ffn.kind": ["relu"]}, match={"to": "flops"}, set={"ffn.width": 61, "width": 32})
    plan = planned(study)
    assert plan.variants[1].solved
    assert Plan.read(tmp_path) is None
    plan.save(tmp_path)
    assert Plan.read(tmp_path) == plan
    place = tmp_path / FILE
    data = json.loads(place.read_text())
    place.write_text(json.dumps(data | {"version": 99}))
    with pytest.raises(InputError, match="another version of the lab; give --out another folder"):
        Plan.read(tmp_path)
    for text in ("{", "[]", json.dumps({"version": 1}), json.dumps(data | {"more": 1})):
        place.write_text(text)
        with pytest.raises(InputError, match=r"plan.json: is no plan of a study: .*; give --out another folder"):
            Plan.read(tmp_path)


def test_plan_goes_on_with_more_seeds_and_refuses_another_study_by_name(base, tmp_path):
    study = study_of(base, vary={"depth": [2]}, seeds=2)
    plan = planned(study)
    claims = [{"claim": "deeper is better", "paper": "none", "better": "depth=2"}]
    plan.check_same(
        study_of(base, vary={"depth": [2]}, seeds=9, title="more", claims=claims, metric="accuracy"), tmp_path
    )
    with pytest.raises(InputError) as caught:
        plan.check_same(study_of(base, vary={"depth": [2, 3], "lr": [2]}, seeds=2, budget="5 steps"), tmp_path)
    lines = str(caught.value).splitlines()
    assert lines == [
        f"{tmp_path} holds another study, and can't be continued as this one:",
        "  budget: was 'not set', is '5 steps'",
        "  vary.depth: was [2], is [2, 3]",
        "  vary.lr: was 'not set', is [2]",
        "Give --out another folder, or set these back",
    ]
    tuned = study_of(base, vary={"depth": [2]}, tune={"factors": [1, 2]})
    with pytest.raises(InputError, match="metric: was 'loss', is 'accuracy'"):
        planned(tuned).check_same(replace(tuned, metric="accuracy"), tmp_path)


def test_plan_says_what_each_variant_costs(base):
    study = study_of(base, vary={"attention.kv_heads": [1]})
    plan, every = planned(study), variants_of(base, vary={"attention.kv_heads": [1]})
    for made, variant in zip(plan.variants, every, strict=True):
        spec = variant.run.spec
        assert made.params == spec.count().params
        assert made.train_flops == 3 * 12 * 4 * spec.count().flops(16).total
        assert made.kv_bytes_per_token == spec.count().kv_bytes(16) / 16
        assert (made.steps, made.tokens_per_step) == (12, 64)
        assert made.result(runs=[]).params == made.params
    assert plan.variants[0].kv_bytes_per_token == 2 * (plan.variants[1].kv_bytes_per_token or 0)


def test_slugs_of_different_names_never_meet():
    names = [
        "a, b",
        "a- b",
        "a-b",
        "base",
        "Base",
        "../../etc",
        ".",
        "..",
        "x" * 80,
        "x" * 79 + "y",
        "ffn=relu",
        "ä",
        "ö",
        "/",
    ]
    found = slugs(names)
    assert len(set(found)) == len(names)
    assert all(slug and "/" not in slug and not slug.startswith(".") for slug in found)
    assert found[3] == "base"
    assert found[10] == "ffn=relu"


def test_with_threads_fills_in_only_what_the_config_leaves_open(base):
    every = variants_of(base, vary={"compute.threads": [0]}, then={})
    assert [each.run.config.compute.threads for each in every] == [1, 0]
    done = [with_threads(each, 5) for each in every]
    assert [each.run.config.compute.threads for each in done] == [1, 5]
    assert [each.last.config.compute.threads for each in done] == [1, 5]
