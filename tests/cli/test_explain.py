"""`anyformer explain`: for presets, files and variations; for every kind and for random specs; wide and narrow."""

import os
import pty
import subprocess
import sys

import pytest

from anyformer.explain.costs import machine
from anyformer.explain.page import page
from anyformer.explain.report import report
from anyformer.kernels.attention import block_local, flex, paged_cuda, sdpa
from tests.cli.command import run, widest
from tests.cli.small_run import small_run
from tests.contract.draw import draw, every_kind, spec_of_kind
from tests.explain.specs import CHANGES, images, spec_named
from tests.test_import import HERE, fresh

NARROW = 60
PAGED = (paged_cuda if paged_cuda.has_triton() else sdpa).KERNEL.name
"""What serves paged decoding on CUDA here."""
SEEDS = range(80)


def written(spec, folder):
    path = folder / "model.toml"
    path.write_text(spec.to_toml())
    return str(path)


def explain_both_ways(capsys, spec, folder):
    path = written(spec, folder)
    text, data = run(capsys, "explain", path), run(capsys, "explain", path, "--json")
    assert (text.status, data.status) == (0, 0), text.err + data.err
    assert "\x1b" not in text.out + data.out
    assert widest(text.out.splitlines()) <= 100
    assert data.json["parameters"]["total"] == spec.count().params
    for axis in data.json["axes"]:
        assert axis["choices"]
    return text.out


@pytest.mark.parametrize("seed", SEEDS)
def test_explain_works_for_a_random_spec(capsys, tmp_path, seed):
    explain_both_ways(capsys, draw(seed), tmp_path)


@pytest.mark.parametrize(("axis", "kind"), every_kind())
def test_explain_works_for_every_kind_and_shows_its_equation(capsys, tmp_path, axis, kind):
    spec = spec_of_kind(axis, kind)
    out = explain_both_ways(capsys, spec, tmp_path)
    leaves = {"position": spec.position, "norm": spec.norm.leaf, "ffn": spec.ffn, "init": spec.init, "head": spec.head}
    if axis in leaves:
        assert leaves[axis].equation().split()[0] in out


@pytest.mark.parametrize("width", [NARROW, 80, 120, 200])
@pytest.mark.parametrize("name", CHANGES)
def test_explain_page_fits_its_width(name, width):
    from rich.console import Console

    out = Console(width=width, highlight=False)
    with out.capture() as caught:
        for part in page(report(spec_named(name), machine("h200"), name=name), width):
            out.print(part)
    lines = caught.get().splitlines()
    assert widest(lines) <= width
    assert not any("\u2026" in line for line in lines), "a table cut a cell"
    for heading in ("Axes", "Parameters", "Costs", "Blocks and patterns", "Promises"):
        assert heading in lines


def test_explain_of_a_preset_says_where_it_comes_from(capsys):
    out = run(capsys, "explain", "llama-3-8b").out
    assert "as many as the released model has" in out
    assert "Evidence: " in out
    assert "anyformer/parts/positions/rope.py" in out
    assert "500000^(-2i/d)" in out


def test_explain_varies_the_spec(capsys):
    data = run(capsys, "explain", "llama-3-8b", "--set", "attention.kv_heads=1", "--set", "depth=2", "--json").json
    assert data["varied"]
    assert data["spec"]["attention"]["kv_heads"] == 1
    assert data["parameters"]["total"] < 2_000_000_000


def test_explain_counts_at_the_contexts_that_are_given(capsys):
    data = run(capsys, "explain", "llama-3-8b", "--context", "65536", "4096", "--json").json
    assert [cost["context"] for cost in data["costs"]] == [4096, 65536]


def test_explain_with_many_contexts_breaks_the_table_not_the_cells(capsys):
    out = run(capsys, "explain", "llama-3-8b", "--context", *map(str, range(1000, 9000, 1000))).out
    assert out.count("FLOPs per token") == 2
    assert widest(out.splitlines()) <= 100


