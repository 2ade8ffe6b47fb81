"""For those who run the server: health, metrics, version, settings and what is under way."""

from anyformer.registry import own_version
from anyformer.serve.api.context import Context
from anyformer.serve.api.native_answer import generation_settings
from anyformer.serve.errors import ApiError
from anyformer.serve.fields.native import ALL
from anyformer.serve.http.reply import HttpRequest, Reply, Route

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of Prometheus' text format."""
RETRY = "5"
"""Seconds after which somebody who found the server unready may ask again."""


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """All of them."""
    api = OperationsApi(context)
    return {
        ("GET", "/health"): Route(api.health, open=True, drains=False),
        ("GET", "/ready"): Route(api.ready, open=True, drains=False),
        ("GET", "/metrics"): Route(api.metrics, drains=False),
        ("GET", "/version"): Route(api.version, drains=False),
        ("GET", "/props"): Route(api.props, drains=False),
        ("GET", "/slots"): Route(api.slots, drains=False),
    }


class OperationsApi:
    """The handlers, for one server."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def health(self, request: HttpRequest) -> Reply:
        """GET /health: whether the engine works. A server that drains is healthy."""
        if not self.context.client.healthy:
            raise ApiError(503, "the engine has failed; restart the server", code="engine_failed")
        return Reply({"status": "ok"})

    async def ready(self, request: HttpRequest) -> Reply:
        """GET /ready: whether new requests may be sent here."""
        if self.context.state.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", headers={"retry-after": RETRY})
        return await self.health(request)

    async def metrics(self, request: HttpRequest) -> Reply:
        """GET /metrics."""
        context = self.context
        if not context.config.metrics:
            raise ApiError(501, "this server was started without metrics", code="not_supported")
        return Reply(context.metrics.text(), content_type=METRICS_TYPE)

    async def version(self, request: HttpRequest) -> Reply:
        """GET /version."""
        return Reply({"version": own_version()})

    async def props(self, request: HttpRequest) -> Reply:
        """GET /props: llama.cpp's description of the server. No path of the machine is told, only the model's last name."""
        context, texts = self.context, self.context.texts
        template = texts.template
        return Reply(
            {
                "default_generation_settings": {
                    "id": 0, "id_task": -1, "n_ctx": context.room, "speculative": context.config.draft is not None,
                    "is_processing": False, "params": generation_settings(context.defaults, context.defaults.get("max_tokens", ALL)),
                },
                "total_slots": context.facts.max_num_seqs,
                "model_alias": context.names[0],
                "model_path": context.facts.name,
                "modalities": {"vision": False, "audio": False},
                "chat_template": "" if template is None else template.text,
                "bos_token": texts.tokens.get("bos_token", ""),
                "eos_token": texts.tokens.get("eos_token", ""),
                "build_info": context.fingerprint,
                "is_sleeping": False,
            }
        )  # fmt: skip

    async def slots(self, request: HttpRequest) -> Reply:
        """GET /slots: how many are busy. What they do for whom is nobody else's business."""
        context = self.context
        if not context.config.slots:
            raise ApiError(501, "this server was started without --slots", code="not_supported")
        running = int(context.client.snapshot.get("running", 0))
        speculative = context.config.draft is not None
        return Reply(
            [
                {"id": i, "n_ctx": context.room, "speculative": speculative, "is_processing": i < running}
                for i in range(context.facts.max_num_seqs)
            ]
        )
