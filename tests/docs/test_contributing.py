"""CONTRIBUTING.md and docs/extending.md: the recipes work as installed plug-ins, and the tour knows every folder."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from anyformer.registry import ENTRY_POINTS
from tests.contract.contracts import CONTRACTS
from tests.docs.fences import ROOT, fences, read

PAGE = read("CONTRIBUTING.md") + read("docs/extending.md")
USE = """
import torch
import anyformer as af
from anyformer.kernels.attention import attend, reference
from anyformer.kernels.dispatch import KernelRequest
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.parts.patterns.full import Full
from anyformer.specs.patterns import Tokens
from tests.contract.contracts import CONTRACTS
from tests.tolerances import assert_close
torch.set_num_threads(1)

base = {"vocab": 37, "width": 24, "depth": 2, "context": 64, "attention": {"heads": 6, "kv_heads": 3, "head_dim": 4}}
plain = af.spec(base | {"position": "kerple"})
everything = plain.vary({
    "attention.pattern": "causal & comb(2)", "norm.kind": "absnorm", "ffn.kind": "mish",
    "attention.mixer.kind": "sigmoid", "init.kind": "calm", "position.start": 2.0,
})
for spec in (plain, everything):
    for contract in CONTRACTS:
        contract(spec)

start = af.build(everything).get_parameter("decoder.positions.0.r_H")
assert torch.equal(start, torch.full((6,), 2.0)), start
try:
    plain.vary({"position.start": -1.0, "attention.pattern": "causal & comb(0)"})
except af.SpecError as error:
    assert len(error.problems) == 2, error

import recipe_kernel
make = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(2, 3, h, 4, generator=make, dtype=torch.float64, requires_grad=True) for h in (6, 3, 3))
here = Tokens(torch.arange(3)[None])
attn_mask = AttentionMask(Full(), here, here, plain=True, shape="none")
rules = dict(scale=0.5, mixer=plain.attention.mixer, own={}, mask=attn_mask)
outs = [attend(q, k, v, kernel=kernel, **rules) for kernel in (recipe_kernel.KERNEL, reference.KERNEL)]
grads = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs]
for ours, theirs in zip((outs[0], *grads[0]), (outs[1], *grads[1]), strict=True):
    assert_close("kernel", ours, theirs)
asked = dict(device="cpu", dtype=torch.float64, phase="decode", pattern=Full(), mixer=plain.attention.mixer)
assert recipe_kernel.why_not(KernelRequest(shape="none", **asked)) is None
assert recipe_kernel.why_not(KernelRequest(shape="causal", **asked)) == "it knows no mask"
print("used", *sorted({everything.position.kind, everything.norm.leaf.kind, everything.ffn.kind, everything.init.kind}))
"""

TRAIN = """
import sys
from pathlib import Path
import torch
from anyformer.cli.main import main
from anyformer.data.shards import open_examples
from anyformer.train.loggers import read_metrics
torch.set_num_threads(1)

lines = "".join(f'"text {i}, with a comma",{i}\\n' for i in range(40))
Path("texts.csv").write_text("body,number\\n" + lines)
made = ["texts.csv", "--column", "text=body", "--train", "chars", "--special", "<eos>", "--hold-out", "0.2"]
assert main(["tokenize", *made, "--out", "data", "--json"]) == 0
assert len(open_examples("data", "train")) + len(open_examples("data", "valid")) == 40

