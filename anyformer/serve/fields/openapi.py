"""The OpenAPI document of a server, written from its routes and their tables: what it says is what is checked."""

import inspect
from typing import Any

from anyformer.registry import own_version
from anyformer.serve.http.reply import HttpRequest, Reply, Route, RouteTable

PATH = "/openapi.json"
ERRORS = {
    400: "The request is wrong; `param` names the field.",
    401: "No API key, or a wrong one.",
    403: "This Host or Origin may not ask.",
    404: "There is no such model.",
    408: "The body, or the whole request, took too long.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    429: "Too many requests wait; see Retry-After.",
    500: "The server failed; `message` has the request id.",
    501: "This server, or this model, does not do that.",
    503: "The server is shutting down; see Retry-After.",
}
BODY = (408, 413, 415)
"""Errors of requests with a body."""
ERROR: dict[str, Any] = {
    "type": "object", "required": ["error"],
    "properties": {
        "error": {
            "type": "object", "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}  # fmt: skip


def openapi(routes: RouteTable, *, keys: bool = False) -> dict[str, Any]:
    """The document. `keys`: whether requests need one."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), route in sorted(routes.items(), key=lambda each: each[0][::-1]):
        shown = path.removesuffix("/*") + "/{id}" if path.endswith("/*") else path
        paths.setdefault(shown, {})[method.lower()] = _operation(method, shown, route, keys=keys)
    components: dict[str, Any] = {"schemas": {"Error": ERROR}}
    if keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "anyformer serve", "version": own_version()},
        "paths": paths,
        "components": components,
    }


def _operation(method: str, path: str, route: Route, *, keys: bool) -> dict[str, Any]:
    """What one method of a path does."""
    made: dict[str, Any] = {"operationId": _name(method, path), "summary": _summary(route)}
    if path.endswith("/{id}"):
        made["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    body = method == "POST" if route.reads_body is None else route.reads_body
    if body:
        schema = {"type": "object"} if route.fields is None else nullable(route.fields.record.schema())
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    wrong = [
        status for status in ERRORS if (body or status not in BODY) and (status != 401 or (keys and not route.open))
    ]
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    made["responses"] = {"200": {"description": "The answer."}} | {
        str(status): {"description": ERRORS[status], "content": content} for status in wrong
    }
    if keys and not route.open:
        made["security"] = [{"key": []}]
    return made


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object as it is read: null in a field that need not be there is the same as its absence."""
    needed = set(schema.get("required", ()))
    properties = {
        name: each if name in needed else {"anyOf": [each, {"type": "null"}]}
        for name, each in schema["properties"].items()
    }
    return schema | {"properties": properties}


def _summary(route: Route) -> str:
    if route.fields is not None and route.fields.summary:
        return route.fields.summary
    said = inspect.getdoc(route.handler) or ""
    return said.partition("\n")[0].partition(": ")[2] or said.partition("\n")[0]


def _name(method: str, path: str) -> str:
    return method.lower() + "".join(f"_{part}" for part in path.replace("{", "").replace("}", "").split("/") if part)


def openapi_route(routes: RouteTable, *, keys: bool) -> dict[tuple[str, str], Route]:
    """GET /openapi.json of all these routes, and itself."""

    async def send(request: HttpRequest) -> Reply:
        """GET /openapi.json: this document."""
        return Reply(document)

    own = {("GET", PATH): Route(send)}
    document = openapi({**routes, **own}, keys=keys)
    return own
