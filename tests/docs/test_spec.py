"""docs/spec.md: its tables are those of the dataclasses, its python runs, and it knows every argument and result."""

import dataclasses
import re

import pytest

from anyformer.model.arguments import NAMES as ARGUMENTS
from anyformer.model.model import Output
from anyformer.parts.positions.alibi import Alibi
from anyformer.parts.positions.rope import Rope
from anyformer.specs import ModelSpec
from tests.docs.fences import UPDATE, fences, read, run
from tests.docs.fences import maker as load_maker

NAME = "docs/spec.md"
PAGE = read(NAME)


@pytest.fixture(scope="module")
def maker():
    return load_maker("spec")


def section(title: str) -> str:
    """The text below a heading."""
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def test_reference_of_the_page_is_up_to_date(maker):
    assert maker.updated(PAGE) == PAGE, UPDATE


def test_reference_with_another_default_is_out_of_date(maker):
    assert "| `10000.0` |" in PAGE
    assert maker.updated(PAGE.replace("| `10000.0` |", "| `20000.0` |")) == PAGE


def test_reference_names_every_field_of_every_node(maker):
    paths = set(re.findall(r"^\| `([\w.]+)` \|", maker.reference(), re.MULTILINE))
    assert {field.name for field in dataclasses.fields(ModelSpec)} <= paths
    for prefix, node in (("position", Rope), ("position", Alibi)):
        assert {f"{prefix}.{field.name}" for field in dataclasses.fields(node)} <= paths


def test_reference_meaning_is_the_docstring_of_the_field(maker):
    assert maker.meaning(Rope, "fraction", set()) == "Share of each head that turns; the rest stays."


def test_reference_field_that_nobody_explains_is_refused(maker):
    @dataclasses.dataclass(frozen=True)
    class Bare:
        unexplained: int = 0

    with pytest.raises(LookupError, match=r"Bare\.unexplained has no docstring"):
        maker.meaning(Bare, "unexplained", set())


def test_reference_meaning_that_no_field_needs_is_refused(maker, monkeypatch):
    monkeypatch.setitem(maker.MEANINGS, "Rope.fraction", "Never read: the field has a docstring.")
    with pytest.raises(LookupError, match=r"no field needs; remove Rope\.fraction"):
        maker.reference()


def test_spec_page_blocks_run_and_print_what_the_page_shows():
    run(PAGE, NAME)


def test_spec_page_toml_blocks_are_read():
    whole, layers = (fence.text for fence in fences(PAGE) if fence.language == "toml")
    spec = ModelSpec.from_toml(whole)
    assert (spec.ffn.kind, spec.position.theta, spec.attention.qk_norm.scope) == ("gelu", 500000.0, "head")
    mixed = ModelSpec.from_toml(whole + layers)
    assert [layer.position.kind for layer in mixed.stacks[0].layers] == ["rope"] * 5 + ["none"]


def test_spec_page_lists_every_argument_of_a_model():
    rows = re.findall(r"^\| (`.*?`) \|", section("Arguments of `model(...)`"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(ARGUMENTS)


def test_spec_page_lists_every_field_of_a_result():
    named = re.findall(r"`out\.(\w+)`", section("Arguments of `model(...)`"))
    assert {field.name for field in dataclasses.fields(Output)} <= set(named)