def test_explain_of_one_layer_draws_its_kind_only(capsys, tmp_path):
    path = written(spec_named("local-global"), tmp_path)
    data = run(capsys, "explain", path, "--layer", "5", "--json").json
    assert [layer["pattern"] for layer in data["layers"]] == ["causal"]
    assert run(capsys, "explain", path, "--layer", "32").status == 2


def test_explain_of_many_kinds_says_how_to_see_the_rest(capsys, tmp_path):
    out = run(capsys, "explain", written(spec_named("many"), tmp_path)).out
    assert "3 more kinds of layers: add --layer N, e.g. 6, 7, 8." in out


def test_explain_of_images_has_one_length_and_no_cache(capsys, tmp_path):
    path = written(images(), tmp_path)
    out = run(capsys, "explain", path).out
    assert "KV cache" not in out
    assert "197" in out
    refused = run(capsys, "explain", path, "--context", "64")
    assert refused.status == 2
    assert "always 197 tokens" in refused.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("explain", "llama-3-8c"), "llama-3-8b"),
        (("explain", "gpt-4"), "not published"),
        (("explain", "missing.toml"), "can't be read"),
        (("explain", "llama-3-8b", "--set", "attention.kv_heads=5"), "does not divide heads"),
        (("explain", "llama-3-8b", "--machine", "h10"), "machine 'h10' is unknown"),
        (("explain", "llama-3-8b", "--png", "x.abc"), "no known picture format"),
        (("explain", "llama-3-8b", "--contexts", "3"), "did you mean '--context'?"),
        (("explain", "llama-3-8b", "--context", "0"), "0 is not at least 1"),
        (("explain", "llama-3-8b", "--html", "x.html"), "add --prompt TEXT"),
        (("explain", "llama-3-8b", "--prompt", "x"), "is a preset: an architecture without weights"),
        (("explain", "x", "--prompt", "x", "--png", "x.png", "--set", "depth=1"), "--set, --png: not with --prompt"),
        (
            ("explain", "llama-3-8b", "--head", "1"),
            "--head: it is chosen on the page about a prompt; add --prompt TEXT",
        ),
    ],
)
def test_explain_of_bad_input_teaches(capsys, argv, says):
    done = run(capsys, *argv)
    assert (done.status, done.out) == (2, "")
    assert says in done.err


@pytest.mark.parametrize("name", ["local-global", "encoder-decoder"])
def test_explain_draws_a_png(capsys, tmp_path, name):
    path = tmp_path / "model.png"
    done = run(capsys, "explain", written(spec_named(name), tmp_path), "--png", str(path))
    assert done.out.splitlines()[-1] == f"Drawn into {path}"
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    "command",
    [
        ["zoo"],
        ["diff", "llama-7b", "llama-3-8b"],
    ],
    ids=["zoo", "diff"],
)
def test_command_that_needs_no_model_loads_neither_torch_nor_matplotlib(command):
    code = f"from anyformer.cli.main import main; assert main({command!r}) == 0"
    assert not {"torch", "matplotlib", "transformers"} & {*fresh(code)}


@pytest.mark.parametrize(
    "changes",
    [{}, {"context": 131072, "attention.pattern": "causal & (chunked(8192) | window(512))"}],
    ids=["explain", "explain-128k"],
)
def test_explain_loads_torch_for_its_kernels_only(changes):
    code = f"""
import anyformer
from anyformer.explain.costs import machine
from anyformer.explain.page import page
from anyformer.explain.report import report
assert list(page(report(anyformer.spec("llama-3-8b", {changes!r}), machine("h200"), name="llama-3-8b"), 100))
"""
    assert not {"torch", "matplotlib", "transformers"} & {*fresh(code)}
    code = 'from anyformer.cli.main import main; assert main(["explain", "llama-3-8b"]) == 0'
    assert not {"matplotlib", "transformers"} & {*fresh(code)}


