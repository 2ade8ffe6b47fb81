"""docs/parts.md: its blocks run and print what it shows, and the GPT on it is short."""

import anyformer as af
from tests.docs.fences import fences, read, run

PAGE = read("docs/parts.md")


def test_parts_page_blocks_run_and_print_what_the_page_shows():
    run(PAGE, "docs/parts.md")


def test_parts_page_gpt_and_its_training_are_at_most_60_lines():
    first = next(fence for fence in fences(PAGE) if fence.language == "python")
    assert "class GPT" in first.text
    assert "each.step()" in first.text
    assert len(first.text.splitlines()) <= 60


def test_parts_page_names_every_public_part():
    for package, names in (("nn", af.nn.__all__), ("optim", af.optim.__all__)):
        for name in names:
            assert f"af.{package}.{name}(" in PAGE or f"`{name}`" in PAGE, name
