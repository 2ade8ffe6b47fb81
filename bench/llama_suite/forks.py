"""A process that has imported all that a server needs, and forks one off for each that is asked for.

Most of the time of several hundred short tests would otherwise be spent on importing torch.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
import traceback

LARGEST = 64 * 1024


def listen(place: str) -> None:
    """Serve requests on a Unix socket until the process is ended."""
    import anyformer

    for module in pkgutil.walk_packages(anyformer.__path__, "anyformer."):
        # Some need packages that are not there, and no server needs those.
        with contextlib.suppress(ImportError):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    from anyformer.cli.main import main

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen()
        while True:
            asked, _ = door.accept()
            said, streams, *_ = socket.recv_fds(asked, LARGEST, 2)
            child = os.fork()
            if not child:
                door.close()
                asked.close()
                os.setpgid(0, 0)
                for i, each in enumerate(streams, 1):
                    os.dup2(each, i)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                code = 1
                try:
                    asking = json.loads(said)
                    os.chdir(asking["cwd"])
                    code = main(asking["argv"])
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else 1
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            for each in streams:
                os.close(each)
            threading.Thread(target=attend, args=(asked, child), daemon=True).start()


def attend(asked: socket.socket, child: int) -> None:
    """Tell who asked how the child ends; end it when they are gone."""
    with contextlib.suppress(ConnectionError):
        asked.sendall(str(child).encode() + b"\n")
    ended = threading.Event()

    def watch() -> None:
        # One that was killed before it read our line resets the connection instead of closing it.
        with contextlib.suppress(ConnectionError):
            while asked.recv(1):
                pass
        if not ended.is_set():
            os.kill(child, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    _, status = os.waitpid(child, 0)
    ended.set()
    with contextlib.suppress(ConnectionError):
        asked.sendall(str(os.waitstatus_to_exitcode(status)).encode() + b"\n")
    asked.close()


def become(place: str, argv: list[str]) -> int:
    """Have a server forked off, pass signals on to it, and end as it ends."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(place)
        socket.send_fds(door, [json.dumps({"argv": argv, "cwd": os.getcwd()}).encode()], [1, 2])
        with door.makefile("rb") as lines:
            child = int(lines.readline())
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, lambda number, _: os.kill(child, number))
            return int(lines.readline() or 1)


if __name__ == "__main__":
    listen(sys.argv[1])
