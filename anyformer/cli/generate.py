"""`anyformer generate`: text from a trained model, piece by piece.

anyformer generate runs/quickstart "def main("
anyformer generate runs/quickstart "import " --greedy --max-new-tokens 50
anyformer generate runs/quickstart "class " --n 3 --min-p 0.05 --stop "def "
echo "class Cache:" | anyformer generate runs/quickstart - --seed 1 --json
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import FOLDER, open_model, open_reader, stdin_text, working
from anyformer.cli.parser import Command, add_ignore_keys, flag, option, whole
from anyformer.cli.sampling import add_more_sampling, add_sampling, sampling
from anyformer.cli.terminal import errors, print_json, say
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.data.tokenizer import Tokenizer
    from anyformer.generation.text.prompt import Prompt
    from anyformer.model.model import Model

BETWEEN = "---"
"""The line between two texts."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "model", FOLDER, "MODEL")
    words = "the text to continue, or - to read it from standard input; without one the model begins by itself"
    option(parser, "prompt", words, "PROMPT", nargs="?")
    add_sampling(parser, new=200)
    add_more_sampling(parser)
    words = "search with N hypotheses beside each other, instead of drawing; shown when it is done"
    option(parser, "--num-beams", words, whole(1), default=1)
    option(parser, "--n", "so many texts, shown when they are done", whole(1), default=1)
    add_ignore_keys(parser)
    flag(parser, "--json", "the text and its figures as one JSON document, at the end")


def _run(given: argparse.Namespace) -> int:
    """Generate."""
    if given.prompt == "":
        raise InputError("PROMPT: is empty; give a text to continue, or leave it out to let the model begin by itself")
    prompt = None if given.prompt is None else stdin_text(given.prompt)
    options = _options(given)
    model, tokenizer = open_model(given.model, ignore_keys=given.ignore_keys)
    from anyformer.generation.params.generation_request import check_model
    from anyformer.generation.text.prompt import read_prompt

    check_model(model.spec)
    read = read_prompt(model.spec, open_reader(given.model, model, tokenizer), prompt)
    room = room_for(model, len(read.ids))
    if room < given.max_new_tokens:
        sys.stderr.write(
            f"anyformer: up to {given.max_new_tokens} tokens, but the model has room for {room} after {len(read.ids)}: it is made "
            f"for {model.spec.context}\n"
        )
    options |= {"max_new_tokens": min(room, given.max_new_tokens), "first": read.first}
    writers = [_Writer(model, tokenizer, read, prompt, given) for _ in range(given.n)]
    clock = _Clock(len(read.ids))
    if given.n == 1 and given.num_beams == 1:
        _stream(model, tokenizer, read, options, writers[0], clock)
    else:
        _at_once(model, tokenizer, read, options, writers, clock)
    if given.json:
        own = [writer.answer() for writer in writers]
        print_json({"prompt": prompt or ""} | (own[0] if len(own) == 1 else {"answers": own}) | clock.figures())
    elif sys.stderr.isatty():
        errors().print(clock.line(), style="dim", markup=False)
    return 0


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """Options of `generate`."""
    if given.num_beams > 1 and given.temperature is not None:
        raise InputError("--num-beams: a search draws nothing, so it has no --temperature; leave one of them out")
    options = sampling(given, draws=given.num_beams == 1)
    return options | {"num_beams": given.num_beams, "n": given.n, "stop": given.stop or None}


class _Clock:
    """Until the first token, and from there on."""

    def __init__(self, prompt: int) -> None:
        self.prompt, self.count = prompt, 0
        self.began = self.first = self.last = time.perf_counter()

    def tick(self, tokens: int = 1) -> None:
        self.last = time.perf_counter()
        if not self.count:
            self.first = self.last
        self.count += tokens

    def figures(self) -> dict[str, Any]:
        """What a program wants to know; the first token comes with the reading of the prompt."""
        seconds, waited = self.last - self.began, self.first - self.began
        after = self.count - 1
        return {
            "seconds": round(seconds, 3), "tokens_per_second": round(self.count / max(seconds, 1e-9), 1),
            "prompt_tokens": self.prompt, "first_token_seconds": round(waited, 4),
            "decode_tokens_per_second": round(after / (seconds - waited), 1) if seconds > waited else None,
        }  # fmt: skip

    def line(self) -> str:
        found = self.figures()
        rate, decode = found["tokens_per_second"], found["decode_tokens_per_second"]
        after = f"; after the first, {decode} tokens/s" if decode is not None else ""
        return (
            f"{self.count} tokens, {rate} tokens/s: {self.prompt} of the prompt read in {found['first_token_seconds']:.3g} s"
            + after
        )


