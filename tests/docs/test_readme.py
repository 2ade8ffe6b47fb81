"""README.md: its python runs and prints what it shows, and its table of axes is that of the registries."""

import re
from typing import Any, get_args

import pytest

from anyformer.parts.positions.rope_scaling import RopeScaling
from anyformer.specs import Embed, FeedForward, Head, Init, Mixer, Norm, Pattern, Position
from anyformer.specs.nodes import Placement, Topology, Wiring
from tests.docs.fences import ROOT, fences, read, run

PAGE = read("README.md")
AXES: list[tuple[str, str, Any]] = [
    ("stacks", "`topology`", Topology),
    ("positions", "`position.kind`", Position),
    ("beyond the trained length", "`position.scaling.kind` of rope", RopeScaling),
    ("who sees whom", "`attention.pattern`, with `&`, `\\|`", Pattern),
    ("scores to weights", "`attention.mixer.kind`", Mixer),
    ("feed-forward", "`ffn.kind`", FeedForward),
    ("norm", "`norm.kind`", Norm),
    ("where norms stand", "`norm.placement`", Placement),
    ("branches of a block", "`block.wiring`", Wiring),
    ("input", "`embed.kind`", Embed),
    ("answer", "`head.kind`", Head),
    ("initial weights", "`init.kind`", Init),
]


def kinds_of(axis: Any) -> list[str]:
    """The choices of a closed axis, or the kinds of an open one that we ship ourselves."""
    if choices := get_args(axis):
        return list(choices)
    return [kind for kind in axis.kinds() if axis.named(kind).__module__.startswith("anyformer.")]


def right_table() -> str:
    rows = [f"| {name} | {path} | {', '.join(kinds_of(axis))} |" for name, path, axis in AXES]
    return "\n".join(["| axis | set by | kinds |", "|---|---|---|", *rows, ""])


def test_readme_table_of_axes_is_that_of_the_registries():
    between = re.search(r"^<!-- axes: .*?-->\n(.*?)^<!-- end of axes -->$", PAGE, re.MULTILINE | re.DOTALL)
    assert between is not None
    assert between[1] == right_table(), f"the right table is\n\n{right_table()}"


def test_readme_blocks_run_and_print_what_the_page_shows():
    space = run(PAGE, "README.md")
    assert space["other"].position.kind == "alibi"


def test_readme_output_of_another_number_is_caught():
    count = f"{run(PAGE, 'README.md')['spec'].count().params}"
    assert count in PAGE
    with pytest.raises(AssertionError, match="but it prints"):
        run(PAGE.replace(count, "1" + count), "README.md")


def test_readme_length_and_first_command_are_in_bounds():
    assert len(PAGE.splitlines()) <= 120
    first = fences(PAGE)[0]
    assert (first.language, first.line <= 20) == ("sh", True)
    # What a person copies is what the checks run.
    assert first.text.strip().replace("pip install", "pip install -q") in read(".ci/run")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/spec.md", "docs/tour.md"])
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
