"""The command line as a whole: help, statuses, streams, and what it loads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli.main import COMMANDS
from tests.cli.command import run
from tests.test_import import fresh

pytestmark = pytest.mark.quick

ROOT = Path(af.__file__).parents[1]


def process(*argv: str, **more) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "anyformer", *argv]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, **more)


def test_main_without_a_command_lists_them_all(capsys):
    ran = run(capsys)
    assert ran.status == 0
    for command in COMMANDS:
        assert f"    {command.name}" in ran.out
        assert command.summary in ran.out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_help_of_every_command_has_an_example_that_names_it(capsys, command):
    ran = run(capsys, command.name, "--help")
    assert ran.status == 0
    assert f"  anyformer {command.name}" in ran.out.split("examples:")[1]
    # argparse shows what is None as a default, and leaves out what has no help.
    assert "None" not in ran.out


@pytest.mark.parametrize("command", [c.name for c in COMMANDS if c.name not in ("quickstart", "zoo", "serve")])
def test_command_without_its_arguments_says_which(capsys, command):
    ran = run(capsys, command)
    assert ran.status == 2
    assert "the following arguments are required" in ran.err
    assert f"see anyformer {command} --help" in ran.err


def test_main_with_an_unknown_command_names_the_nearest(capsys):
    ran = run(capsys, "explan", "llama-3-8b")
    assert (ran.status, "did you mean 'explain'?" in ran.err) == (2, True)


def test_main_with_an_unknown_option_names_the_nearest_of_that_command(capsys):
    ran = run(capsys, "zoo", "--jsn")
    assert (ran.status, "did you mean '--json'?" in ran.err) == (2, True)


def test_main_says_its_version(capsys):
    assert run(capsys, "--version").out == f"anyformer {af.__version__}\n"


@pytest.mark.parametrize("argv", [["--help"], ["quickstart", "--help"], ["generate", "--help"]])
def test_help_loads_nothing_heavy(argv):
    code = (
        "import contextlib, io\nfrom anyformer.cli.main import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main({argv!r})"
    )
    assert fresh(code) == []


def test_main_read_by_a_program_that_leaves_early_ends_quietly():
    done = subprocess.run(
        f"{sys.executable} -m anyformer explain llama-3-8b | head -1", shell=True, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=900,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.startswith("llama-3-8b")


def test_main_into_a_full_device_fails_in_one_line():
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "anyformer", "zoo", "--json"], stdout=full, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=900, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "make room" in done.stderr
    assert "Traceback" not in done.stderr


def test_module_is_the_command():
    done = process("zoo", "llama")
    assert (done.returncode, done.stderr) == (0, "")
    assert "llama-3-8b" in done.stdout
