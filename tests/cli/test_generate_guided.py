"""`anyformer generate` with a grammar: what it prints behind the prompt fits."""

import json
import re

import pytest

from anyformer.cli.main import main
from tests.cli.small_run import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    small_run(place, {"context": 200})
    return place


@pytest.mark.parametrize("prompt", ["the", "the cat "])
@pytest.mark.parametrize("more", [[], ["--n", "2"]])
def test_generate_with_a_regex_prints_a_text_that_it_matches(run, capsys, prompt, more):
    argv = ["generate", str(run), prompt, "--regex", "[a-c]{2,4}-[0-9]", "--seed", "3", *more]
    assert main(argv) == 0
    for text in capsys.readouterr().out.removesuffix("\n").split("\n---\n"):
        assert re.fullmatch(re.escape(prompt) + "[a-c]{2,4}-[0-9]", text)
    assert main([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    for one in answer.get("answers", [answer]):
        assert re.fullmatch("[a-c]{2,4}-[0-9]", one["text"])
        assert one["reason"] == "stop"


def test_generate_with_a_schema_or_a_grammar_reads_it_from_a_file_or_the_line(run, capsys, tmp_path):
    schema, lark, gbnf = tmp_path / "schema.json", tmp_path / "words.lark", tmp_path / "words.gbnf"
    schema.write_text('{"type": "array", "items": {"enum": [1, 22]}, "minItems": 1, "maxItems": 3}')
    lark.write_text('start: "yes" | "no"\n')
    gbnf.write_text('root ::= "yes" | "no"\n')
    for options in (["--json-schema", str(schema)], ["--json-schema", schema.read_text()]):
        assert main(["generate", str(run), "the", "--json", "--seed", "1", *options]) == 0
        assert {*json.loads(json.loads(capsys.readouterr().out)["text"])} <= {1, 22}
    for file in (lark, gbnf):
        assert main(["generate", str(run), "the", "--json", "--seed", "1", "--grammar", str(file)]) == 0
        assert json.loads(capsys.readouterr().out)["text"] in ("yes", "no")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--regex", "a("], "guided: regex: unclosed group"),
        (["--json-schema", "{"], "guided: json_schema: is no JSON"),
        (["--json-schema", "nowhere.json"], "nowhere.json"),
        (["--grammar", "nowhere.lark"], "nowhere.lark"),
        (["--regex", "a", "--grammar", "b"], "--grammar: not allowed with argument --regex"),
        (["--regex", "a", "--num-beams", "2"], "guided: num_beams does not go together with a grammar"),
    ],
)
def test_generate_with_a_grammar_that_is_none_says_what_is_wrong(run, capsys, options, words):
    try:
        status = main(["generate", str(run), "the", *options])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert words in capsys.readouterr().err
