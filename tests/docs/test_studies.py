"""The studies of the repository: their files can be read, their sizes are solved, and their pages are made of their results."""

import re
import shutil
import tomllib
from dataclasses import replace

import pytest
import torch

from anyformer.cli.main import main
from anyformer.lab.match import matched
from anyformer.lab.report.markdown import claims_page, judged_claims
from anyformer.lab.results import FILE, Results
from anyformer.lab.study import Study
from anyformer.lab.variants import read_base, variants
from anyformer.model.build import build
from tests.docs.fences import ROOT, UPDATE, fences, read, run
from tests.docs.fences import maker as load_maker

FILES = sorted(path for path in (ROOT / "studies").glob("*.toml") if path.stem != "base")
FINISHED = sorted(path.parent for path in (ROOT / "studies").glob(f"*/{FILE}"))


@pytest.fixture(scope="module")
def maker():
    return load_maker("claims")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders of data that have the vocabulary of the real ones, whatever is in them."""
    place = tmp_path_factory.mktemp("studies")
    shutil.copytree(ROOT / "studies", place / "studies", ignore=shutil.ignore_patterns("*.html", "*.png", "*.json"))
    (place / "text.txt").write_text("".join(path.read_text() for path in (ROOT / "anyformer" / "specs").glob("*.py")))
    made = place / "data" / "wikitext-2-1k"
    asked = [str(place / "text.txt"), "--out", str(made), "--train", "bpe", "--vocab", "1024", "--hold-out", "0.1"]
    assert main(["tokenize", *asked, "--json"]) == 0
    for name in ("tinystories-1k", "war-and-peace-1k"):
        shutil.copytree(made, place / "data" / name)
    return place


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_study_has_solved_sizes_that_built_models_have(path, folder, monkeypatch):
    monkeypatch.chdir(folder)
    study = Study.from_file(f"studies/{path.name}")
    every = variants(study, read_base(study))
    if study.match.to in ("params", "flops"):
        every = matched(every, study.match)
        target = every[0].params if study.match.to == "params" else every[0].train_flops
        for variant in every:
            cost = variant.params if study.match.to == "params" else variant.train_flops
            assert abs(cost / target - 1) <= 0.005, variant.name
    for variant in every:
        model = build(variant.last.spec, device="meta", dtype=torch.float32)
        assert sum(p.numel() for p in model.parameters()) == variant.params
    place = ROOT / "studies" / path.stem
    if (place / FILE).is_file():
        ran = {each.name: each for each in Results.read(place).variants}
        assert {v.name: (v.params, dict(v.solved)) for v in every if study.match.to != "time"} == {
            v.name: (ran[v.name].params, ran[v.name].solved) for v in every if study.match.to != "time"
        }


@pytest.mark.parametrize("place", FINISHED, ids=lambda place: place.name)
def test_finished_study_has_seeds_command_and_pages(place, maker):
    results = Results.read(place)
    assert results.command.startswith(f"anyformer ablate studies/{place.name}.toml")
    assert all(run.status == "finished" for variant in results.variants for run in variant.runs)
    assert maker.page_of(place.name, place) == (place / "README.md").read_text(encoding="utf-8"), UPDATE
    page = (place / "report.html").read_text(encoding="utf-8")
    assert results.title.split("'")[0].split("<")[0] in page
    assert sum(file.stat().st_size for file in place.iterdir()) < 700_000
    assert not list(place.glob("*.safetensors"))


def test_page_of_claims_is_made_of_the_results(maker):
    assert maker.claims() == read("docs/claims.md"), UPDATE
    assert maker.overview() == read("studies/README.md"), UPDATE
    count, verdicts = re.search(r"(\d+ claims): (.*)\.", read("docs/claims.md")).groups()
    summary = " ".join(read("README.md").split())
    assert f"{count} of the literature, judged this way on small models: {verdicts}" in summary


def test_claims_are_many_and_not_all_agree(maker):
    rows = [
        row for name, place in maker.studies().items() for row in judged_claims(name, maker.results_of(name, place))
    ]
    verdicts = [row.verdict for row in rows]
    assert len(rows) >= 12
    assert {"agrees", "differs", "can't tell"} == set(verdicts)
    assert claims_page(rows).count("\n| ") == len(rows) + 1


def test_blocks_of_the_page_of_the_lab_run():
    run(read("docs/lab.md"), "docs/lab.md")


def test_sample_study_of_the_page_of_the_lab_can_be_planned(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (sample,) = [fence.text for fence in fences(read("docs/lab.md")) if fence.language == "toml"]
    study = Study.from_data(tomllib.loads(sample))
    every = matched(variants(study, read_base(study)), study.match)
    assert [each.name for each in every] == ["base", "ffn=relu", "ffn=gelu", "gelu with biases"]
    assert all(each.then is not None and each.then.spec.attention.kv_heads == 2 for each in every)


@pytest.mark.parametrize("place", FINISHED, ids=lambda place: place.name)
def test_results_are_of_the_study_as_it_is_written(place):
    """All but words: what ran is what the file says now."""
    now, ran = Study.from_file(ROOT / "studies" / f"{place.name}.toml"), Results.read(place).study
    words = {"title": "", "claims": ()}
    assert replace(Study.from_data(ran), **words) == replace(now, **words)
