"""The engine in a thread of the front end's process."""

import asyncio
import threading
from typing import TYPE_CHECKING

from anyformer.serve.config import ServeConfig
from anyformer.serve.engine.client import EngineClient
from anyformer.serve.engine.messages import Message

if TYPE_CHECKING:
    from anyformer.generation.pipelines.source import Source


class LocalEngine(EngineClient):
    """A worker in a thread; its messages come as they are, once a step."""

    def __init__(self, config: ServeConfig, source: "Source | None" = None) -> None:
        super().__init__(config)
        from anyformer.serve.engine.worker import EngineWorker

        self.worker = EngineWorker(config, self._emit, source)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._thread = threading.Thread(target=self.worker.run, name="engine")
        self._thread.start()
        try:
            await self._ready
        except asyncio.CancelledError:
            # It ends when it has read the model.
            self.worker.handle({"type": "close"})
            raise
        except Exception:
            await self.close()
            raise

    async def close(self) -> None:
        if self._thread is None:
            return
        self._lost("the server is shutting down")
        self.worker.handle({"type": "close"})
        await self._closed.wait()
        self._thread.join()
        self._thread = None

    def _send(self, message: Message) -> None:
        self.worker.handle(message)

    def _emit(self, message: Message) -> None:
        """Called in the worker's thread."""
        if self._loop is None:
            raise RuntimeError("there is no loop to tell")
        self._loop.call_soon_threadsafe(self._receive, message)
