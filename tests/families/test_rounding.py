"""Where the order of roundings matters: bf16 logits equal the published ones to the last bit, and no other order does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.families.rounding import CASES
from tests.tolerances import TABLE

LIMITED = "AVX512_CORE_BF16"
"""Without this, products of bf16 matrices use instructions that not every machine lets a process have."""


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.families.rounding"],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": LIMITED},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", list(CASES))
def test_bf16_logits_equal_the_published_to_the_last_bit(found, kind):
    limit, reason = TABLE["rounding"]
    assert found[kind][""] <= limit, reason


@pytest.mark.parametrize("kind", list(CASES))
def test_rounding_in_another_place_is_seen_in_bf16(found, kind):
    moved = {path: value for path, value in found[kind].items() if path}
    assert "norm.gain_at" in moved
    assert all(value > 2**-8 for value in moved.values()), moved
