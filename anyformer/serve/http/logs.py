"""One line for each request, as text or JSON. It has counts and times, never what was asked or answered, and no key."""

import json
import logging
import sys
import time
import warnings
from typing import Any

from anyformer.errors import InputError, nearest
from anyformer.serve.http.reply import HttpRequest

LOGGER = logging.getLogger("anyformer.serve")
KINDS = ("text", "json", "none")
PATH_CHARS = 200


class LogFormat(logging.Formatter):
    """Records as text or as JSON, with nothing in them that a terminal would obey."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", None) or {"message": record.getMessage()}
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        when = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03}Z"
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self.kind == "json":
            line = {"time": when, "level": record.levelname.lower()} | fields | ({"traceback": trace} if trace else {})
            return json.dumps(line, default=str)
        words = " ".join(f"{name}={plain(value)}" for name, value in fields.items() if value is not None)
        return "\n".join([f"{when} {words}", *map(plain, trace.splitlines())])


class RequestLog:
    """Writes what became of requests."""

    def __init__(self, kind: str) -> None:
        if kind not in KINDS:
            raise InputError(f"log: {kind!r} is no way to log requests{nearest(kind, KINDS)}")
        self.on = kind != "none"

    def request(self, request: HttpRequest, status: int, error: str | None) -> None:
        """The line of a request that is done. The query is left out: people put keys there."""
        if self.on and LOGGER.isEnabledFor(logging.INFO):
            fields = {
                "request": request.id, "method": request.method, "path": request.path[:PATH_CHARS], "status": status,
                "seconds": round(time.monotonic() - request.arrived, 6), "client": request.client,
                "key": request.key_id, "error": error,
            }  # fmt: skip
            LOGGER.info("request", extra={"fields": fields | request.log})

    def refused(self, client: str, request_id: str, status: int, error: str | None) -> None:
        """The line of bytes that made no request."""
        if self.on and LOGGER.isEnabledFor(logging.INFO):
            LOGGER.info(
                "refused", extra={"fields": {"request": request_id, "status": status, "client": client, "error": error}}
            )


def log_to_stderr(kind: str) -> logging.Handler:
    """Send our lines, those of uvicorn that tell of faults, and all warnings to stderr; the handler, for who removes it
    again. Who calls this inside of `warnings.catch_warnings` gets warnings as they were before.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormat(kind))
    for name, level in (("anyformer.serve", logging.INFO), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
    # What other packages log, unless a program around us has its own way with that.
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    warnings.showwarning = _warned
    return handler


def _warned(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a line of the log, without the place in our source that raised it."""
    LOGGER.warning("%s", message)


def plain(value: Any) -> str:
    """A value in one line, with control characters spelled out."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
