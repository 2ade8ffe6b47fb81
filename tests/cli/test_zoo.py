"""`anyformer zoo`."""

import pytest

from anyformer.cli import zoo
from anyformer.explain.zoo_table import zoo_table
from anyformer.families.zoo import presets
from tests.cli.command import run, widest


def test_zoo_names_every_preset_and_what_to_do_next(capsys):
    done = run(capsys, "zoo")
    assert done.status == 0
    assert all(name in done.out for name in presets())
    assert done.out.splitlines()[-1].startswith("Next: anyformer explain ")
    assert "\x1b" not in done.out
    assert all(line == line.rstrip() for line in done.out.splitlines())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_zoo_table_fits_its_width_with_no_cell_cut(width):
    from rich.console import Console

    out = Console(width=width)
    entries = zoo_table()
    with out.capture() as caught:
        for part in zoo._page(entries, {}, width):
            out.print(part)
    text = caught.get()
    assert widest(text.splitlines()) <= width
    table = text.split("\n\n")[0]
    assert "\u2026" not in table
    assert len(table.splitlines()) <= len(entries) + 5
    assert all(entry.name in table for entry in entries)


def test_zoo_filter_keeps_what_matches(capsys):
    done = run(capsys, "zoo", "alibi")
    assert "ALiBi" in done.out
    assert "RoPE" not in done.out


def test_zoo_filter_that_matches_nothing_is_bad_input(capsys):
    done = run(capsys, "zoo", "llama-3-8c")
    assert done.status == 2
    assert "did you mean 'llama-3-8b'" in done.err


def test_zoo_says_why_a_model_has_no_preset(capsys):
    done = run(capsys, "zoo", "gpt-4")
    assert done.status == 0
    assert "gpt-4 has no preset" in done.out


def test_zoo_as_json_has_numbers(capsys):
    data = run(capsys, "zoo", "llama-3-8b", "--json").json
    (entry,) = data["presets"]
    assert entry["params"] == 8_030_261_248
    assert data["undisclosed"] == {}


def test_zoo_families_has_every_state_and_what_a_type_needs(capsys):
    done = run(capsys, "zoo", "--families")
    assert done.status == 0
    assert all(
        word in " ".join(done.out.split()) for word in ("LlamaForCausalLM equal", "state-space layers", "equal, except")
    )
    data = run(capsys, "zoo", "--families", "mamba2", "--json").json
    assert [(each["model_type"], each["state"]) for each in data["types"]] == [("mamba2", "not supported")]


def test_zoo_families_filter_that_matches_nothing_names_the_nearest(capsys):
    done = run(capsys, "zoo", "--families", "qwen3-next")
    assert done.status == 2
    assert "did you mean 'qwen3_next'?" in done.err
    assert len(done.err) < 200
