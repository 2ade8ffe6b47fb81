"""The config of a run: read, changed from outside, written back, and refused with every problem at once."""

import re

import pytest

from anyformer.data.objectives import Objective
from anyformer.data.packing import Packing
from anyformer.errors import InputError
from anyformer.optim.schedule import Schedule
from anyformer.train.config import FAMILIAR, Config, identity
from anyformer.train.optim_config import OptimKind
from anyformer.train.resolve import needs

TEXT = """
[model]
base = "gpt-2"
[model.spec]
depth = 2
[data]
folder = "tokens"
[[stages]]
steps = 10
length = 16
batch = 4
[[stages]]
steps = 5
length = 32
batch = 2
spec = { "attention.pattern" = "window(8)" }
[run]
folder = "runs/x"
"""


def test_config_is_written_and_read_back_equal():
    config = Config.from_toml(TEXT)
    assert Config.from_toml(config.to_toml()) == config
    assert config.steps == 15
    assert config.stages[1].spec.written() == {"attention": {"pattern": "window(8)"}}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        *(("objective", kind) for kind in Objective.kinds()),
        *(("schedule", kind) for kind in Schedule.kinds()),
        *(("optim", kind) for kind in OptimKind.kinds()),
        *(("data.packing", kind) for kind in Packing.kinds()),
    ],
)
def test_config_takes_every_registered_kind_and_keeps_its_fields(part, kind):
    config = Config.from_toml(TEXT, changes={f"{part}.kind": kind})
    assert Config.from_toml(config.to_toml()) == config
    assert f'kind = "{kind}"' in config.to_toml()


def test_config_changes_reach_every_part_and_each_stage():
    changes = {"run.seed": 3, "optim.matrices": 0.25, "stages.steps": 7, "stages.1.batch": 6, "model.spec.width": 48}
    config = Config.from_toml(TEXT, changes=changes)
    assert (config.run.seed, config.optim.leaf.matrices) == (3, 0.25)
    assert [(stage.steps, stage.batch) for stage in config.stages] == [(7, 4), (7, 6)]
    assert config.model.spec.written() == {"depth": 2, "width": 48}


def test_config_names_all_problems_at_once_with_the_nearest_names():
    wrong = TEXT.replace("steps = 5", "steps = 0").replace('folder = "tokens"', 'foldr = "tokens"')
    wrong += '\nsave_evry = 3\nkeep = 1\nseed = -1\n[compute]\ndtype = "bf16"\nmicro = -2\n[schedule]\nkind = "cosin"\n'
    with pytest.raises(InputError) as caught:
        Config.from_toml(wrong, "mine.toml")
    told = str(caught.value)
    for part in (
        "mine.toml can't be used", "data.foldr: is unknown; did you mean 'folder'?", "data.folder: is missing",
        "run.save_evry: is unknown; did you mean 'save_every'?", "schedule.kind: 'cosin' is unknown; did you mean 'cosine'?",
        "compute.dtype: 'bf16' is unknown", "stages[1].steps: 0 is not at least 1",
    ):  # fmt: skip
        assert part in told, told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"run.keep": 1}, "run.keep: 1 is not at least 2"),
        ({"run.ema": 1.5}, "run.ema: 1.5 is not between 0 and 1"),
        ({"run.clip": -1.0}, "run.clip: -1 is not at least 0"),
        ({"guard.spike": 0.5}, "guard.spike: 0.5 is not above 1"),
        ({"many.tensor": 0}, "many.tensor: 0 is not at least 1"),
        ({"compute.dtype": "bfloat16", "compute.autocast": "bfloat16"}, "compute.autocast: "),
        ({"stages.9.steps": 1}, "stages.9.steps: the config has 2 stages"),
        ({"stages": []}, "stages: there is none"),
    ],
)
def test_config_refuses_a_value_by_its_name(changes, told):
    with pytest.raises(InputError) as caught:
        Config.from_toml(TEXT, changes=changes)
    assert told in str(caught.value)


