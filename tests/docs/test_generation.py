"""docs/generation-equality.md: every family and way has its row, and none a mismatch."""

from anyformer.verify.generation import MODES
from tests.docs.fences import UPDATE, read
from tests.generation.test_equality import KINDS


def test_page_has_a_row_for_every_way_and_family_without_a_mismatch():
    lines = read("docs/generation-equality.md").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    figures = {row[0]: row[1:] for row in rows if len(row) == 8 and row[0] not in ("way", "family")}
    wanted = {way.name for way in MODES} | {*KINDS, "random specs"}
    assert set(figures) == wanted, UPDATE
    for name, (answers, tokens, mismatches, _, narrow, narrow_mismatches, _) in figures.items():
        assert (mismatches, narrow_mismatches) == ("0", "0"), name
        assert int(tokens) == 12 * int(answers) == 12 * int(narrow) > 0, name
