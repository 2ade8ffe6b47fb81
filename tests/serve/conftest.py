"""Fixtures of every test of the server. Without the packages of the extra `serve` there is nothing to test."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import anyformer as af
from anyformer.data.tokenizer import train_bpe
from tests.contract.contracts import randomise

if TYPE_CHECKING:
    from tests.serve.running import Running
    from tests.serve.stub_routes import Stub

    Serving = Callable[..., AbstractContextManager[Running]]

if any(importlib.util.find_spec(package) is None for package in ("uvicorn", "httptools")):
    collect_ignore_glob = ["test_*.py"]

TEXT = "the cat sat on the mat, and the dog sat on the cat.\n" * 4
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
SPEC: dict[str, Any] = {
    "width": 32, "depth": 2, "context": 256, "attention": {"heads": 4, "kv_heads": 2, "head_dim": 8},
    "ffn": {"kind": "swiglu", "width": 48}, "ids": {"bos": 0},
}  # fmt: skip

CHAT = """{% if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool.function.name }}{% endfor %}; write <tool_call>...</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or "" }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>{% endif %}{% endif %}"""
ENDS = [2, *range(40, 52)]
"""Ids that end an answer of the chat model: <|im_end|>, and some signs, so that random weights end some of theirs."""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder with random weights, a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    tokenizer = train_bpe([TEXT], 300)
    af.save(randomise(af.build(af.spec(SPEC | {"vocab": tokenizer.vocab})), 0).eval(), folder)
    tokenizer.save(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder that ends some of its answers, with special tokens and a chat template that knows tools."""
    folder = tmp_path_factory.mktemp("served") / "chatty"
    tokenizer = train_bpe([TEXT], 300, ("<|begin|>", "<|im_start|>", "<|im_end|>"))
    spec = SPEC | {"vocab": tokenizer.vocab, "context": 512, "ids": {"bos": 0, "eos": ENDS}}
    af.save(randomise(af.build(af.spec(spec)), 1).eval(), folder)
    tokenizer.save(folder)
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


@pytest.fixture
def serving(model_folder: Path) -> Serving:
    """`with serving(keys=("k",), limits={"queue": 2}) as running:` serves the tiny model with these settings."""
    from tests.serve.running import config_of, serving_engine

    def start(limits: dict[str, Any] | None = None, **changes: Any) -> AbstractContextManager[Running]:
        return serving_engine(config_of(limits, **({"model": str(model_folder)} | changes)))

    return start


@pytest.fixture
def stub() -> Stub:
    """The handlers of `serving_stub`, and what they saw."""
    from tests.serve.stub_routes import Stub

    return Stub()


@pytest.fixture
def serving_stub(stub: Stub) -> Serving:
    """`with serving_stub(limits={...}) as running:` serves handlers that need no engine."""
    from tests.serve.running import config_of, serving_routes

    def start(limits: dict[str, Any] | None = None, **changes: Any) -> AbstractContextManager[Running]:
        return serving_routes(stub.routes, config_of(limits, **changes))

    return start
