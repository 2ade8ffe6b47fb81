"""What earlier versions of anyformer wrote is read, gone on with and measured as by the code that wrote it.

tests/assets/make.py says how the folder of a version is made.
"""

import json
import shutil

import pytest
import torch

import anyformer as af
from anyformer.cli.main import main as anyformer
from anyformer.train.config import Config
from anyformer.train.report import About, Report
from tests.assets.make import VERSIONS, digests, finish
from tests.tolerances import assert_close

KEPT = sorted(VERSIONS.iterdir())
EXPECTED = {folder.name: json.loads((folder / "expected.json").read_text()) for folder in KEPT}
RUNS = [(version, run) for version, found in EXPECTED.items() for run in found["runs"]]
SPECS = [(version, family) for version, found in EXPECTED.items() for family in found["specs"]]
STREAMS = [(version, kind) for version, found in EXPECTED.items() for kind in found["batches"]]

pytestmark = pytest.mark.filterwarnings("ignore:.*goes on elsewhere than it began")


def config(version, run, tmp_path, changes=None):
    """The run's own config, on a copy of its folder."""
    if not (tmp_path / "run").exists():
        shutil.copytree(VERSIONS / version / run, tmp_path / "run")
    here = {"data.folder": str(VERSIONS / version / "data"), "run.folder": str(tmp_path / "run")}
    return Config.from_file(tmp_path / "run" / "config.toml", here | (changes or {}))


def column(steps, name):
    return torch.tensor([step[name] for step in steps], dtype=torch.float64)


@pytest.mark.parametrize(("version", "run"), RUNS)
def test_run_of_an_earlier_version_goes_on_as_that_version_would(version, run, tmp_path):
    wanted = EXPECTED[version]["runs"][run]
    if wanted["until"] == wanted["total"]:
        pytest.skip("it was finished")
    found = finish(config(version, run, tmp_path))
    assert [(step["step"], step["batch"], step["tokens"]) for step in found["steps"]] == [
        (step["step"], step["batch"], step["tokens"]) for step in wanted["steps"]
    ]
    for name in ("loss", "gradient_norm"):
        assert_close("elsewhere", column(found["steps"], name), column(wanted["steps"], name))
    if "order" in EXPECTED[version] or run != "stream":
        # Before that, the tail of a held-out stream was not measured on.
        assert_close("elsewhere", torch.tensor(found["held_out"]), torch.tensor(wanted["held_out"]))
    assert found["norms"].keys() == wanted["norms"].keys()
    for table, norms in wanted["norms"].items():
        assert found["norms"][table].keys() == norms.keys()
        own = torch.tensor([found["norms"][table][name] for name in norms])
        assert_close("elsewhere", own, torch.tensor(list(norms.values())))


@pytest.mark.parametrize(("version", "run"), RUNS)
def test_run_of_an_earlier_version_is_a_model_that_loads_and_is_scored(version, run, capsys):
    folder = VERSIONS / version
    model = af.load(folder / run)
    assert sum(p.numel() for p in model.parameters()) == af.spec(folder / run).count().params
    assert anyformer(["eval", str(folder / run), "--part", "valid", "--data", str(folder / "data"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    wanted = EXPECTED[version]["runs"][run]
    if wanted["until"] == wanted["total"]:
        assert_close("elsewhere", torch.tensor(told["measured"][0]["loss"]), torch.tensor(wanted["held_out"]))


@pytest.mark.parametrize(("version", "run"), RUNS)
def test_metrics_of_an_earlier_version_become_a_report(version, run):
    """What was written then has all its steps, its held-out curve and its end."""
    report = Report(VERSIONS / version / run, About(name=run, total=14, params=1, stretches=()))
    report.begin(run, {}, 0)
    wanted = EXPECTED[version]["runs"][run]
    assert len(report.steps) == wanted["until"]
    assert report.looks


@pytest.mark.parametrize(("version", "kind"), STREAMS)
def test_stream_of_an_earlier_version_has_the_same_batches(version, kind):
    found = EXPECTED[version]
    assert digests(kind, found.get("order", 1)) == found["batches"][kind]


@pytest.mark.parametrize(("version", "family"), SPECS)
def test_spec_of_an_earlier_version_is_read_to_the_same_parameters(version, family):
    place = VERSIONS / version / "specs" / f"{family}.toml"
    spec = af.spec(place)
    assert spec.count().params == EXPECTED[version]["specs"][family]
    assert af.ModelSpec.from_toml(spec.to_toml()) == spec
