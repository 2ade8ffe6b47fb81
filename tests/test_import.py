"""What importing loads: no torch before something needs it. Each in a fresh interpreter; bench/startup.py has times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer
from tests.specs.small import small

pytestmark = pytest.mark.quick

HERE = Path(anyformer.__file__).parent.parent
REPORT = """
import json, sys
{code}
heavy = sorted(name for name in ("torch", "numpy", "transformers", "matplotlib", "rich") if name in sys.modules)
print(json.dumps(heavy))
"""


def fresh(code: str) -> list[str]:
    """Run code in a new interpreter; the heavy packages that it loaded there."""
    command = [sys.executable, "-c", REPORT.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_of_the_package_loads_neither_torch_nor_numpy():
    assert fresh("import anyformer") == []


def test_reading_and_counting_a_spec_loads_no_torch(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(
        small(
            {"layers": {"order": "3 near, far", "near": {"attention": {"pattern": "window(8)"}}, "far": {}}}
        ).to_toml()
    )
    loaded = fresh(f"""
import anyformer as af
import anyformer.specs
spec = af.spec({str(path)!r}, {{"depth": 8, "position.kind": "alibi"}})
assert spec.depth == 8
assert spec.count().params > 0
assert spec.count().intensity("decode", 100) > 0
assert anyformer.specs.ModelSpec.from_toml(spec.to_toml()) == spec
""")
    # Pairs of a pattern are counted with numpy.
    assert loaded in ([], ["numpy"])


@pytest.mark.parametrize("axis", ["Embed", "FeedForward", "Head", "Init", "Mixer", "Norm", "Pattern", "Position"])
def test_listing_the_kinds_of_an_axis_loads_neither_torch_nor_numpy(axis: str):
    assert fresh(f"from anyformer.specs import {axis}; assert {axis}.kinds()") == []


def test_reading_schedules_loads_neither_torch_nor_numpy():
    assert fresh("import anyformer.optim; from anyformer.optim.schedule import Schedule; assert Schedule.kinds()") == []


@pytest.mark.parametrize("name", ["nn.RMSNorm", "optim.AdamW", "attention"])
def test_parts_alone_load_torch_when_they_are_first_used(name: str):
    loaded = fresh(f"import anyformer; assert {name.split('.')[0]!r} in dir(anyformer); assert anyformer.{name}")
    assert "torch" in loaded
    assert "transformers" not in loaded


def test_building_is_what_loads_torch():
    code = "import anyformer; assert anyformer.build"
    assert "torch" in fresh(code)


def test_listing_the_names_of_the_package_shows_all_public_ones_without_torch():
    code = "import anyformer; missing = {*anyformer.__all__, *anyformer._LAZY} - {*dir(anyformer)}; assert not missing, missing"
    assert fresh(code) == []


def test_every_listed_name_of_the_package_is_there():
    assert {*anyformer._LAZY} <= {*anyformer.__all__}
    for name in anyformer.__all__:
        assert getattr(anyformer, name) is not None
