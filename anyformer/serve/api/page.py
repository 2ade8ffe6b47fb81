"""The page: its files, what it is told of the model, and looks inside of it."""

import dataclasses
from typing import Any

from anyformer.serve.api.context import Context
from anyformer.serve.api.tokens import chat_ids
from anyformer.serve.errors import ApiError, bad_request
from anyformer.serve.fields.page import look_table
from anyformer.serve.http.reply import HttpRequest, Reply, Route
from anyformer.serve.page import PageFile, page_files, policy

SOURCES = ("prompt", "ids", "messages")
"""Fields of /api/look, of which each request has one."""


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """All of them. The files are open to everybody, as a browser can't send a key with them; they hold no data."""
    api = PageApi(context)
    headers = {"content-security-policy": policy(context.config.connect_origins)}
    files = {("GET", path): file_route(each, headers) for path, each in page_files().items()}
    return files | {
        ("GET", "/api/model"): Route(api.model),
        ("POST", "/api/look"): Route(api.look, look_table(context.bounds)),
    }


def file_route(file: PageFile, headers: dict[str, str]) -> Route:
    """One file, read once."""
    reply = Reply(file.body, headers=headers, content_type=file.content_type)

    async def send(request: HttpRequest) -> Reply:
        """A file of the page."""
        return reply

    return Route(send, open=True, drains=False)


class PageApi:
    """The handlers, for one server."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.described = describe(context)

    async def model(self, request: HttpRequest) -> Reply:
        """What the page shows of the model and the server."""
        return Reply(self.described)

    async def look(self, request: HttpRequest) -> Reply:
        """What happens inside of the model while it reads a text."""
        data, context = request.data, self.context
        context.check_model(data["model"])
        given = [name for name in SOURCES if data[name] is not None]
        if len(given) != 1:
            found = f"{', '.join(given)}: are all given" if given else "prompt: is missing"
            raise bad_request(f"{found}; give one of {', '.join(SOURCES)}", (given or SOURCES)[0])
        most = context.config.limits.look_tokens
        if given == ["messages"]:
            chat = {"continue_final_message": False, "add_generation_prompt": None, "tools": None} | data
            ids = await chat_ids(context, chat | {"chat_template_kwargs": None})
        elif given == ["prompt"]:
            ids = await context.texts.prompt(data["prompt"], context.room)
        else:
            ids = data["ids"]
        if len(ids) > most:
            raise ApiError(
                400, f"{given[0]}: has {len(ids):,} tokens; this server looks at {most:,} at most: shorten it",
                param=given[0], code="too_many_tokens",
            )  # fmt: skip
        request.log["prompt_tokens"] = len(ids)
        return Reply(await context.client.look(ids))


def describe(context: Context) -> dict[str, Any]:
    """GET /api/model."""
    facts = context.facts
    return {
        "name": context.names[0],
        "chat": context.texts.template is not None,
        "topology": facts.topology,
        "generates": facts.generates,
        "spec": facts.spec,
        "counts": {"params": facts.params, "layers": facts.spec.get("depth"), "width": facts.width},
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "max_model_len": facts.max_model_len,
        "vocab": facts.vocab,
        "limits": dataclasses.asdict(context.config.limits),
        "defaults": dict(context.defaults),
    }
