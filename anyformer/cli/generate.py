"""`anyformer generate`: text from a trained model, piece by piece.

anyformer generate runs/quickstart "def main("
anyformer generate runs/quickstart "import " --greedy --max-new-tokens 50
anyformer generate runs/quickstart "class " --n 3 --min-p 0.05 --stop "def "
anyformer generate runs/quickstart "VERSION = " --regex "[0-9]+[.][0-9]+"
echo "class Cache:" | anyformer generate runs/quickstart - --seed 1 --json
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import FOLDER, open_model, open_reader, stdin_text, working
from anyformer.cli.parser import Command, add_ignore_keys, flag, number, option, whole
from anyformer.cli.terminal import errors, print_json, say
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.data.tokenizer import Tokenizer
    from anyformer.generation.text.prompt import Prompt
    from anyformer.model.model import Model

BETWEEN = "---"
"""The line between two texts."""
TEMPERATURE, TOP_P = 0.8, 0.95
"""Defaults."""
NAMES = (
    "seed", "top_k", "top_p", "min_p", "repetition_penalty", "typical_p", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size",
    "min_new_tokens",
)  # fmt: skip
"""Options that `generate` has under the same names."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "model", FOLDER, "MODEL")
    option(parser, "prompt", "the text to continue, or - for stdin; without one the model begins", "PROMPT", nargs="?")
    add_sampling(parser, new=200)
    words = "draw from the tokens with this probability together whose surprise is nearest to the expected one"
    option(parser, "--typical-p", words, number(above=0, most=1), metavar="P")
    option(parser, "--presence-penalty", "subtracted from tokens that were generated", number(), metavar="X")
    option(parser, "--frequency-penalty", "the same, as many times as they were generated", number(), metavar="X")
    option(parser, "--no-repeat-ngram-size", "no run of N tokens occurs twice", whole(1))
    option(parser, "--min-new-tokens", "do not end before", whole(1))
    option(parser, "--stop", "end before this text; may be given several times", "TEXT", action="append")
    guided = parser.add_mutually_exclusive_group()
    option(guided, "--json-schema", "the answer is JSON that fits this schema; {} fits any", "FILE|JSON")
    option(guided, "--regex", "the answer is a text that this expression matches as a whole", "RE")
    option(guided, "--grammar", "the answer is a text of this grammar, in Lark or GBNF", "FILE")
    option(parser, "--num-beams", "beam search with N hypotheses, shown when it is done", whole(1), default=1)
    option(parser, "--n", "so many texts, shown when they are done", whole(1), default=1)
    add_ignore_keys(parser)
    flag(parser, "--json", "the text and its figures as one JSON document, at the end")


def add_sampling(parser: argparse.ArgumentParser, *, new: int) -> None:
    """How tokens are chosen, and when a text ends."""
    option(parser, "--max-new-tokens", "at most so many", whole(1), default=new)
    temperature = parser.add_mutually_exclusive_group()
    words = "above 1 rare tokens gain, below 1 likely ones; 0: greedy (0.8)"
    option(temperature, "--temperature", words, number(least=0), metavar="T")
    flag(temperature, "--greedy", "always the likeliest token")
    option(parser, "--top-k", "draw from the K likeliest tokens", whole(1), metavar="K")
    words = "draw from the fewest tokens with this probability together (0.95)"
    option(parser, "--top-p", words, number(above=0, most=1), metavar="P")
    option(parser, "--min-p", "drop tokens below P times the top probability", number(least=0, most=1), metavar="P")
    option(parser, "--repetition-penalty", "above 1 makes earlier tokens less likely", number(above=0), metavar="R")
    option(parser, "--seed", "the same seed draws the same text", whole(0), metavar="S")


def sampling(given: argparse.Namespace, *, draws: bool = True) -> dict[str, Any]:
    """The options that were given, by the names of `generate`. Without a draw they are those of a search."""
    temperature = TEMPERATURE if given.temperature is None else given.temperature
    drawn = draws and temperature > 0 and not given.greedy
    # Without a temperature nothing is drawn, and `generate` says which options then have no effect.
    named = {"temperature": temperature if drawn else None} | {name: getattr(given, name, None) for name in NAMES}
    if drawn and given.top_p is None:
        named["top_p"] = TOP_P
    return {name: value for name, value in named.items() if value is not None}


