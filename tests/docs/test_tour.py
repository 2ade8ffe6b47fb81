"""docs/tour.md: every block runs, and every number on the page is the one that the code prints."""

import re

import pytest

from tests.docs.fences import fences, read, run
from tests.tolerances import TABLE

PAGE = read("docs/tour.md")
SHOWN = [fence for fence in fences(PAGE) if fence.language == "text"]


def test_tour_blocks_run_and_print_what_the_page_shows():
    run(PAGE, "docs/tour.md")


@pytest.mark.parametrize("place", range(len(SHOWN)))
def test_tour_one_digit_changed_is_caught(place):
    text, found = SHOWN[place].text, re.search(r"\d(?!.*\d)", SHOWN[place].text, re.DOTALL)
    if found is None:
        changed = text.replace("cat", "mat")
    else:
        changed = text[: found.start()] + str((int(found[0]) + 1) % 10) + text[found.end() :]
    assert changed != text
    lines = PAGE.split("\n")
    first = SHOWN[place].line - 1
    wrong = [*lines[:first], *changed.split("\n")[:-1], *lines[first + text.count("\n") :]]
    with pytest.raises(AssertionError, match="but it prints"):
        run("\n".join(wrong), "docs/tour.md")


def test_tour_output_without_a_text_block_is_caught():
    with pytest.raises(AssertionError, match="but it prints"):
        run("```python\nprint(1)\n```\n", "a page")


def test_tour_every_section_from_tokens_to_cache_compares_with_the_library():
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    silent = [s.split("\n")[0] for s in sections if "same(" not in s]
    # Ids have no other side; the mask compares where it is infinite, and counting prints both sides.
    assert [s.split(".")[0] for s in silent] == ["2", "8", "15", "Where to go from here"]


def test_tour_comparison_is_as_strict_as_the_formula_row():
    assert f"< {TABLE['formula'].limit:g}" in PAGE
