"""docs/training.md: its tables are those of the config, its configs are read, its commands are ones that we take."""

import dataclasses
import re
import shlex

import pytest

from anyformer.cli.main import parser
from anyformer.data.objectives import Objective
from anyformer.train.config import Config
from tests.docs.fences import ROOT, UPDATE, fences, read
from tests.docs.fences import maker as load_maker

NAME = "docs/training.md"
PAGE = read(NAME)
WHOLE, *PARTS = [fence.text for fence in fences(PAGE) if fence.language == "toml"]


@pytest.fixture(scope="module")
def maker():
    return load_maker("training")


def test_reference_of_the_page_is_up_to_date(maker):
    assert maker.updated(PAGE) == PAGE, UPDATE


def test_reference_with_another_default_is_out_of_date(maker):
    assert "| `0.012` |" in PAGE
    assert maker.updated(PAGE.replace("| `0.012` |", "| `0.5` |")) == PAGE


def test_reference_names_every_key_of_every_section(maker):
    keys = set(re.findall(r"^\| `([\w.]+)` \|", maker.reference(), re.MULTILINE))
    sections = {path.split(".")[0] for path, *_ in maker.SECTIONS}
    assert sections == {field.name for field in dataclasses.fields(Config)}
    for path, _, nodes in maker.SECTIONS:
        for node in filter(dataclasses.is_dataclass, nodes):
            names = {"kind" if field.name == "leaf" else field.name for field in dataclasses.fields(node)}
            assert {f"{path}.{name}" for name in names} <= keys


def test_reference_meaning_that_no_field_needs_is_refused(maker, monkeypatch):
    monkeypatch.setitem(maker.MEANINGS, "RunPart.clip", "Never read: the field has a docstring.")
    with pytest.raises(LookupError, match=r"no field needs; remove RunPart\.clip"):
        maker.reference()


def test_table_of_objectives_has_a_row_for_each(maker):
    rows = re.findall(r"^\| `(\w+)` \|", maker.objectives(), re.MULTILINE)
    assert rows == [kind for kind in Objective.kinds() if Objective.named(kind).__module__.startswith("anyformer.")]


def test_first_config_of_the_page_is_whole():
    config = Config.from_toml(WHOLE, NAME)
    assert (config.steps, config.run.folder, config.optim.leaf.kind) == (2000, "runs/book", "muon")


@pytest.mark.parametrize("text", PARTS)
def test_other_configs_of_the_page_go_with_the_first(text):
    config = Config.from_toml(WHOLE + text, NAME)
    named = re.findall(r'^kind = "(\w+)"$', text, re.MULTILINE)
    assert set(named) <= {config.objective.kind, config.optim.leaf.kind, config.schedule.kind}
    assert len(config.stages) == 1 + text.count("[[stages]]")


def commands() -> list[str]:
    """Every command line of the page."""
    return [line for fence in fences(PAGE) if fence.language == "sh" for line in fence.text.splitlines()]


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("anyformer ")])
def test_commands_of_the_page_are_ones_that_we_take(line):
    assert parser().parse_args(shlex.split(line)[1:]).command


def test_changes_on_the_page_are_ones_that_the_config_takes():
    lines = [line for line in commands() if "--set" in line]
    assert len(lines) >= 2
    for line in lines:
        changes = dict(parser().parse_args(shlex.split(line)[1:]).changes)
        config = Config.from_toml(WHOLE, NAME, changes)
        assert config.run.folder == changes["run.folder"]


def test_table_of_recipes_has_a_row_for_each_and_each_is_read():
    rows = re.findall(r"^\| `([\w.-]+\.toml)` \|", PAGE, re.MULTILINE)
    files = sorted((ROOT / "recipes").glob("*.toml"))
    assert sorted(rows) == [file.name for file in files]
    for file in files:
        assert Config.from_file(file).run.folder == f"runs/{file.stem}"
