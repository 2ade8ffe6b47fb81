"""`anyformer generate`: text from a trained model, piece by piece."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import FOLDER, errors, open_model
from anyformer.cli.parser import Command, number, whole
from anyformer.cli.terminal import print_json, say
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.data.tokenizer import Tokenizer
    from anyformer.generation.prompt import Prompt
    from anyformer.model.models import Model

STDIN = "-"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("model", metavar="MODEL", help=FOLDER)
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="?",
        help="the text to continue, or - to read it from standard input; without one the model begins by itself",
    )  # fmt: skip
    parser.add_argument("--max-new-tokens", type=whole(1), default=200, metavar="N", help="at most so many (200)")
    heat = parser.add_mutually_exclusive_group()
    heat.add_argument(
        "--temperature", type=number(least=0), default=0.8, metavar="T",
        help="below 1 the likely tokens gain, above 1 the others; 0 is --greedy (0.8)",
    )  # fmt: skip
    heat.add_argument("--greedy", action="store_true", help="always the likeliest token")
    parser.add_argument("--top-k", type=whole(1), metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=number(above=0, most=1), default=0.95, metavar="P",
        help="draw from the fewest tokens that together have this probability (0.95)",
    )  # fmt: skip
    parser.add_argument("--seed", type=whole(0), metavar="S", help="the same seed draws the same text")
    parser.add_argument("--json", action="store_true", help="the text and its figures as one JSON document, at the end")


def run(given: argparse.Namespace) -> int:
    """Generate."""
    prompt = _prompt(given.prompt)
    model, tokenizer = open_model(given.model)
    from anyformer.generation.prompt import read_prompt
    from anyformer.generation.request import check_model

    check_model(model.spec)
    read = read_prompt(model.spec, tokenizer, prompt)
    room = room_for(model, len(read.ids))
    if room < given.max_new_tokens:
        sys.stderr.write(
            f"anyformer: {given.max_new_tokens} tokens were asked for, and the model has room for {room} after "
            f"{len(read.ids)}: it is made for {model.spec.context}\n"
        )
    writer = _Writer(model, tokenizer, read, prompt, shows=not given.json)
    began = time.perf_counter()
    try:
        for step_B in _steps(model, read, given, min(room, given.max_new_tokens)):
            writer.take(int(step_B))
    finally:
        writer.end()
    seconds = time.perf_counter() - began
    if given.json:
        print_json(writer.answer(prompt, seconds))
    elif sys.stderr.isatty():
        errors().print(f"{writer.count} tokens, {writer.count / seconds:.1f} tokens/s", style="dim")
    return 0


def room_for(model: Model, prompt: int) -> int:
    """How many tokens can follow a prompt of so many."""
    from anyformer.generation.request import room

    size, hard = room(model)
    begun = 1 if model.spec.topology == "encoder-decoder" else prompt
    # The last token is not fed back, so it needs no position.
    left = min(size - begun + 1, model.spec.context - begun) if hard else size - begun
    if left < 1:
        raise InputError(f"PROMPT: {begun} tokens fill the {size} that this model is made for; shorten it")
    return left


def _prompt(given: str | None) -> str | None:
    if given == STDIN:
        from anyformer.data.text import read_text

        # The end of the line belongs to the shell, not to the text.
        return read_text(STDIN).removesuffix("\n").removesuffix("\r")
    if given == "":
        raise InputError("PROMPT: is empty; give a text to continue, or leave it out to let the model begin by itself")
    return given


def _steps(model: Model, read: Prompt, given: argparse.Namespace, new: int) -> Any:
    import torch

    from anyformer.generation.engine import generate

    heat = 0.0 if given.greedy else given.temperature
    return generate(
        model, torch.tensor([read.ids]), first=read.first, max_new_tokens=new, temperature=heat, top_k=given.top_k, top_p=given.top_p,
        seed=given.seed, stream=True,
    )  # fmt: skip


class _Writer:
    """Prints the prompt, then each piece of text as soon as it is certain."""

    def __init__(self, model: Model, tokenizer: Tokenizer, read: Prompt, prompt: str | None, *, shows: bool) -> None:
        from anyformer.generation.stream import TextStream

        two = model.spec.topology == "encoder-decoder"
        self.stream = TextStream(tokenizer, () if two else read.ids, repeated=read.repeated)
        self.stops = model.spec.ids.eos
        self.shows = shows
        self.pieces: list[str] = []
        self.tail = ""
        """The last character on the screen."""
        self.count, self.stopped = 0, False
        if prompt is not None and not two:
            self._show(prompt)

    def take(self, token: int) -> None:
        """One more token."""
        self.count += 1
        self.stopped = token in self.stops
        self._keep(self.stream.push(token))

    def end(self) -> None:
        """No more tokens: the text ends with the end of a line, also when it was cut short."""
        self._keep(self.stream.end())
        if self.tail != "\n":
            self._show("\n")

    def answer(self, prompt: str | None, seconds: float) -> dict[str, Any]:
        """What a program wants to know."""
        return {
            "prompt": prompt or "",
            "text": "".join(self.pieces),
            "tokens": self.count,
            "reason": "stop" if self.stopped else "length",
            "seconds": round(seconds, 3),
            "tokens_per_second": round(self.count / seconds, 1),
        }

    def _keep(self, piece: str) -> None:
        self.pieces.append(piece)
        self._show(piece)

    def _show(self, text: str) -> None:
        if not text or not self.shows:
            return
        self.tail = text[-1]
        say(text)


COMMAND = Command(
    name="generate",
    summary="stream text from a trained model",
    example="""
anyformer generate runs/quickstart "def main("
anyformer generate runs/quickstart "import " --greedy --max-new-tokens 50
echo "class Cache:" | anyformer generate runs/quickstart - --seed 1 --json
""",
    arguments=arguments,
    run=run,
)
