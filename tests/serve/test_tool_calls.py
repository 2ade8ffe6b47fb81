"""Calls of tools in what a model writes: the formats that templates teach, and texts that are none, however they are cut."""

import json
import random

import pytest

from anyformer.generation.chat.template import ChatTemplate
from anyformer.generation.guided import compile_worker
from anyformer.serve.tool_calls.formats import Bare, Call, Listed, Tagged, schema_of, tool_format
from anyformer.serve.tool_calls.reader import ToolCallReader

TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip
ADD = Call("add", '{"a": 1}')
NOW = Call("now", "{}")
NAMES = {"add", "now"}
CALL = '{"name": "add", "arguments": {"a": 1}}'
CUT = '{"name": "now", "argum'
WRITTEN = [
    (Tagged(), '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "", [ADD]),
    (Tagged(), 'I add.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n<tool_call>{"name": "now"}</tool_call>', "I add.", [ADD, NOW]),
    (Tagged(), "a < b and <tool", "a < b and <tool", []),
    (Tagged(), "<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", []),
    (Tagged(), f"hi<tool_call>{CALL}</tool_call>\nIt is done.", "hi\nIt is done.", [ADD]),
    (Tagged(), f"<tool_call>{CALL}</tool_call> so <tool_call>{CALL}</tool_call>\n", " so ", [ADD, ADD]),
    (Tagged(), f"<tool_call>{CALL}</tool_call>\n<tool_call>{CUT}", f"\n<tool_call>{CUT}", [ADD]),
    (Tagged(), f"<tool_call>{CUT}</tool_call><tool_call>{CALL}", f"<tool_call>{CUT}</tool_call>", [ADD]),
    (Tagged(), f"<tool_call>{CALL}\n<tool_call>{CALL}</tool_call>", "", [ADD, ADD]),
    (Tagged(), '<tool_call>{"name": "add", "arguments": {"a": "</tool_call><tool_call>"}}</tool_call>', "", [Call("add", '{"a": "</tool_call><tool_call>"}')]),
    (Tagged(), '<tool_call>{"name": "Ada"}</tool_call>', '<tool_call>{"name": "Ada"}</tool_call>', []),
    (Tagged(), "<tool_call>" + "[" * 100_000, "<tool_call>" + "[" * 100_000, []),
    (Listed(), f"[TOOL_CALLS][{CALL}, {CUT}", CUT, [ADD]),
    (Listed(), f"well [TOOL_CALLS][{CALL}]\nIt is done.", "well It is done.", [ADD]),
    (Listed(), '[TOOL_CALLS][{"name": "Ada"}]', '[TOOL_CALLS][{"name": "Ada"}]', []),
    (Bare(), f"[{CALL}, {CALL}]", "", [ADD, ADD]),
    (Bare(), f" [\n    {CALL}\n]\n", "", [ADD]),
    (Bare(), '{"name": "add", "parameters": {"a": "x; y"}}; {"name": "now", "parameters": {"b": ";"}}', "", [Call("add", '{"a": "x; y"}'), Call("now", '{"b": ";"}')]),
    (Bare(), f"<|python_tag|>{CALL}", "", [ADD]),
    (Bare(), f"{CALL}; {CUT}", CUT, [ADD]),
    (Bare(), '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
    (Bare(), f"{CALL} is how it is called", f"{CALL} is how it is called", []),
    (Bare(), "[1] says so", "[1] says so", []),
    (Bare(), "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
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
        reader = ToolCallReader(form, NAMES)
        shown = "".join(reader.push(piece) for piece in pieces) + reader.end()
        assert (shown, reader.calls) == (said, calls)


def test_reader_never_shows_the_beginning_of_a_call():
    reader = ToolCallReader(Tagged(), NAMES)
    shown = [reader.push(letter) for letter in 'ok<tool_call>{"name": "now"}</tool_call>']
    assert "".join(shown) == "ok"
    assert reader.end() == ""
    assert reader.calls == [NOW]


@pytest.mark.parametrize("text", ['{"answer": 4, ', "[1] says", "  the cat", "<|python", "<|python_tag|>print"])
def test_reader_of_bare_calls_shows_what_can_be_none_at_once(text):
    reader = ToolCallReader(Bare(), NAMES)
    shown = "".join(reader.push(letter) for letter in text)
    assert shown == ("" if text == "<|python" else text)
    assert shown + reader.end() == text


@pytest.mark.parametrize("form", [Tagged(), Listed(), Bare()])
def test_grammar_of_a_required_call_bounds_the_blanks_of_its_json(form):
    llguidance = pytest.importorskip("llguidance")
    pytest.importorskip("llguidance.gbnf_to_lark")
    ((kind, source),) = form.guided(TOOLS[:1], None)["guided"].items()
    kind, source = ("lark", source) if kind == "grammar" else (kind, json.dumps(source))
    lark = compile_worker.as_lark(llguidance, kind, source)
    words = llguidance.LLTokenizer(compile_worker.Words(0, {}))
    before = {Tagged: "<tool_call>\n", Listed: "[TOOL_CALLS][", Bare: ""}[type(form)]
    after = {Tagged: "\n</tool_call>", Listed: "]", Bare: ""}[type(form)]

    def allows(text: str) -> bool:
        matcher = llguidance.LLMatcher(words, lark, log_level=0)
        return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()

    call = f'{{"name": "add", "{getattr(form, "key", "arguments")}": {{"a": 1}}}}'
    assert allows(before + call + after)
    assert allows(before + call.replace(": {", ":\n    {") + after)
    assert not allows(before + call.replace(": {", ":  {") + after)
    assert not allows(before + call.replace(": {", ":\n\n{") + after)


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