Path("config.toml").write_text('''
[model.spec]
width = 16
depth = 1
context = 64
attention = { heads = 2 }
[data]
folder = "data"
packing = "first_fit"
[objective]
kind = "backward"
[optim]
kind = "lion"
[schedule]
kind = "wsd_root"
[[stages]]
steps = 12
length = 64
batch = 4
[compute]
threads = 1
[run]
folder = "run"
log = ["sheet"]
''')
assert main(["train", "config.toml", "--json"]) == 0
steps = read_metrics(Path("run"), "step")
assert len(steps) == 12 and steps[-1]["loss"] < steps[0]["loss"], steps
assert steps[-1]["rate"] < steps[8]["rate"] == 1.0, steps
assert Path("run/curves.tsv").read_text().count("train/loss") == 12
assert main(["verify", "resume", "run", "--steps", "4", "--json"]) == 0
"""

MODULES = ("position", "pattern", "norm", "ffn", "mixer", "init", "kernel", "objective", "packing", "format", "schedule",
           "optim", "lion_rule", "logger")  # fmt: skip


def recipes() -> dict[str, str]:
    """Module name -> the whole files of the recipes, in the order of the page."""
    files = [fence.text for fence in fences(PAGE) if fence.language == "python"]
    names = [name if name == "lion_rule" else f"recipe_{name}" for name in MODULES]
    return dict(zip(names, files, strict=True))


@pytest.fixture
def site(tmp_path):
    """A folder as an installer leaves it: the recipes as modules, and a distribution that names the leaves."""
    project = tomllib.loads(next(fence.text for fence in fences(PAGE) if fence.language == "toml"))["project"]
    files = recipes()
    points = dict(project["entry-points"][ENTRY_POINTS])
    (module,) = points.values()
    files[module] = files.pop("recipe_position")
    points |= {name: name for name in files if name not in (module, "recipe_kernel", "lion_rule")}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"[{ENTRY_POINTS}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def python(code: str, *paths: object, cwd: object = ROOT) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, so that its kinds reach no other test."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment, cwd=str(cwd), capture_output=True, text=True, timeout=900,
    )  # fmt: skip


def test_recipes_installed_as_plugins_keep_every_promise(site):
    done = python(USE, site, ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "used absnorm calm kerple mish\n"


def test_recipes_of_training_installed_as_plugins_make_a_run_that_resumes(site, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    done = python(TRAIN, site, ROOT, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_plugin_is_picked_up_by_the_contract_tests(site):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT)))}
    tests = ["-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "tests/contract/test_contracts.py"]
    done = subprocess.run(
        [sys.executable, *tests, "-k", "kerple and (keeps_promise or one_graph)"],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert f"{len(CONTRACTS) + 1} passed" in done.stdout, done.stdout


def test_recipe_kind_without_the_plugin_is_unknown():
    code = 'import anyformer as af\naf.spec({"width": 8, "position": "kerple"})'
    done = python(code, ROOT)
    assert done.returncode == 1
    assert "position.kind: 'kerple' is unknown" in done.stderr


def test_recipe_files_import_no_torch_when_a_spec_is_read(site):
    code = (
        'import sys, anyformer as af\naf.spec({"vocab": 9, "width": 8, "depth": 1, "context": 8, "position": "kerple", '
        '"attention": {"heads": 2, "mixer": "sigmoid"}, "norm": "absnorm", "ffn": "mish"}).count().params\n'
        'assert "torch" not in sys.modules'
    )
    done = python(code, site, ROOT)
    assert done.returncode == 0, done.stderr


def tour() -> set[str]:
    """Every folder that the tour names; of several in one line the later ones stand beside the first."""
    text = re.search(r"^<!-- tour -->\n(.*?)^<!-- end of tour -->$", PAGE, re.MULTILINE | re.DOTALL)[1]
    found = set()
    for cell in re.findall(r"^\| (`.+?`) \| .+ \|$", text, re.MULTILINE):
        first, *more = re.findall(r"`([^`]+)/`", cell)
        parent = "" if "/" not in first else first.rsplit("/", 1)[0] + "/"
        found |= {first, *(parent + name for name in more)}
    return found


def test_tour_names_only_folders_that_exist():
    missing = [path for path in tour() if not (ROOT / path).is_dir()]
    assert not missing, f"CONTRIBUTING.md lists {missing}"


def test_tour_names_every_folder_of_the_package_and_fits_on_two_screens():
    folders = {path.parent for path in (ROOT / "anyformer").rglob("*.py")}
    paths = {str(path.relative_to(ROOT)) for path in folders}
    assert not paths - tour(), f"CONTRIBUTING.md lacks a line for {sorted(paths - tour())}"
    lines = PAGE[PAGE.index("<!-- tour -->") : PAGE.index("<!-- end of tour -->")].count("\n")
    assert lines <= 60


def test_every_file_of_the_package_opens_with_a_sentence():
    for path in (ROOT / "anyformer").rglob("*.py"):
        assert path.read_text().lstrip("#! ").startswith('"""'), f"{path.relative_to(ROOT)} does not say what it is"
