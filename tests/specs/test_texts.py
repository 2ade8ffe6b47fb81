"""The two short languages inside a spec: scale formulas and patterns."""

import math

import pytest

from anyformer.specs import Pattern
from anyformer.specs.formulas import ScaleTextError, evaluate
from anyformer.specs.patterns import Both, Either
from tests.specs.small import problems_with, small

NAMES = {"width": 64.0, "heads": 4.0, "head_dim": 16.0, "depth": 2.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (3, 3.0),
        (-0.5, -0.5),
        ("1/sqrt(head_dim)", 0.25),
        ("1/head_dim", 1 / 16),
        (" sqrt(width) ", 8.0),
        ("144", 144.0),
        ("1/sqrt(144)", 1 / 12),
        ("2*width/heads/depth", 16.0),
        ("1/(2*depth)", 0.25),
        ("sqrt(sqrt(width*heads))", 4.0),
        ("1e-1", 0.1),
    ],
)
def test_scale_formula_is_evaluated_over_the_sizes(text: str | float, value: float):
    assert math.isclose(evaluate(text, NAMES), value, rel_tol=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "1/", "sqrt", "sqrt()", "sqrt(1, 2)", "sqrt(x=1)", "sqrt(hed)", "width + 1", "width - 1", "-1",
        "width**2",
        "1/0", "0*width/0", "sqrt(1/0)", "True", "'3'", "None", "1j", "[1]", "width.real", "width(1)",
        "__import__('os')",
        "exec('1')", "lambda: 1", "1; 2", "1e999", "9" * 400, "1\x00", "(" * 500 + "1" + ")" * 500, "sqrt(" * 400,
        "1" + "*1" * 2000,
        float("inf"), float("nan"),
    ],
)  # fmt: skip
def test_scale_that_is_no_formula_is_refused_with_the_names_it_may_use(text: str | float):
    with pytest.raises(ScaleTextError) as caught:
        evaluate(text, NAMES)
    assert str(caught.value) == (
        f"{text!r} is not a scale; give a number or a formula of sqrt, *, / and width, heads, head_dim, depth, "
        "such as '1/sqrt(head_dim)'"
    )


def pattern(text: str) -> Pattern:
    return small({"topology": "encoder", "attention.pattern": text}).attention.pattern


causal, full, window, chunked = (Pattern.named(kind) for kind in ("causal", "full", "window", "chunked"))


@pytest.mark.parametrize(
    ("text", "node", "written"),
    [
        ("causal", causal(), "causal"),
        (" causal() ", causal(), "causal"),
        ("window(4)", window(size=4), "window(4)"),
        ("window(size=4)", window(size=4), "window(4)"),
        ("causal&chunked(4)", causal() & chunked(size=4), "causal & chunked(4)"),
        ("full | causal & window(2)", full() | causal() & window(size=2), "full | causal & window(2)"),
        ("(full | causal) & window(2)", (full() | causal()) & window(size=2), "(full | causal) & window(2)"),
        ("full & (causal & window(2))", full() & (causal() & window(size=2)), "full & (causal & window(2))"),
        ("full | (causal | window(2))", full() | (causal() | window(size=2)), "full | (causal | window(2))"),
        ("(full | causal) | window(2)", (full() | causal()) | window(size=2), "full | causal | window(2)"),
        ("full & causal & window(2)", (full() & causal()) & window(size=2), "full & causal & window(2)"),
    ],
)
def test_pattern_text_is_read_and_written_with_the_same_grouping(text: str, node: Pattern, written: str):
    assert pattern(text) == node
    assert str(node) == written
    assert pattern(written) == node


def test_pattern_table_is_the_same_as_its_text():
    assert small({"attention.pattern": {"kind": "window", "size": 4}}) == small({"attention.pattern": "window(4)"})
    assert small({"attention.pattern": "window(4)"}).to_data()["attention"]["pattern"] == "window(4)"


def test_pattern_joins_are_values():
    assert Both(first=causal(), second=full()) == causal() & full()
    assert hash(Either(first=causal(), second=full())) == hash(causal() | full())
    assert causal() & full() != causal() | full()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "'' is not a pattern; write kinds joined by & and |"),
        ("causal &", "'causal &' is not a pattern; write kinds joined by & and |"),
        ("causal\x00", "'causal\\x00' is not a pattern; write kinds joined by & and |"),
        ("causal and full", "'causal and full' is not a pattern; write kinds joined by & and |, such as 'causal & "
         "chunked(64)'"),
        ("~full", "'~full' is not a pattern; write kinds joined by & and |, such as 'causal & chunked(64)'"),
        ("3", "'3' is not a pattern; write kinds joined by & and |, such as 'causal & chunked(64)'"),
        ("a.b(3)", "'a.b(3)' is not a pattern; write kinds joined by & and |, such as 'causal & chunked(64)'"),
        ("window", "window in 'window': size is missing; it has no default"),
        ("window(4, 5)", "window takes (size), got (4, 5)"),
        ("window(4, size=5)", "window takes (size), got (4, size=5)"),
        ("causal(3)", "causal takes (), got (3)"),
        ("window(size=4, sze=3)",
         "window in 'window(size=4, sze=3)': sze is unknown; did you mean 'size'? (known: size)"),
        ("window(n)", "'window(n)': arguments must be plain numbers or texts"),
        ("window(2.5)", "window in 'window(2.5)': size 2.5 is not a whole number"),
        ("window(True)", "window in 'window(True)': size True is not a whole number"),
        ("causal & window('4')", "window in \"causal & window('4')\": size '4' is not a whole number"),
        ("window(**{'size': 4})", "\"window(**{'size': 4})\": arguments must be plain numbers or texts"),
        ("causal & chonked(4)", "'chonked' is unknown; did you mean 'chunked'?"),
    ],
)  # fmt: skip
def test_pattern_text_that_cannot_be_is_refused_under_attention_pattern(text: str, line: str):
    (found,) = problems_with({"attention.pattern": text})
    assert found.startswith(f"attention.pattern: {line}")


@pytest.mark.parametrize("text", ["(" * 500 + "causal" + ")" * 500, "causal" + " & causal" * 2000])
def test_pattern_text_of_absurd_depth_is_refused_not_a_crash(text: str):
    (found,) = problems_with({"attention.pattern": text})
    assert found.endswith("is not a pattern; write kinds joined by & and |")
