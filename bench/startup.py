"""How long commands take to start, each in a fresh interpreter: `python bench/startup.py [--rounds 5]`.

The limit is a bare interpreter, which every command has to start; the peer of `import anyformer` is `import torch`.
"""

import argparse
import statistics
import subprocess
import sys
import time

MAIN = "from anyformer.cli.main import main; import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main({!r})"
WAYS = {
    "a bare interpreter": "pass",
    "import torch": "import torch",
    "import anyformer": "import anyformer",
    "anyformer --help": MAIN.format(["--help"]),
    "anyformer generate --help": MAIN.format(["generate", "--help"]),
    "anyformer zoo": MAIN.format(["zoo"]),
    "anyformer explain llama-3-8b": MAIN.format(["explain", "llama-3-8b"]),
    "anyformer diff llama-7b llama-3-8b": MAIN.format(["diff", "llama-7b", "llama-3-8b"]),
}


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--rounds", type=int, default=5)
    rounds = reader.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, code in WAYS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            seconds[name].append(time.perf_counter() - began)
    bare, torch = (statistics.median(seconds[name]) for name in ("a bare interpreter", "import torch"))
    print(f"median of {rounds}, in turns\n")
    for name, found in seconds.items():
        middle = statistics.median(found)
        print(
            f"{name:36} {middle * 1000:7.0f} ms   {middle / bare:6.1f} x a bare interpreter   {middle / torch:5.2f} x torch"
        )


if __name__ == "__main__":
    main()
