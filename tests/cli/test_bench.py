"""`anyformer bench`: what it prints, draws and refuses."""

import pytest

from tests.cli.command import run, widest
from tests.cli.small_run import small_run

SMALL = (
    "bench",
    "attention",
    "--lengths",
    "48",
    "80",
    "--heads",
    "4",
    "--head-dim",
    "8",
    "--window",
    "9",
    "--repeats",
    "1",
)


def test_bench_attention_prints_a_table_for_each_number_of_kv_heads(capsys):
    ran = run(capsys, *SMALL)
    assert ran.status == 0, ran.err
    for line in ("MHA: 4 heads of 8, 4 of keys", "GQA: 4 heads of 8, 2 of keys", "MQA: 4 heads of 8, 1 of keys"):
        assert line in ran.out
    for name in ("sdpa", "tiled", "reference", "window(9): banded"):
        assert (
            sum(line.split("  ")[0].strip() in ("", "48", "80") and name in line for line in ran.out.splitlines()) >= 6
        )
    assert "forward, float32, CPU" in ran.out
    assert "flex for causal: its fused kernels with gradients run on cuda, not cpu" in ran.out
    assert widest(ran.out.splitlines()) <= 100


def test_bench_attention_as_json_has_every_figure(capsys):
    ran = run(capsys, *SMALL, "--backward", "--dtype", "float64", "--json")
    assert ran.status == 0, ran.err
    assert (ran.json["backward"], ran.json["dtype"], ran.json["device"]) == (True, "float64", "cpu")
    assert {row["tokens"] for row in ran.json["rows"]} == {48, 80}
    for row in ran.json["rows"]:
        assert row["seconds"] > 0
        assert row["peak_bytes"] >= row["allocated_bytes"] >= row["tokens"] * 4 * 8 * 8
    assert any({"pattern": "causal", "kernel": "flex"}.items() <= each.items() for each in ran.json["refusals"])


def test_bench_attention_draws_only_if_asked(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture = tmp_path / "attention.png"
    ran = run(capsys, *SMALL, "--plot", str(picture))
    assert ran.status == 0, ran.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"Drawn into {picture}" in ran.out.replace("\n", "")
    picture.unlink()
    run(capsys, *SMALL)
    assert not list(tmp_path.iterdir())


def test_bench_attention_with_one_head_measures_it_once(capsys):
    ran = run(capsys, "bench", "attention", "--lengths", "32", "--heads", "1", "--repeats", "1", "--json")
    assert {(row["attention"], row["kv_heads"]) for row in ran.json["rows"]} == {("MHA", 1)}


def test_bench_attention_beyond_the_memory_says_so(capsys, monkeypatch):
    from anyformer.evals import attention

    monkeypatch.setattr(attention, "FIRST", 16)
    monkeypatch.setattr(attention, "free", lambda device: 60_000)
    ran = run(capsys, *SMALL)
    assert ran.status == 0, ran.err
    assert "not measured: reference from 48 tokens on: would take about" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "the following arguments are required: WHAT"),
        (["atention"], "invalid choice: 'atention'"),
        (["generate", "nowhere.toml"], "nowhere.toml"),
        (["generate", "--new", "1"], "1 is not at least 2"),
        (["generate", "--batch", "0"], "0 is not at least 1"),
        (["generate", "--device", "tpu"], "--device: 'tpu' is neither cpu nor cuda"),
        (["generate", "--png", "nowhere/a.png"], "there is no directory 'nowhere'"),
        (["generate", "bert-base", "--set", "depth=1"], "an encoder reads a text at once"),
        (["generate", "gpt-2", "--set", "depth=1", "--lengths", "1020"], "need 1043 positions, and the model has 1024"),
        (["generate", "llama-3.1-405b"], "the weights take"),
        (["attention", "--lengths", "0"], "0 is not at least 1"),
        (["attention", "--lengths"], "expected at least one argument"),
        (["attention", "--kv-heads", "3"], "--kv-heads: 3 does not divide --heads 4; pick one of 1, 2, 4"),
        (["attention", "--device", "tpu"], "--device: 'tpu' is neither cpu nor cuda"),
        (["attention", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["attention", "--plot", "a.foo"], "'a.foo' ends in no known picture format; write e.g. a.png"),
        (["attention", "--plot", "nowhere/a.png"], "there is no directory 'nowhere'"),
        (["attention", "--window", "-1"], "-1 is not at least 1"),
    ],
)
def test_bench_of_bad_input_says_what_is_wrong(capsys, argv, line):
    ran = run(capsys, "bench", *argv)
    assert ran.status == 2
    assert line in ran.err


TINY = (
    "bench", "generate", "--set", "width=16", "--set", "depth=1", "--set", "vocab=40", "--set", "ffn.width=24",
    "--set", "attention.heads=2", "--set", "attention.kv_heads=1", "--lengths", "5", "9", "--batch", "1", "2",
    "--new", "4", "--repeats", "1",
)  # fmt: skip


def test_bench_generate_prints_rows_for_each_batch_length_and_way(capsys, tmp_path):
    picture = tmp_path / "steps.png"
    ran = run(capsys, *TINY, "--png", str(picture))
    assert ran.status == 0, ran.err
    lines = ran.out.split("x uncached")[1].splitlines()
    ways = [word for line in lines for word in line.split() if word in ("cached", "uncached")]
    assert ways == ["cached", "uncached"] * 2 + ["cached"] * 2
    assert "memory gives" in ran.out
    assert widest(ran.out.splitlines()) <= 100
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_generate_as_json_has_every_figure(capsys):
    ran = run(capsys, *TINY, "--json", "--dtype", "float64")
    assert ran.status == 0, ran.err
    assert (ran.json["dtype"], ran.json["new_tokens"]) == ("float64", 4)
    assert [(row["way"], row["batch"], row["prompt"]) for row in ran.json["rows"]] == [
        ("cached", 1, 5), ("uncached", 1, 5), ("cached", 1, 9), ("uncached", 1, 9), ("cached", 2, 5), ("cached", 2, 9),
    ]  # fmt: skip
    for row in ran.json["rows"]:
        assert len(row["steps_seconds"]) == 3
        assert row["tokens_per_second"] > 0
        assert row["prompt_tokens_per_second"] == pytest.approx(
            row["batch"] * row["prompt"] / row["first_token_seconds"]
        )
        assert (row["bytes_per_step"] is None) == (row["share_of_read_limit"] is None) == (row["way"] == "uncached")
        assert (row["times_uncached"] is not None) == (row["way"] == "cached" and row["batch"] == 1)
    # Two rows read the same weights, and each its own keys and values.
    one, two = (next(r["bytes_per_step"] for r in ran.json["rows"] if r["batch"] == n) for n in (1, 2))
    assert one < two < 2 * one


def test_bench_generate_of_a_folder_measures_its_weights(capsys, tmp_path):
    model, _ = small_run(tmp_path)
    argv = ("bench", "generate", str(tmp_path), "--lengths", "4", "--batch", "1", "--new", "3", "--repeats", "1")
    ran = run(capsys, *argv, "--cached-only", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["params"] == model.spec.count().params
    assert [row["way"] for row in ran.json["rows"]] == ["cached"]
    ran = run(capsys, *argv, "--set", "depth=1")
    assert (ran.status, "holds weights, which belong to its spec" in ran.err) == (2, True)


def test_bench_help_shows_an_example(capsys):
    ran = run(capsys, "bench", "attention", "--help")
    assert ran.status == 0
    assert "anyformer bench attention --backward --plot attention.png" in ran.out
    assert "None" not in ran.out
