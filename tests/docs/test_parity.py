"""docs/parity.md: every family and variant that the tests know has its row; the figures are those of the last writing."""

import pytest
import torch

from anyformer.families.family import Family
from tests.docs.fences import UPDATE, read
from tests.docs.fences import maker as load_maker
from tests.families.cases import cases
from tests.families.test_tasks import cases as task_cases


@pytest.fixture(scope="module")
def maker():
    return load_maker("parity")


def rows():
    lines = read("docs/parity.md").partition(load_maker("parity").MARK)[0].splitlines()
    return [line for line in lines if line.startswith("| ")][1:]


def test_page_has_a_row_for_every_family_and_variant(maker):
    wanted = [maker.key(kind, Family.named(kind).architectures[0], variant) for kind, variant in cases()]
    found = [next((key for key in wanted if row.startswith(key)), row) for row in rows()]
    assert found == wanted, UPDATE


def test_page_shows_no_failure_and_no_empty_cell():
    for row in rows():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 7, row
        assert all(cells), row
        assert "fails" not in row, row
        assert cells[3] != "-", "every case is compared as a whole"


def test_page_has_a_row_for_every_family_with_other_heads_and_no_failure(maker):
    lines = read("docs/parity.md").partition(maker.MARK)[2].splitlines()
    found = [line for line in lines if line.startswith("| ")][1:]
    wanted = {kind: 0 for kind, _ in task_cases()}
    for kind, _ in task_cases():
        wanted[kind] += 1
    filled = {
        line.split("|")[1].strip(): sum("e-" in cell or cell == " 0 " for cell in line.split("|")[2:]) for line in found
    }
    assert filled == wanted, UPDATE


def test_cell_of_each_outcome_is_told_apart(maker):
    outcomes = (3.21e-16, 0.0, True, None, ValueError("x"))
    assert [maker.shown(found) for found in outcomes] == ["3e-16", "0", "exact", "-", "**fails**"]


def test_outcome_of_a_case_notes_what_its_test_compares(maker, tmp_path):
    from tests.families.test_parity import Case

    case = Case("gpt2", "tiny", tmp_path)
    assert 0 <= maker.outcome(case, maker.COLUMNS["whole"]) < 1e-9
    assert maker.outcome(case, maker.COLUMNS["round trip"]) is True
    with torch.no_grad():
        next(case.ours.parameters()).mul_(1.5)
    assert isinstance(maker.outcome(case, maker.COLUMNS["whole"]), AssertionError)
    assert isinstance(maker.outcome(case, maker.COLUMNS["round trip"]), AssertionError)
