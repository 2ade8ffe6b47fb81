"""Ranges of sweeps as text: exact ends, whole numbers, lists of any value, and errors that teach."""

import re

import pytest

from anyformer.cli.parser import _change
from anyformer.errors import InputError
from anyformer.lab.ranges import parse_range, read_value


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.002..0.05:log:5", (0.002, 0.004472, 0.01, 0.02236, 0.05)),
        ("1e-4..1e-1:log:4", (1e-4, 1e-3, 1e-2, 1e-1)),
        ("0.123456..9.87654:log:2", (0.123456, 9.87654)),
        ("1..9:5", (1, 3, 5, 7, 9)),
        ("1..9:linear:5", (1, 3, 5, 7, 9)),
        ("9..1:5", (9, 7, 5, 3, 1)),
        ("-1..1:3", (-1, 0, 1)),
        ("0.1..0.3:3", (0.1, 0.2, 0.3)),
        ("1..2:3", (1, 1.5, 2)),
        ("1.0..3.0:3", (1.0, 2.0, 3.0)),
        ("64..512:log:4", (64, 128, 256, 512)),
        ("2..16:log:3", (2, 5.657, 16)),
        ("10000..10010:3", (10000, 10005, 10010)),
        (" 1 .. 3 :3", (1, 2, 3)),
    ],
)
def test_range_between_two_ends_has_its_values(text, wanted):
    found = parse_range(text)
    assert found == wanted
    assert [type(value) for value in found] == [type(value) for value in wanted]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rope,alibi, none", ("rope", "alibi", "none")),
        ("1,2.5,true", (1, 2.5, True)),
        ("[1, 2],[3]", ([1, 2], [3])),
        ("{ kind = 'rope', theta = 1 },alibi", ({"kind": "rope", "theta": 1}, "alibi")),
        ('"a,b",c', ("a,b", "c")),
        ("causal & strided(2, 3),full", ("causal & strided(2, 3)", "full")),
        ("7", (7,)),
        ("false", (False,)),
        ("1,true", (1, True)),
        ("../data", ("../data",)),
        ("runs/../a,b", ("runs/../a", "b")),
        ("a:b", ("a:b",)),
    ],
)
def test_range_of_listed_values_reads_each_by_itself(text, wanted):
    found = parse_range(text)
    assert found == wanted
    assert [type(value) for value in found] == [type(value) for value in wanted]


@pytest.mark.parametrize("text", ["8", "true", "[1, 2]", '"x"', "rope", "1e-3", "causal & window(6)", ""])
def test_value_is_read_as_the_command_line_reads_a_change(text):
    assert read_value(text) == _change(f"name={text}")[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0..1:log:5", "0 has no logarithm; begin above 0, or write linear"),
        ("1..-4:log:5", "-4 has no logarithm"),
        ("1..9:1", "1 values are not from 2 to 1000; for one value write it alone"),
        ("1..9:100000", "100000 values are not from 2 to 1000"),
        ("3..3:5", "both ends are 3"),
        ("1..9:lgo:5", "'lgo' is no scale; did you mean 'log'? (known: linear, log)"),
        ("1..9:log:2.5", "'2.5' is no whole number of values"),
        ("1..9:log:many", "'many' is no whole number of values"),
        ("1..9", "says not how many values it has; write 1..9:log:5"),
        ("1..9:log", "says not how many values it has; write 1..9:log:5"),
        ("1..x:5", "'x' is no finite number"),
        ("1..inf:5", "'inf' is no finite number"),
        ("..9:5", "'' is no finite number"),
        ("1.00001..1.00002:log:7", "7 values are too many, some of them would be equal"),
        ("a,,b", "there is nothing between two commas"),
        ("", "there is nothing between two commas, or at an end"),
        ("a,b,", "there is nothing between two commas, or at an end"),
        ("1,2,1.0", "1.0 is there twice"),
    ],
)
def test_range_that_cannot_be_names_the_text_and_the_way_out(text, words):
    with pytest.raises(InputError, match=re.escape(words)) as failed:
        parse_range(text)
    assert repr(text) in str(failed.value)