def _run(given: argparse.Namespace) -> int:
    """Generate."""
    if given.prompt == "":
        raise InputError("PROMPT: is empty; give a text to continue, or leave it out to let the model begin by itself")
    prompt = None if given.prompt is None else stdin_text(given.prompt)
    if given.num_beams > 1 and given.temperature is not None:
        raise InputError("--num-beams: a search draws nothing, so it has no --temperature; leave one of them out")
    options = sampling(given, draws=given.num_beams == 1)
    model, tokenizer = open_model(given.model, ignore_keys=given.ignore_keys)
    import torch

    from anyformer.data.tokenizer import prompt_ids
    from anyformer.generation.generate import generate
    from anyformer.generation.params.generation_request import check_model
    from anyformer.generation.text.prompt import Prompt, read_prompt

    check_model(model.spec)
    reader, guided = open_reader(given.model, model, tokenizer), _guided(given)
    read = read_prompt(model.spec, reader, prompt)
    if guided is not None and prompt is not None and read.first is not None:
        # What is guided begins behind the prompt, and not with its last blank.
        read = Prompt(ids=prompt_ids(model.spec, reader, prompt))
    room = _room(model, len(read.ids))
    if room < given.max_new_tokens:
        sys.stderr.write(
            f"anyformer: up to {given.max_new_tokens} tokens, but the model has room for {room} after {len(read.ids)}: it is made "
            f"for {model.spec.context}\n"
        )
    ask = partial(
        generate, model, torch.tensor([read.ids]), tokenizer=tokenizer, first=read.first, n=given.n,
        stop=given.stop or None, max_new_tokens=min(room, given.max_new_tokens), num_beams=given.num_beams,
        guided=guided, **options,
    )  # fmt: skip
    writers = [_Writer(model, tokenizer, read, prompt, given) for _ in range(given.n)]
    clock = _Clock(len(read.ids))
    if given.n == 1 and given.num_beams == 1:
        # A grammar ends a text without a token of its own.
        steps = ask(stream=True, details=guided is not None)
        # Nothing was wrong with what was asked.
        writers[0].begin()
        try:
            for step in steps:
                clock.tick()
                writers[0].take(int(step if guided is None else step.ids_B))
                writers[0].stopped |= guided is not None and bool(step.finished_B)
        finally:
            writers[0].end()
    else:
        with working("generating"):
            made = ask(details=True)
        clock.tick(sum(made.lengths))
        begun = made.ids.shape[1] - made.logprobs.shape[1]
        for i, (writer, length) in enumerate(zip(writers, made.lengths, strict=True)):
            if i and writer.shows:
                say(f"{BETWEEN}\n")
            writer.begin()
            for token in made.ids[i, begun : begun + length].tolist():
                writer.take(token)
            writer.stopped |= made.reasons[i] == "stop"
            writer.end()
    if given.json:
        own = [writer.answer() for writer in writers]
        print_json({"prompt": prompt or ""} | (own[0] if len(own) == 1 else {"answers": own}) | clock.figures())
    elif sys.stderr.isatty():
        errors().print(clock.line(), style="dim", markup=False)
    return 0


def _guided(given: argparse.Namespace) -> dict[str, Any] | None:
    """What the answer must look like, by the name of its kind."""
    from anyformer.data.corpus import read_text

    if given.json_schema is not None:
        inline = given.json_schema.lstrip().startswith("{")
        return {"json_schema": given.json_schema if inline else read_text(given.json_schema)}
    if given.grammar is not None:
        return {"grammar": read_text(given.grammar)}
    return None if given.regex is None else {"regex": given.regex}


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
        """What a program wants to know; the first token comes with the prefill."""
        seconds, waited = self.last - self.began, self.first - self.began
        return {
            "seconds": round(seconds, 3), "tokens_per_second": round(self.count / max(seconds, 1e-9), 1),
            "prompt_tokens": self.prompt, "first_token_seconds": round(waited, 4),
            "decode_tokens_per_second": round((self.count - 1) / (seconds - waited), 1) if seconds > waited else None,
        }  # fmt: skip

    def line(self) -> str:
        found = self.figures()
        decode = found["decode_tokens_per_second"]
        after = f"; after the first, {decode} tokens/s" if decode is not None else ""
        read = f"{self.prompt} of the prompt read in {found['first_token_seconds']:.3g} s"
        return f"{self.count} tokens, {found['tokens_per_second']} tokens/s: {read}{after}"


def _room(model: Model, prompt: int) -> int:
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
        from anyformer.generation.text.detokenizer import detokenizer

        seq2seq = model.spec.topology == "encoder-decoder"
        text = detokenizer(tokenizer, () if seq2seq else read.ids, repeated=read.repeated)
        self.stream = StopText(text, given.stop or (), least=given.min_new_tokens or 0)
        self.stops, self.shows = model.spec.ids.eos, not given.json
        self.before = "" if prompt is None or seq2seq else prompt
        self.pieces: list[str] = []
        self.tail = ""
        """The last character on the screen."""
        self.count, self.stopped = 0, False

    def begin(self) -> None:
        self._show(self.before)

    def take(self, token: int) -> None:
        self.count += 1
        self._keep(self.stream.push(token))
        self.stopped = token in self.stops or self.stream.met is not None

    def end(self) -> None:
        """No more tokens: the text ends with the end of a line, also when it was cut short."""
        self._keep(self.stream.end())
        if self.tail != "\n":
            self._show("\n")

    def answer(self) -> dict[str, Any]:
        return {"text": "".join(self.pieces), "tokens": self.count, "reason": "stop" if self.stopped else "length"}

    def _keep(self, piece: str) -> None:
        self.pieces.append(piece)
        self._show(piece)

    def _show(self, text: str) -> None:
        if text and self.shows:
            self.tail = text[-1]
            say(text)


COMMAND = Command("generate", "stream text from a trained model", __doc__, _arguments, _run)
