"""The one route table of a server, gathered from the modules of its endpoints."""

from pathlib import Path
from typing import Any

from anyformer.families.gguf.header import is_gguf
from anyformer.families.io import spec_of
from anyformer.families.shards import CONFIG_BYTES, read_json
from anyformer.generation.pipelines.source import GENERATION
from anyformer.serve.api import (
    chat,
    completions,
    embeddings,
    messages,
    models,
    native,
    operations,
    page,
    responses,
    tokens,
)
from anyformer.serve.api.context import Context
from anyformer.serve.api.sampling import generation_defaults
from anyformer.serve.config import ServeConfig
from anyformer.serve.engine.client import EngineClient
from anyformer.serve.fields.openapi import openapi_route
from anyformer.serve.http.app import ServerState
from anyformer.serve.http.reply import Route, RouteTable
from anyformer.serve.text.texts import Texts, template_file

MODULES = (completions, chat, responses, messages, embeddings, models, tokens, native, operations, page)


def make_context(config: ServeConfig, client: EngineClient, state: ServerState) -> Context:
    """What the handlers of a server share."""
    folder = Path(client.facts.folder)
    template = None if config.chat_template is None else template_file(config.chat_template)
    return Context(
        config=config,
        client=client,
        texts=Texts(folder, spec_of(folder, config.ignore_keys), client.facts.max_model_len, template=template),
        state=state,
        metrics=client.metrics,
        names=config.names,
        defaults=generation_defaults(_generation(folder), dict(config.defaults)),
    )


def make_routes(config: ServeConfig, client: EngineClient, state: ServerState) -> RouteTable:
    """All routes of a server whose engine runs."""
    return gather(make_context(config, client, state))


def gather(context: Context) -> dict[tuple[str, str], Route]:
    """The routes of every module."""
    found: dict[tuple[str, str], Route] = {}
    for module in MODULES:
        found |= module.routes(context)
    return found | openapi_route(found, keys=bool(context.config.keys))


def _generation(folder: Path) -> dict[str, Any]:
    place = folder / GENERATION
    return {} if is_gguf(folder) or not place.is_file() else read_json(place, CONFIG_BYTES)