@pytest.mark.parametrize(
    ("device", "training", "paged"),
    [("cpu", block_local.KERNEL.name, sdpa.KERNEL.name), ("cuda", flex.KERNEL.name, PAGED)],
)
def test_explain_shows_the_kernels_of_a_device_with_the_refusals_of_the_others(
    capsys, tmp_path, device, training, paged
):
    path = written(spec_named("local-global"), tmp_path)
    out = run(capsys, "explain", path, "--device", device).out
    section = out[out.index(f"Attention kernels on {device}") :].splitlines()
    local = next(line for line in section if line.endswith(f"training: {training}"))
    assert section[section.index(local) + 1].startswith("    ")
    data = run(capsys, "explain", path, "--device", device, "--json").json["kernels"]
    found = {(each["layers"], each["phase"]): each for each in data["uses"]}
    assert found[local.split(", training")[0], "training"]["kernel"] == training
    assert found[local.split(", training")[0], "paged decoding"]["kernel"] == paged
    assert all(each["others"] for each in data["uses"])
    narrow = run(capsys, "explain", path, "--device", device, "--dtype", "float64", "--layer", "5", "--json").json
    assert narrow["kernels"]["dtype"] == "float64"
    assert {each["kernel"] for each in narrow["kernels"]["uses"]} == {"sdpa"} | (
        {"grouped"} if device == "cpu" else set()
    )


def on_terminal(*argv: str, columns: int) -> str:
    """What a command writes to a terminal of so many columns."""
    main_end, far_end = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONPATH": str(HERE)}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, "-m", "anyformer", *argv], stdout=far_end, env=environment) as process:
        os.close(far_end)
        found = b""
        while True:
            try:
                piece = os.read(main_end, 65536)
            except OSError:
                break
            if not piece:
                break
            found += piece
        assert process.wait() == 0
    os.close(main_end)
    return found.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_explain_on_a_terminal_has_colour_and_fits(columns):
    import re

    text = on_terminal("explain", "llama-3-8b", columns=columns)
    assert "\x1b[" in text
    assert widest(re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()) <= columns


def test_explain_for_ascii_only_draws_with_ascii():
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "anyformer", "explain", "llama-3-8b"]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"(+)------------+" in done.stdout


def test_explain_of_a_prompt_writes_a_page_and_says_where(capsys, tmp_path, monkeypatch):
    small_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    done = run(capsys, "explain", "run", "--prompt", "the cat sat")
    assert (done.status, done.err) == (0, "")
    assert done.out == "4 tokens, 12 attention heads: open explain.html in a browser\n"
    assert "<title>run: a prompt, explained</title>" in (tmp_path / "explain.html").read_text()


def test_explain_of_a_prompt_as_json_writes_a_page_only_if_asked(capsys, tmp_path, monkeypatch):
    small_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    alone = run(capsys, "explain", "run", "--prompt", "the cat sat", "--json")
    assert not list(tmp_path.glob("*.html"))
    both = run(capsys, "explain", "run", "--prompt", "the cat sat", "--json", "--html", "it.html")
    assert alone.json == both.json
    assert alone.json["name"] == "run"
    assert [path.name for path in tmp_path.glob("*.html")] == ["it.html"]


def test_explain_of_a_prompt_shows_the_layer_and_the_head_that_are_asked_for_first(capsys, tmp_path, monkeypatch):
    small_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    done = run(capsys, "explain", "run", "--prompt", "the cat sat", "--layer", "1", "--head", "1", "--json")
    assert (done.status, done.json["first"]) == (0, {"attention": 1, "head": 1})
    assert done.json["attention"][1]["name"] == "layer 1"
    assert run(capsys, "explain", "run", "--prompt", "the cat sat", "--head", "1").status == 0
    wrong = run(capsys, "explain", "run", "--prompt", "the cat sat", "--layer", "9", "--head", "9")
    assert wrong.status == 2
    assert "--layer: 9 is not a layer; the model has 2 layers" in wrong.err
    assert "--head: 9 is not a head" in wrong.err