def _stream(model: Model, tokenizer: Tokenizer, read: Prompt, options: Any, writer: _Writer, clock: _Clock) -> None:
    """One text, as it comes."""
    import torch

    from anyformer.generation.generate import generate

    steps = generate(model, torch.tensor([read.ids]), tokenizer=tokenizer, stream=True, **options)
    # Nothing was wrong with what was asked.
    writer.begin()
    try:
        for step_B in steps:
            clock.tick()
            writer.take(int(step_B))
    finally:
        writer.end()


def _at_once(
    model: Model, tokenizer: Tokenizer, read: Prompt, options: Any, writers: list[_Writer], clock: _Clock
) -> None:
    """Texts that are there only when all are."""
    import torch

    from anyformer.generation.generate import generate

    with working("generating"):
        made = generate(model, torch.tensor([read.ids]), tokenizer=tokenizer, details=True, **options)
    clock.tick(sum(made.lengths))
    begun = made.ids.shape[1] - made.logprobs.shape[1]
    for i, (writer, length) in enumerate(zip(writers, made.lengths, strict=True)):
        if i and writer.shows:
            say(f"{BETWEEN}\n")
        for token in made.ids[i, begun : begun + length].tolist():
            writer.take(token)
        writer.end()


def room_for(model: Model, prompt: int) -> int:
    """How many tokens can follow a prompt of so many."""
    from anyformer.generation.params.generation_request import context_length

    size, hard = context_length(model)
    begun = 1 if model.spec.topology == "encoder-decoder" else prompt
    # The last token is not fed back, so it needs no position.
    left = min(size - begun + 1, model.spec.context - begun) if hard else size - begun
    if left < 1:
        raise InputError(f"PROMPT: {begun} tokens fill the {size} that this model is made for; shorten it")
    return left


class _Writer:
    """Prints the prompt, then each piece of text as soon as it is certain."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, read: Prompt, prompt: str | None, given: argparse.Namespace
    ) -> None:
        from anyformer.generation.params.stop import StopText
        from anyformer.generation.text.detokenizer import Detokenizer

        two = model.spec.topology == "encoder-decoder"
        text = Detokenizer(tokenizer, () if two else read.ids, repeated=read.repeated)
        self.stream = StopText(text, given.stop or (), least=given.min_new_tokens or 0)
        self.stops = model.spec.ids.eos
        self.shows = not given.json
        self.before = "" if prompt is None or two else prompt
        self.pieces: list[str] = []
        self.tail = ""
        """The last character on the screen."""
        self.count, self.stopped = 0, False

    def take(self, token: int) -> None:
        self.begin()
        self.count += 1
        self._keep(self.stream.push(token))
        self.stopped = token in self.stops or self.stream.met is not None

    def end(self) -> None:
        """No more tokens: the text ends with the end of a line, also when it was cut short."""
        self._keep(self.stream.end())
        if self.tail != "\n":
            self._show("\n")

    def answer(self) -> dict[str, Any]:
        reason = "stop" if self.stopped else "length"
        return {"text": "".join(self.pieces), "tokens": self.count, "reason": reason}

    def begin(self) -> None:
        """Show the prompt, once."""
        before, self.before = self.before, ""
        self._show(before)

    def _keep(self, piece: str) -> None:
        self.pieces.append(piece)
        self._show(piece)

    def _show(self, text: str) -> None:
        if not text or not self.shows:
            return
        self.tail = text[-1]
        say(text)


COMMAND = Command("generate", "stream text from a trained model", __doc__, _arguments, _run)
