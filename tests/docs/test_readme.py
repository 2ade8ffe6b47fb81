"""README.md: its commands and its python run, and its table and its picture are those of the registries."""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

from anyformer.cli.main import parser
from tests.docs.fences import ROOT, UPDATE, fences, read, run
from tests.docs.fences import maker as load_maker

PAGE = read("README.md")
SHORTER = "--text code.txt --steps 2 --set depth=1 --set width=32"
"""Added to `quickstart` here, so that a test does not train for two minutes; `.ci/run` runs it as it is."""
FEWER = "--set stages.steps=20 --set stages.length=32 --set stages.batch=2 --set model.spec.depth=1 --set run.eval_batches=1"
"""Added to `train`."""
BRIEFER = "--text code.txt --seeds 2 --budget '2 steps' --set depth=1 --set width=32 --set context=32 --set stages.length=32 --no-speeds"
"""Added to `ablate`."""
PROGRESS = re.compile(r"(looking at the machine|checking every variant|training: .*)\n")


@pytest.fixture(scope="module")
def axes():
    return load_maker("axes")


def test_readme_table_of_axes_is_that_of_the_registries(axes):
    assert axes.updated(PAGE) == PAGE, UPDATE
    assert axes.table() in PAGE


def test_readme_picture_of_axes_is_that_of_the_registries(axes, tmp_path):
    # A picture carries what it shows as text.
    with Image.open(ROOT / "docs" / "pictures" / "axes.png") as picture:
        assert json.loads(picture.info["Description"]) == json.loads(axes.written()), UPDATE
    axes.draw(tmp_path / "axes.png")
    with Image.open(tmp_path / "axes.png") as picture:
        assert picture.info["Description"] == axes.written()
        assert len(picture.convert("RGB").getcolors(2**20)) > 50


def test_readme_blocks_run_and_print_what_the_page_shows():
    space = run(PAGE, "README.md")
    assert space["other"].position.kind == "alibi"
    assert space["ids"].shape == (1, 10)


def test_readme_output_of_another_number_is_caught():
    count = f"{run(PAGE, 'README.md')['spec'].count().params}"
    assert count in PAGE
    with pytest.raises(AssertionError, match="but it prints"):
        run(PAGE.replace(count, "1" + count), "README.md")


def commands() -> list[str]:
    """Every anyformer command of the page, in order."""
    lines = [line for fence in fences(PAGE) if fence.language == "sh" for line in fence.text.splitlines()]
    return [part.strip() for line in lines for part in line.split("&&") if part.strip().startswith("anyformer ")]


def test_readme_commands_run_one_after_the_other_in_an_empty_folder(tmp_path):
    assert len(commands()) >= 7
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "code.txt").write_text(
        "".join(file.read_text() for file in (ROOT / "anyformer" / "specs").glob("*.py"))
    )
    (tmp_path / "mine.toml").write_text(config())
    for command in commands():
        if command.startswith("anyformer serve "):
            serve_and_ask(command, tmp_path)
            continue
        more = {"quickstart": SHORTER, "train": FEWER, "ablate": BRIEFER}.get(command.split()[1], "")
        words = shlex.split(f"{command} {more}")
        # The second run of the page is compared with the first, which has to keep its name.
        if command == "anyformer quickstart":
            words += ["--out", "runs/quickstart"]
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=900,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        # A study says how far it is now and then, where there is no terminal to show it on.
        told = PROGRESS.sub("", done.stderr) if " ablate " in command else done.stderr
        assert (done.returncode, told) == (0, ""), f"{command}\n{done.stderr}"
        assert done.stdout.strip()
        if command == "anyformer quickstart --position alibi":
            assert "Beside quickstart: 1 axis differs" in done.stdout
    assert (tmp_path / "llama.png").stat().st_size > 10_000
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()


def serve_and_ask(command: str, folder: Path) -> None:
    """Start the page's server on a free port, and ask it with the page's own curl line."""
    (asked,) = [line for fence in fences(PAGE) for line in fence.text.splitlines() if line.startswith("curl ")]
    server = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(command), "--port", "0", "--log", "none"],
        cwd=folder, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert server.stderr is not None
        told = server.stderr.readline()
        place = re.search(r"http://(127\.0\.0\.1:\d+)", told)
        assert place is not None, told + server.stderr.read()
        words = shlex.split(asked.replace("localhost:8000", place[0]))
        url, header, body = words[1], words[words.index("-H") + 1], words[words.index("-d") + 1]
        name, value = header.split(": ")
        request = urllib.request.Request(url, body.encode(), {name: value})
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] > 0
    finally:
        server.terminate()
        assert server.wait(120) == 0
        if server.stderr is not None:
            server.stderr.close()


def config() -> str:
    """The config that the page shows."""
    (found,) = [fence.text for fence in fences(PAGE) if fence.language == "toml"]
    return found


def test_readme_commands_for_many_processes_are_ones_that_torchrun_and_we_take():
    from torch.distributed.run import get_args_parser

    lines = [line for fence in fences(PAGE) if fence.language == "sh" for line in fence.text.splitlines()]
    found = [shlex.split(line)[1:] for line in lines if line.startswith("torchrun ")]
    taken = [get_args_parser().parse_args(words) for words in found]
    assert [(each.nnodes, each.nproc_per_node, each.max_restarts) for each in taken] == [("1:1", "8", 0), ("4", "8", 3)]
    for each in taken:
        assert (each.module, each.training_script) == (True, "anyformer")
        assert parser().parse_args(each.training_script_args).config == "mine.toml"


def test_readme_transcript_shows_the_promised_figures():
    (shown,) = [fence.text for fence in fences(PAGE) if "this model" in fence.text]
    gzip, ours = (float(re.search(rf"^{name} +([\d.]+)", shown, re.MULTILINE)[1]) for name in ("gzip -9", "this model"))
    assert ours < 0.88 * gzip


def test_readme_length_and_first_command_are_in_bounds():
    assert len(PAGE.splitlines()) <= 125
    first = fences(PAGE)[0]
    assert (first.language, first.line <= 20) == ("sh", True)
    assert first.text == "pip install -e . && anyformer quickstart\n"
    # What a person copies is what the checks run.
    checks = re.search(r"`(pip install [^`]*pytest)`", PAGE)[1]
    assert checks.replace("pip install", "pip install -q") in read(".ci/run")
    assert "anyformer quickstart\n" in read(".ci/run")


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/spec.md",
        "docs/tour.md",
        "docs/training.md",
        "docs/lab.md",
        "docs/serving.md",
    ],
)
def test_page_links_lead_to_files_and_headings(name):
    page = read(name)
    anchors = {
        re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", page):
        if target.startswith("#"):
            assert target[1:] in anchors, f"{name} has no heading {target}"
        elif not target.startswith("https://"):
            assert ((ROOT / name).parent / target.split("#")[0]).exists(), f"{name} links to {target}"
