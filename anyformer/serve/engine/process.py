"""The program in which an engine has a process of its own: `python -m anyformer.serve.engine.process FD`.

It speaks frames of JSON on a socket that it inherits: first come the settings. When the socket closes, it ends.
"""

import gc
import os
import signal
import socket
import sys
import threading

from anyformer.serve.engine.messages import FrameError, FrameReader, Message, to_frame, unpack_config
from anyformer.serve.http.logs import log_to_stderr

BYTES = 2**16
PATIENCE = 10.0
"""Seconds that a step may go on when nobody listens any more."""


class Connection:
    """The engine's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._reader = sock, FrameReader()
        self._waiting: list[Message] = []

    def receive(self) -> list[Message]:
        """The next messages; none: the other end is closed."""
        while not self._waiting:
            try:
                data = self._sock.recv(BYTES)
            except OSError:
                return []
            if not data:
                return []
            self._waiting += self._reader.push(data)
        found, self._waiting = self._waiting, []
        return found

    def send(self, message: Message) -> None:
        """Send a message; what is too large for a frame goes in parts, or is answered with an error."""
        try:
            frame = to_frame(message)
        except FrameError as error:
            for part in smaller(message, error):
                self.send(part)
            return
        self._sock.sendall(frame)


def smaller(message: Message, error: FrameError) -> list[Message]:
    """What is sent instead of a message that is too large."""
    if message["type"] == "answer":
        words = f"the answer is too large ({error}); ask for less at once"
        return [{"type": "answer", "number": message["number"], "error": [400, words, "answer_too_large"]}]
    rows = message.get("rows", [])
    if len(rows) > 1:
        half = len(rows) // 2
        rest = {"type": "batch", "rows": rows[half:], "snapshot": message["snapshot"]}
        return [message | {"rows": rows[:half]}, rest]
    if rows:
        number = rows[0][0]
        words = f"the answer is too large ({error}); ask for fewer log-probabilities"
        refused = [*message.get("refused", []), [number, 400, words, "answer_too_large"]]
        return [message | {"rows": [], "refused": refused}]
    raise error


def main(fd: int) -> None:
    """Serve one front end."""
    # Ctrl-C is for the front end, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=fd) as sock:
        connection = Connection(sock)
        first = connection.receive()
        if not first:
            return
        config = unpack_config(first[0])
        log_to_stderr(config.log)
        from anyformer.serve.engine.worker import EngineWorker

        worker = EngineWorker(config, connection.send)
        ended, loaded = threading.Event(), threading.Event()
        for message in first[1:]:
            worker.handle(message)

        def listen() -> None:
            while messages := connection.receive():
                for message in messages:
                    worker.handle(message)
            worker.handle({"type": "close"})
            # A model that nobody waits for need not be read to its end, nor a step that hangs be waited for.
            if not ended.wait(PATIENCE if loaded.is_set() else 0):
                os._exit(1)

        def ready() -> None:
            loaded.set()
            # What is there now is to stay; to look through it for garbage would stop steps for a tenth of a second.
            gc.collect()
            gc.freeze()

        threading.Thread(target=listen, name="listen", daemon=True).start()
        worker.run(on_ready=ready)
        ended.set()


if __name__ == "__main__":
    main(int(sys.argv[1]))
