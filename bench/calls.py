"""Python functions of the package that run in a forward pass and for a decoded token: `python bench/calls.py`.

A small model's token takes a millisecond, and a Python call a thousandth of that. The counts are of `sys.setprofile`, so
they are exact and the same on every machine. The limits are those that we set ourselves.
"""

import sys
from collections import Counter
from pathlib import Path

import torch

import anyformer as af

HOME = str(Path(af.__file__).parent)
FORWARD, TOKEN, ROW = 90, 140, 6
SPEC = af.spec(
    {"vocab": 256, "width": 64, "depth": 2, "context": 256, "attention": {"heads": 4, "kv_heads": 2}, "ffn": "swiglu"}
)


def calls(work) -> Counter:
    """Calls of the package's functions, by file and name. Comprehensions and generators' resumptions are not counted."""
    found: Counter = Counter()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOME) and not code.co_name.startswith("<"):
            found[f"{Path(code.co_filename).relative_to(HOME)}:{code.co_name}"] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def token(model, rows: int) -> Counter:
    """Calls of one more token in each of so many rows, of a stream that is under way."""
    stream = af.generate(model, torch.randint(0, 256, (rows, 8)), max_new_tokens=8, stream=True)
    for _ in range(3):
        next(stream)
    return calls(lambda: next(stream))


def main() -> None:
    model, ids = af.build(SPEC).eval(), torch.randint(0, 256, (1, 16))
    with torch.no_grad():
        for _ in range(2):
            model(ids)
        forward = calls(lambda: model(ids))
    one, two = token(model, 1), token(model, 2)
    figures = {
        "one forward of a 2-layer Llama": (forward.total(), FORWARD),
        "one decoded token through generate": (one.total(), TOKEN),
        "one more row": (two.total() - one.total(), ROW),
    }
    for name, (count, limit) in figures.items():
        print(f"{name:36} {count:4} calls   {count / limit:5.0%} of the limit of {limit}")
    if "--list" in sys.argv:
        for name, count in one.most_common():
            print(f"  {count:4} {name}")


if __name__ == "__main__":
    main()
