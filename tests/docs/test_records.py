"""docs/adr and CHANGELOG.md keep their form."""

import re

from tests.docs.fences import ROOT, read

RECORDS = sorted(path.name for path in (ROOT / "docs" / "adr").iterdir())


def test_records_are_numbered_without_gaps():
    assert [name[:4] for name in RECORDS] == [f"{i:04d}" for i in range(1, len(RECORDS) + 1)]
    assert len(RECORDS) >= 9


def test_records_have_title_context_decision_consequences():
    for name in RECORDS:
        assert re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", name), name
        headings = re.findall(r"^#+ .*$", read(f"docs/adr/{name}"), re.MULTILINE)
        assert headings[0].startswith(f"# {name[:4]}. "), name
        assert headings[1:] == ["## Context", "## Decision", "## Consequences"], name


def test_records_name_only_files_that_exist():
    for name in RECORDS:
        for path in re.findall(r"`((?:\w+/)+\w+\.py)`", read(f"docs/adr/{name}")):
            assert (ROOT / path).exists() or (ROOT / "anyformer" / path).exists(), f"{name} names {path}"


def test_changelog_begins_with_what_is_unreleased():
    sections = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert sections[0] == "[Unreleased]"
    kinds = re.findall(r"^### (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
