"""The table of a study as rows, text and data."""

import json
import math

import numpy as np
import pytest

from anyformer.lab.results import Claim, Results, VariantResult
from anyformer.lab.statistics.table import cells, legend, rows, to_data
from tests.lab.studies import speed_study, study, variant

BASE = [3.20, 3.22, 3.19, 3.21, 3.23]


def near(shift: float, seed: int, n: int = 5, sd: float = 0.005) -> list[float]:
    return (np.array(BASE[:n]) + shift + sd * np.random.default_rng(seed).normal(size=n)).tolist()


@pytest.fixture
def results() -> Results:
    """A study with something in every column."""
    speeds = {"train_tokens_per_second": [900.0, 1000.0, 5000.0], "decode_tokens_per_second": [50.0, 70.0]}
    common = {"params": 8_030_000, "train_flops": 3.2e15}
    variants = [
        variant("base", BASE, speeds=speeds, peak_memory=1_610_000_000, kv_bytes_per_token=512.0, **common),
        variant("a", near(-0.05, 1), solved={"ffn.width": 344}, off_by=-0.003, **common),
        variant("b", near(0.05, 2), lr_factor=0.5, tuning_flops=2e14, **common),
        variant("c", near(0.0, 3), **common),
        variant("d", [3.0, 3.1, 3.2, "diverged", "diverged"], **common),
        variant("e", BASE, **common),
    ]
    claims = [Claim(claim="a is better", paper="made up", better="a")]
    return Results(title="made up", variants=variants, claims=claims)


def table(results: Results, metric: str | None = None) -> dict[str, dict[str, str]]:
    names, lines = cells(results, metric)
    return {line[0]: dict(zip(names, line, strict=True)) for line in lines}


def test_table_has_a_row_for_each_variant_with_its_costs(results):
    found = table(results)
    assert list(found) == ["base", "a", "b", "c", "d", "e"]
    base = found["base"]
    assert base["params"] == "8.03 M"
    assert base["train FLOPs"] == "3.20 PFLOP"
    assert base["peak memory"] == "1.61 GB"
    assert base["KV/token"] == "512 B"
    assert base["train tok/s"] == "1.00 k"
    assert base["decode tok/s"] == "60"
    assert base["held-out loss"] == "3.210 +- 0.020"
    assert (base["difference"], base["mark"]) == ("base", "")
    assert found["a"]["solved"] == "ffn.width=344 (0.30% off)"
    assert (found["b"]["lr factor"], found["b"]["tuning"]) == ("x 0.5", "200 TFLOP")
    assert found["d"]["lost runs"] == "diverged in 2 of 5 seeds"


def test_table_marks_differences_with_a_star_and_a_word(results):
    found = table(results)
    assert {name: row["mark"] for name, row in found.items()} == {
        "base": "", "a": "* better", "b": "* worse", "c": "can't tell", "d": "not judged", "e": "identical",
    }  # fmt: skip
    assert found["a"]["difference"].startswith("-0.0489 (-0.05")
    assert found["b"]["difference"].startswith("+0.049 (+0.0")
    assert (found["d"]["difference"], found["e"]["difference"]) == ("", "0")


def test_table_row_means_are_those_of_finished_runs(results):
    by_name = {row.name: row for row in rows(results)}
    assert by_name["d"].estimate.n == 3
    assert by_name["d"].estimate.mean == pytest.approx(3.1)
    assert by_name["a"].comparison.difference == pytest.approx(np.mean(near(-0.05, 1)) - np.mean(BASE))
    assert by_name["base"].comparison is None
    assert by_name["a"].train_speed is None


def test_table_leaves_out_columns_without_text():
    names, lines = cells(study(base=BASE, a=near(0.0, 1)))
    assert names == ["variant", "held-out loss", "difference", "mark"]
    assert len(lines) == 2
    assert cells(Results(title="empty")) == ([], [])


def test_table_of_one_seed_has_values_without_intervals():
    found = table(study(base=[3.25], a=[3.125]))
    assert found["base"]["held-out loss"] == "3.2500"
    assert (found["a"]["difference"], found["a"]["mark"]) == ("-0.12", "not judged")


def test_table_of_a_variant_without_a_finished_run_is_empty_there():
    found = table(study(base=BASE, a=["diverged"] * 5))
    assert (found["a"]["held-out loss"], found["a"]["mark"]) == ("", "not judged")


def test_table_of_a_constant_metric_divides_by_nothing():
    found = table(study(metric="steps_to_4", base=[100.0] * 5, a=[90.0] * 5))
    assert found["base"]["steps to 4"].startswith("100.0")
    assert found["a"]["difference"] == "-10"


def test_table_without_a_base_compares_nothing():
    results = study(a=BASE, b=near(0.1, 1))
    assert [row.comparison for row in rows(results)] == [None, None]
    assert legend(results) == []
    assert to_data(results)["verdict"] == ["The study has no variant base to compare with: nothing is judged."]


def test_table_of_speeds_is_geometric_and_relative():
    results = speed_study(base=[100.0, 102.0, 99.0, 100.0, 101.0], a=[110.0, 112.0, 109.0, 110.0, 112.0])
    by_name = {row.name: row for row in rows(results)}
    assert by_name["a"].estimate.mean == pytest.approx(math.exp(np.mean(np.log([110, 112, 109, 110, 112]))))
    assert table(results)["a"]["difference"].startswith("+10.")
    assert table(results)["a"]["mark"] == "* better"
    assert legend(results)[0] == "train tokens per second: mean over rounds and its 95% interval; higher is better"


def test_legend_explains_the_marks(results):
    assert legend(results) == [
        "held-out loss: mean over finished runs and its 95% interval; lower is better",
        "difference: variant - base, with intervals that hold jointly at 95% (Bonferroni, comparisons: 3)",
        "* : differs from base at a family-wise level of 0.05 (Holm)",
    ]


def test_table_data_is_json_with_rows_claims_and_verdict(results):
    data = json.loads(json.dumps(to_data(results), allow_nan=False))
    assert [row["name"] for row in data["rows"]] == ["base", "a", "b", "c", "d", "e"]
    a = data["rows"][1]
    assert (a["mark"], a["comparison"]["outcome"], a["comparison"]["comparisons"]) == ("* better", "better", 3)
    assert data["claims"][0]["verdict"] == "agrees"
    assert data["claims"][0]["words"].startswith("Agrees: ")
    assert data["verdict"][0] == "Held-out loss over 5 seeds; lower is better."
    assert (data["metric"], data["base"], data["higher_is_better"]) == ("loss", "base", False)


def test_table_data_of_a_variant_without_runs_is_json():
    results = Results(title="made up", variants=[VariantResult(name="base"), VariantResult(name="a")])
    data = to_data(results)
    assert data["rows"][1]["comparison"]["reason"] == "a has no loss"
    json.dumps(data, allow_nan=False)
