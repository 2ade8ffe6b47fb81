"""An engine that steps when a test says so, and requests that run beside others."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from tests.serve.running import PATIENCE, Answer, Client, Running


class Gate:
    """Holds an engine before each step until it is let through."""

    def __init__(self, running: Running) -> None:
        self.engine = running.client.worker.engine
        self._permits, self._step, self._open = threading.Semaphore(0), self.engine.step, False
        self.steps = 0
        """Steps that were taken."""
        self.held = False
        """Whether the engine stands before one."""

    def __enter__(self) -> "Gate":
        self.engine.step = self._wait
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        del self.engine.step

    def let(self, steps: int = 1) -> None:
        """Let some steps be taken."""
        self._permits.release(steps)

    def open(self) -> None:
        """Hold nobody any more."""
        self._open = True
        self.let()

    def _wait(self) -> Any:
        self.held = True
        if not self._open and not self._permits.acquire(timeout=PATIENCE):
            raise TimeoutError("the gate stayed shut")
        self.held = False
        self.steps += 1
        return self._step()


class Asked(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, running: Client, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
        super().__init__()
        self._ask = lambda: running.ask("POST", path, body, headers)
        self._answer: Answer | None = None
        self._failed: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answer = self._ask()
        except BaseException as error:
            self._failed = error

    def result(self) -> Answer:
        self.join()
        if self._failed is not None:
            raise self._failed
        assert self._answer is not None
        return self._answer


REFERENCE = {"prompt": "the dog sat on the mat", "max_tokens": 24, "seed": 12, "ignore_eos": True, "logprobs": 2}
"""A request whose answer nobody else may change."""


def reference(running: Client) -> list[Any]:
    """What it is answered with."""
    return running.post("/v1/completions", REFERENCE).data["choices"]


@contextlib.contextmanager
def beside(running: Running, right: list[Any]) -> Iterator[None]:
    """Whatever is done inside, a request that runs at the same time and one afterwards get the right answer, and nothing
    is left.
    """
    from tests.serve.asking import assert_alike, assert_unharmed

    running.engine_idle()
    asked = Asked(running, "/v1/completions", REFERENCE)
    try:
        yield
    finally:
        answer = asked.result()
    assert answer.status == 200, answer.body
    assert_alike(answer.data["choices"], right)
    assert_unharmed(running)
    assert_alike(reference(running), right)
