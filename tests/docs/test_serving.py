"""docs/serving.md: its tables are those of the server, its commands and requests are ones that it takes."""

import json
import re
import shlex

import pytest

from anyformer.cli.main import parser
from anyformer.cli.serve import LIMITS, limit_option
from anyformer.serve.config import Limits
from tests.docs.fences import ROOT, UPDATE, fences, read
from tests.docs.fences import maker as load_maker

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")

from tests.serve.conftest import chat_folder as chat_folder
from tests.serve.running import config_of, serving_engine

NAME = "docs/serving.md"
PAGE = read(NAME)
HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def maker():
    return load_maker("serving")


@pytest.fixture(scope="module")
def server(chat_folder):
    with serving_engine(config_of(model=str(chat_folder), served_model_name=("quickstart",))) as running:
        yield running


def commands(program: str) -> list[list[str]]:
    """The words of every command of the page that runs a program."""
    text = "\n".join(fence.text for fence in fences(PAGE) if fence.language == "sh").replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith(f"{program} ")]


def test_tables_of_the_page_are_up_to_date(maker):
    assert maker.updated(PAGE) == PAGE, UPDATE


def test_tables_with_another_bound_are_out_of_date(maker):
    assert "| 0 to 20 |" in PAGE
    assert maker.updated(PAGE.replace("| 0 to 20 |", "| 0 to 21 |")) == PAGE


def test_table_of_fields_has_all_that_are_read_and_none_twice(maker):
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", maker.fields(), re.MULTILINE)
    assert len(set(rows)) == len(rows)
    refused = set(re.findall(r"^\| `(\w+)` \|", maker.refused(), re.MULTILINE))
    quiet = set(re.findall(r"`(\w+)` \(", maker.refused()))
    for name in ("completions", "chat"):
        own = {field.name for field in maker.TABLES[name].record.fields}
        shown = {row for row, where in rows if where.strip() in ("", name)}
        assert shown <= own <= shown | refused | quiet


def test_table_of_limits_has_each_option_with_its_default():
    for name in LIMITS:
        (shown,) = re.findall(rf"^\| `{limit_option(name)}` \| ([\d,]+) \|", PAGE, re.MULTILINE)
        assert float(shown.replace(",", "")) == getattr(Limits(), name)


def test_table_of_endpoints_has_every_path_of_the_server(server):
    table = PAGE.split("## Endpoints\n")[1].split("## Fields\n")[0]
    found = set()
    for cell in re.findall(r"^\| (`.+?) \| ", table, re.MULTILINE):
        method = ""
        for text in re.findall(r"`([^`]+)`", cell):
            method, _, path = text.rpartition(" ") if " " in text else (method, "", text)
            found.add((method.lower(), path))
    document = server.get("/openapi.json").data
    files = {("get", "/page/...")}
    real = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert found - files == {(method, path) for method, path in real if not path.startswith("/page/")}


def test_commands_of_the_page_are_ones_that_we_take():
    lines = commands("anyformer")
    assert lines
    for words in lines:
        assert parser().parse_args(words).command == "serve"
    options = parser().parse_args(["serve", "x"]).parser._option_string_actions
    named = set(re.findall(r"`(--[a-z][\w-]+)", PAGE)) - {"--build-arg", "--gpus", "--model"}
    assert len(named) > 20
    assert named <= options.keys()


def test_containers_of_the_page_get_arguments_that_we_take():
    (words,) = [words for words in commands("docker") if words[0] == "run"]
    after = words[words.index("anyformer") + 1 :]
    assert parser().parse_args(["serve", *after]).model == "/models/quickstart"


def test_requests_of_the_page_are_answered(server):
    sent = commands("curl")
    assert sent
    for words in sent:
        path = words[0].removeprefix(HERE)
        answer = server.post(path, json.loads(words[words.index("-d") + 1]))
        assert answer.status == 200, answer.body


def test_python_of_the_page_is_answered(server):
    pytest.importorskip("openai")
    space: dict = {}
    blocks = [fence for fence in fences(PAGE) if fence.language == "py"]
    assert len(blocks) >= 6
    for fence in blocks:
        exec(compile(fence.text.replace(HERE, server.base_url), f"{NAME}, line {fence.line}", "exec"), space)
    space["client"].close()


def test_compose_file_of_the_page_is_that_of_the_repository():
    assert (ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8") in [fence.text for fence in fences(PAGE)]


def test_page_names_files_that_exist():
    for path in re.findall(r"`((?:deploy|anyformer)/[\w./-]+)`", PAGE):
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\(([\w./-]+\.md)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
    headings = {
        re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings
