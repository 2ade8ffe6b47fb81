"""The models that are served: one, under one or more names."""

from typing import Any
from urllib.parse import unquote

from anyformer.serve.api.context import Context
from anyformer.serve.http.reply import HttpRequest, Reply, Route

BELOW = "/v1/models/"


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """All of them."""

    async def listed(request: HttpRequest) -> Reply:
        """The models that are served."""
        return Reply({"object": "list", "data": [describe(context)]})

    async def one(request: HttpRequest) -> Reply:
        """One of them."""
        context.check_model(unquote(request.path.removeprefix(BELOW)))
        return Reply(describe(context))

    return {
        ("GET", "/v1/models"): Route(listed),
        ("GET", "/models"): Route(listed),
        ("GET", f"{BELOW}*"): Route(one),
    }


def describe(context: Context) -> dict[str, Any]:
    """OpenAI's object, with vLLM's max_model_len and llama.cpp's aliases, tags and meta."""
    facts = context.facts
    return {
        "id": context.names[0],
        "object": "model",
        "created": context.created,
        "owned_by": "anyformer",
        "max_model_len": facts.max_model_len,
        "aliases": list(context.names),
        "tags": [],
        "meta": {
            "n_vocab": facts.vocab,
            "n_ctx_train": facts.context,
            "n_embd": facts.width,
            "n_params": facts.params,
            "size": facts.size,
        },
    }
