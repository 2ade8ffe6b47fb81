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
from tests.serve.chat_model import SPEC, TEXT, write_chat_model

if TYPE_CHECKING:
    from tests.serve.running import Running
    from tests.serve.stub_routes import Stub

    Serving = Callable[..., AbstractContextManager[Running]]

if any(importlib.util.find_spec(package) is None for package in ("uvicorn", "httptools")):
    collect_ignore_glob = ["test_*.py"]

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


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
    return write_chat_model(tmp_path_factory.mktemp("served") / "chatty")


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
