"""Calls of tools in what a model writes: the formats that templates teach, and texts that are none, however they are cut."""

import json
import random

import pytest

from anyformer.generation.chat.template import ChatTemplate
from anyformer.serve.tool_calls.formats import Bare, Call, Listed, Tagged, schema_of, tool_format
from anyformer.serve.tool_calls.reader import ToolCallReader

TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip
ADD = Call("add", '{"a": 1}')
NOW = Call("now", "{}")
WRITTEN = [
    (Tagged(), '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "", [ADD]),
    (Tagged(), 'I add.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n<tool_call>{"name": "now"}</tool_call>', "I add.", [ADD, NOW]),
    (Tagged(), "a < b and <tool", "a < b and <tool", []),
    (Tagged(), "<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", []),
    (Listed(), '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]', "", [ADD, NOW]),
    (Listed(), "[TOOL] no", "[TOOL] no", []),
    (Bare(), ' {"name": "add", "parameters": {"a": 1}}', "", [ADD]),
    (Bare(), '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}', "", [ADD, NOW]),
    (Bare(), '{"answer": 4}', '{"answer": 4}', []),
    (Bare(), 'A dict: {"name": "add", "parameters": {}}', 'A dict: {"name": "add", "parameters": {}}', []),
    (Bare(), "   ", "   ", []),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "said", "calls"), WRITTEN)
def test_reader_text_cut_anywhere_gives_the_same_words_and_calls(form, text, said, calls):
    rng = random.Random(0)
    for _ in range(50):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        reader = ToolCallReader(form)
        shown = "".join(reader.push(piece) for piece in pieces) + reader.end()
        assert (shown, reader.calls) == (said, calls)


def test_reader_never_shows_the_beginning_of_a_call():
    reader = ToolCallReader(Tagged())
    shown = [reader.push(letter) for letter in 'ok<tool_call>{"name": "now"}</tool_call>']
    assert "".join(shown) == "ok"
    assert reader.end() == ""
    assert reader.calls == [NOW]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if tools %}<tool_call>{% endif %}", Tagged),
        ("{% for tool in tools %}{% endfor %}[TOOL_CALLS]", Listed),
        ('{{ tools | tojson }} {"name": x, "parameters": y} <|python_tag|>', Bare),
        ("{{ messages[0].content }}", None),
    ],
)
def test_format_is_read_off_the_template(template, expected):
    found = tool_format(ChatTemplate(text=template))
    assert (None if found is None else type(found)) is expected


@pytest.mark.parametrize("form", [Tagged(), Listed(), Bare()])
def test_grammar_of_a_required_call_matches_what_the_format_reads(form):
    llguidance = pytest.importorskip("llguidance")
    guided = form.guided(TOOLS, None)["guided"]
    make = (
        llguidance.LLMatcher.grammar_from_lark if "grammar" in guided else llguidance.LLMatcher.grammar_from_json_schema
    )
    grammar = make(guided.get("grammar") or json.dumps(guided["json_schema"]))
    assert llguidance.LLMatcher.validate_grammar(grammar, None) == ""


def test_schema_names_every_tool_and_nothing_else():
    names = [each["properties"]["name"]["const"] for each in schema_of(TOOLS)["anyOf"]]
    assert names == ["add", "now"]
    assert schema_of(TOOLS[1:])["properties"]["arguments"] == {"type": "object"}
