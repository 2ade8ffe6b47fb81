"""Speculative decoding by look-up, on a prompt that a text is copied from: tokens/s with and without, and mismatches.

    python bench/speculate.py MODEL [--text FILE] [--new 120]

MODEL is a run folder, such as that of `anyformer quickstart`. The prompt is a function, a comment that asks for it once
more, and its beginning: what a programmer who edits code has on the screen. In turns, best of 5. Not a test.
"""

import argparse
import inspect
import textwrap
import time

import torch

import anyformer as af

ASK = "\n\n\n# The same once more:\n\n"


def prompt(tokenizer, text: str, room: int) -> list[int]:
    """The text, the comment, and as much of the text again that a model knows what is asked for."""
    ids = tokenizer.encode(text)[: room // 2]
    return ids + tokenizer.encode(ASK) + ids[: max(8, len(ids) // 8)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--text", help="a file to copy from; default: functions of Python's standard library")
    parser.add_argument("--new", type=int, default=60)
    given = parser.parse_args()
    model, tokenizer = af.load(given.model), af.tokenizer(given.model)
    room = model.spec.context - given.new
    if given.text:
        with open(given.text, encoding="utf-8") as file:
            texts = [file.read()]
    else:
        texts = [inspect.getsource(f) for f in (textwrap.wrap, textwrap.dedent, textwrap.shorten, inspect.cleandoc)]
    for guesses in (3, 6, 10):
        seconds, mismatches, tokens = {False: 0.0, True: 0.0}, 0, 0
        for text in texts:
            ids = torch.tensor([prompt(tokenizer, text, room)[:room]])
            found, best = {}, {False: float("inf"), True: float("inf")}
            for _ in range(5):
                for lookup in (False, True):
                    begin = time.perf_counter()
                    found[lookup] = af.generate(
                        model, ids, max_new_tokens=given.new, stop=(), lookup=lookup, guesses=guesses
                    )
                    best[lookup] = min(best[lookup], time.perf_counter() - begin)
            mismatches += int((found[False] != found[True]).sum())
            tokens += given.new
            for lookup, each in best.items():
                seconds[lookup] += each
        print(
            f"{guesses} guesses: {tokens / seconds[False]:.1f} tok/s plain, {tokens / seconds[True]:.1f} with look-up, "
            f"{seconds[False] / seconds[True]:.2f} x, {mismatches} of {tokens} tokens differ"
        )


if __name__ == "__main__":
    main()
