"""`anyformer diff`: for presets, files and variations, for random specs and every kind."""

import pytest

from tests.cli.command import run, widest
from tests.contract.draw import draw, every_kind, spec_of_kind
from tests.explain.specs import spec_named


def written(spec, path):
    path.write_text(spec.to_toml())
    return str(path)


def diff_both_ways(capsys, a, b, folder):
    paths = written(a, folder / "a.toml"), written(b, folder / "b.toml")
    text, data = run(capsys, "diff", *paths), run(capsys, "diff", *paths, "--json")
    assert (text.status, data.status) == (0, 0), text.err + data.err
    assert "\x1b" not in text.out
    assert widest(text.out.splitlines()) <= 100
    assert data.json["differ"] == len(data.json["axes"])
    assert data.json["costs"][0]["values"] == [a.count().params, b.count().params]
    return text.out


@pytest.mark.parametrize("seed", range(60))
def test_diff_works_for_random_specs(capsys, tmp_path, seed):
    diff_both_ways(capsys, draw(seed), draw(seed + 1), tmp_path)


@pytest.mark.parametrize(("axis", "kind"), every_kind())
def test_diff_works_for_every_kind(capsys, tmp_path, axis, kind):
    diff_both_ways(capsys, spec_named("llama"), spec_of_kind(axis, kind), tmp_path)


def test_diff_with_itself_says_that_no_axis_differs(capsys):
    assert run(capsys, "diff", "llama-7b", "llama-7b").out.startswith("no axis differs\n")


def test_diff_with_a_variation_shows_what_it_does(capsys):
    done = run(capsys, "diff", "llama-3-8b", "--set", "attention.kv_heads=1")
    lines = done.out.splitlines()
    assert lines[0] == "1 axis differs"
    assert any(line.split()[:3] == ["heads", "GQA", "32/8,"] for line in lines)
    cache = next(line for line in lines if line.startswith("KV cache"))
    assert cache.split()[-2:] == ["x", "0.125"]


def test_diff_set_applies_to_the_second(capsys):
    data = run(capsys, "diff", "llama-3-8b", "llama-7b", "--set", "width=8192", "--json").json
    (width,) = [axis for axis in data["axes"] if axis["axis"] == "width"]
    assert width["values"] == ["4,096", "8,192"]
    assert data["names"] == ["llama-3-8b", "llama-7b with width=8192"]


def test_diff_names_what_is_the_same_and_says_how_to_see_it(capsys):
    from anyformer.explain.axes import AXES

    done, data = (run(capsys, "diff", "llama-3-8b", "llama-3.1-8b", *more) for more in ((), ("--json",)))
    said = " ".join(done.out.split())
    same = [each["axis"] for each in data.json["same"]]
    assert sorted([*same, *(each["axis"] for each in data.json["axes"])]) == sorted(AXES)
    assert f"{len(same)} axes are the same: {', '.join(same)} (--all shows them)" in said


def test_diff_of_what_one_writes_and_the_other_has_by_default_is_listed_as_the_same(capsys, tmp_path):
    spec = spec_named("llama")
    (tmp_path / "a.toml").write_text(spec.to_toml())
    short = spec.to_toml().replace('layout = "half"\n', "").replace("fraction = 1.0\n", "")
    assert short != spec.to_toml()
    (tmp_path / "b.toml").write_text(short)
    paths = str(tmp_path / "a.toml"), str(tmp_path / "b.toml")
    done, data = run(capsys, "diff", *paths, "--all"), run(capsys, "diff", *paths, "--json").json
    assert data["differ"] == 0
    fields = {each["field"]: each for each in data["fields"]}
    assert fields["position.fraction"] == {"field": "position.fraction", "values": [1.0, 1.0], "same": True}
    assert all(each["same"] for each in fields.values())
    lines = [line.split() for line in done.out.splitlines()]
    assert ["position.fraction", "1.0", "1.0", "same"] in lines
    assert any(line[:1] == ["mixer"] for line in lines)


def test_diff_says_of_a_change_that_it_is_none(capsys):
    given = ("diff", "llama-3-8b", "--set", "attention.kv_heads=8", "--set", "head.tied=true")
    done, data = run(capsys, *given), run(capsys, *given, "--json").json
    assert "attention.kv_heads=8 changes nothing: it is so already" in done.out
    assert data["without_effect"] == ["attention.kv_heads"]


def test_diff_counts_at_the_context_that_is_given(capsys):
    default = run(capsys, "diff", "llama-7b", "llama-3-8b", "--json").json
    given = run(capsys, "diff", "llama-7b", "llama-3-8b", "--context", "100", "--json").json
    assert (default["contexts"], given["contexts"]) == ([2048, 2048], [100, 100])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("diff", "llama-7b"), "name a second one, or change the first by --set"),
        (("diff", "llama-7b", "lama-7b"), "llama-7b"),
        (("diff", "gpt2-small", "llama-7b", "--context", "5000"), "more than the 1,024 positions"),
    ],
)
def test_diff_of_bad_input_teaches(capsys, argv, says):
    done = run(capsys, *argv)
    assert (done.status, done.out) == (2, "")
    assert says in done.err
