"""`serve`: a model behind an address, from the first check to the exit status."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import re
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anyformer.errors import CapabilityError, InputError
from anyformer.registry import installed
from anyformer.serve.config import ServeConfig

if TYPE_CHECKING:
    from anyformer.serve.api.context import Context
    from anyformer.serve.engine.client import EngineClient
    from anyformer.serve.engine.messages import EngineFacts
    from anyformer.serve.http.app import App
    from anyformer.serve.http.listen import Server


SWITCH_SECONDS = 1e-4
"""After so long a thread lets another one have the interpreter."""


def serve(config: ServeConfig, on_ready: Callable[[Server, EngineFacts], None]) -> int:
    """Serve until a signal comes; the exit status. `on_ready` is called when the first request can be sent."""
    check(config)
    from anyformer.serve.http.listen import bind
    from anyformer.serve.http.logs import log_to_stderr

    # Bound before the model is read, which takes a while, so that a port in use is told at once.
    with bind(config.host, config.port, keys=bool(config.keys)) as sock:
        config = dataclasses.replace(config, port=sock.getsockname()[1])
        log_to_stderr(config.log)
        from anyformer.serve.engine.client import open_engine

        if not config.front_end_process:
            # The engine gives the interpreter away with every kernel that it launches, and would get it back only after
            # Python's 5 ms while the event loop is busy: a step launches hundreds.
            sys.setswitchinterval(SWITCH_SECONDS)
        client = open_engine(config)

        def ready(server: Server) -> None:
            settle()
            on_ready(server, client.facts)

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(serve_engine(config, client, sock, ready))


def settle() -> None:
    """Let the garbage collector pass over all that is there now, the libraries and the model: it is to stay, and to look
    through it stops every thread for a tenth of a second.
    """
    gc.collect()
    gc.freeze()


def check(config: ServeConfig) -> None:
    """Refuse what no server can be; that of the model is checked where it is read."""
    for package in ("uvicorn", "httptools"):
        try:
            installed(package)
        except ImportError:
            raise CapabilityError(f"the server needs {package}: pip install 'anyformer[serve]'") from None
    if not 0 <= config.port < 2**16:
        raise InputError(f"--port {config.port}: a port is a number from 0 (any that is free) to 65535")
    given = [("--cors-origins", each) for each in config.cors_origins]
    for option, origin in given + [("--connect-origins", each) for each in config.connect_origins]:
        # What is more than an origin could end the directive of the page's policy in which it stands.
        if not re.fullmatch(r"(?i:https?)://[\w.\[\]:-]+", origin):
            raise InputError(
                f"{option} {origin}: give whole origins, each with its scheme and nothing after its host and "
                "port, such as https://example.org; there is no wildcard"
            )
    if any(not key.strip() for key in config.keys):
        raise InputError("an API key is empty; leave it out, or give one that can't be guessed")


async def serve_engine(
    config: ServeConfig, client: EngineClient, sock: socket.socket, on_ready: Callable[[Server], None] | None
) -> int:
    """Serve an engine on a bound socket; the exit status."""
    from anyformer.serve.api.routes import make_context
    from anyformer.serve.http.app import ServerState
    from anyformer.serve.http.listen import Server

    await client.start()
    try:
        context = make_context(config, client, ServerState())
        try:
            check_template(context)
            server = Server(build_app(context), sock, on_ready)
            client.on_death = server.fail
            return await server.until_stopped()
        finally:
            context.texts.close()
    finally:
        await client.close()


def check_template(context: Context) -> None:
    """Refuse variables of the chat template that it doesn't read."""
    template = context.texts.template
    for name, _ in context.config.chat_template_kwargs:
        if template is None or name not in template.text:
            found = "this model has no chat template" if template is None else "the chat template has no such variable"
            raise InputError(f"--default-chat-template-kwargs: {name}: {found}; leave it out, or give another --chat-template")  # fmt: skip


def build_app(context: Context) -> App:
    """All endpoints of a model whose engine runs."""
    from anyformer.serve.api.routes import gather
    from anyformer.serve.http.app import App

    return App(gather(context), context.config, context.state)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of uvloop, where that is installed; None: that of Python."""
    try:
        loops: Any = installed("uvloop")
    except ImportError:
        return None
    return loops.new_event_loop