def test_config_that_is_no_toml_or_no_file_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match="mine is not TOML"):
        Config.from_toml("[run", "mine")
    with pytest.raises(InputError, match=r"none\.toml: can't be read: No such file"):
        Config.from_file(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        Config.from_file(tmp_path / "bad.toml")


def test_identity_holds_what_is_learned_and_not_where_or_how_often_one_looks():
    plain = identity(Config.from_toml(TEXT))
    free = {"run.folder": "b", "run.save_every": 3, "run.log": ["wandb"], "data.folder": "c", "compute.threads": 1}
    assert identity(Config.from_toml(TEXT, changes=free)) == plain
    for name, value in {"run.seed": 1, "optim.matrices": 0.1, "stages.batch": 8, "compute.dtype": "float64",
                        "objective.kind": "masked", "schedule.kind": "cosine", "run.clip": 2.0}.items():  # fmt: skip
        assert identity(Config.from_toml(TEXT, changes={name: value})) != plain, name


WRONG = """
[model.spec]
width = 63
depth = 2
context = 32
attention = { heads = 4 }
position = { kind = "ropee", thta = 3 }
[data]
folder = "nowhere"
[optim]
kind = "adam"
lr = 0.001
tables = -1
matrices = "fast"
[[stages]]
steps = 0
length = 8
batch_size = 4
[run]
folder = "runs/x"
sed = 3
keep = 1
"""


def test_config_names_keys_types_values_spec_and_files_in_one_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        Config.from_toml(WRONG, "mine.toml", {"stages.3.steps": 4, "learning_rate": 0.1})
    told = str(caught.value).splitlines()
    for part in (
        "stages.3.steps: the config has 1 stage", "optim.kind: 'adam' is unknown; did you mean 'adamw'?",
        "optim.lr: is unknown; here it is optim.matrices, optim.tables and optim.vectors", "optim.tables: -1 is not at least 0",
        "learning_rate: is unknown; here it is optim.matrices", "optim.matrices: 'fast' is not a finite number",
        "stages[0].steps: 0 is not at least 1", "stages[0].batch_size: is unknown; here it is batch in [[stages]]",
        "run.sed: is unknown; did you mean 'seed'?", "run.keep: 1 is not at least 2", "data.folder: nowhere: there is no such",
        "model.spec.position.kind: 'ropee' is unknown; did you mean 'rope'?", "model.spec.attention.heads: 4 does not divide",
        "model.spec.position.thta: is unknown; did you mean 'theta'?",
    ):  # fmt: skip
        assert [line for line in told if line.strip().startswith(part)], (part, told)


@pytest.mark.parametrize("name", sorted(FAMILIAR))
def test_config_answers_a_familiar_name_with_its_own(name):
    with pytest.raises(InputError) as caught:
        Config.from_toml(TEXT, changes={name: 1})
    assert f"{name}: is unknown; here it is {FAMILIAR[name]}" in str(caught.value)


def test_familiar_names_lead_to_fields_that_there_are():
    config = Config.from_toml(TEXT)
    spec = {"depth", "width", "vocab", "attention"}
    for words in set(FAMILIAR.values()):
        for path in re.findall(r"\b(?:model|data|optim|schedule|compute|run)\.[a-z_.]+\b", words):
            part, name, *_ = path.split(".")
            known = {*vars(getattr(config, part)), *vars(config.optim.leaf), "kind"}
            assert name in known, path
            assert name != "spec" or path.split(".")[2] in spec, path
        for name in re.findall(r"(\w+) in \[\[stages\]\]", words):
            assert hasattr(config.stages[0], name), name


def test_config_with_one_table_of_stages_says_two_brackets_and_looks_inside():
    with pytest.raises(InputError) as caught:
        Config.from_toml(WRONG.replace("[[stages]]", "[stages]"))
    assert "stages: is one table, and there may be several; write [[stages]]" in str(caught.value)
    assert "stages[0].steps: 0 is not at least 1" in str(caught.value)


def test_config_without_problems_of_its_own_is_told_of_spec_data_and_weights_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Config.from_toml(TEXT, changes={"model.spec.width": 7, "stages.1.spec.attention.heads": 5})
    with pytest.raises(InputError) as caught:
        needs(config).settle()
    told = str(caught.value)
    assert "data.folder: tokens: there is no such folder" in told
    assert "model.spec.attention.heads: 12 does not divide width=7" in told
    base = Config.from_toml(TEXT, changes={"model.base": "lama-7b"})
    assert any(line.startswith("model.base: 'lama-7b' is no preset") for line in needs(base).lines)
    weights = Config.from_toml(TEXT, changes={"model.weights": "none"})
    assert "model.weights: none: there is no such folder; give one with a model" in needs(weights).lines
