"""A grammar compiled for one vocabulary, of which every sequence gets a matcher of its own."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError, NothingLeftError
from anyformer.generation.guided.fence import FENCE, Fence
from anyformer.generation.guided.grammar import SOURCE_BYTES, Grammar, read_grammar
from anyformer.generation.guided.vocabulary import Vocabulary, llguidance, vocabulary_of

EXCERPT = re.compile(r"\n\s*\d+ \| |\n<")
"""Where a message of the package begins to quote the grammar, or its own state."""
PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
DETAIL = re.compile(r"^error: (.*)$", re.MULTILINE)
"""The line of a message about a regex that says what is wrong."""
LONG = 400
"""Characters of a message."""

OURS = ("source_bytes", "seconds", "step_seconds")
"""Limits that we watch over."""

Mask = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""A bit for each token, the lowest of a byte first."""


@dataclass(frozen=True, kw_only=True)
class GrammarLimits:
    """What a grammar may cost. Those after the first three are the package's own, under its names."""

    source_bytes: int = SOURCE_BYTES
    seconds: float = 1.0
    """Of a processor, to compile it."""
    step_seconds: float = 0.1
    """Of a processor, for one token of an answer, for which 1 ms is much."""
    max_items_in_row: int = 1000
    """Ways to go on that are followed at once."""
    initial_lexer_fuel: int = 1_000_000
    step_lexer_fuel: int = 100_000
    """Of one step, about 7 ms."""
    step_max_items: int = 50_000
    max_lexer_states: int = 20_000
    """Of one sequence, of 1 to 2 kB each."""
    max_grammar_size: int = 200_000

    @property
    def of_package(self) -> dict[str, Any]:
        """The package's own, by name."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in OURS}
        # To walk through all tokens beforehand is not limited by any of them.
        return own | {"precompute_large_lexemes": False, "verbose_errors": False}


class CompiledGrammar:
    """A grammar that was compiled. It never changes, and may be used by any number of requests and threads."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, limits: GrammarLimits, prototype: Any) -> None:
        self.grammar, self.vocabulary, self.limits, self._prototype = grammar, vocabulary, limits, prototype
        mask = self.mask(prototype)
        if not mask.any():
            if prototype.is_accepting():
                raise InputError(f"guided: {grammar.kind}: allows nothing but the empty text")
            raise InputError(f"guided: {grammar.kind}: no token of this vocabulary can begin a text that it allows")
        self.first = mask
        """Which tokens may come first."""

    def suits(self, tokenizer: Tokenizer | None, vocab: int) -> bool:
        """Whether it was compiled for these tokens; without a tokenizer only their number is known."""
        own = self.vocabulary
        return own.size == vocab and (tokenizer is None or vocabulary_of(tokenizer, vocab) is own)

    def matcher(self) -> Any:
        """A matcher at the beginning of a text."""
        return self._prototype.deep_copy()

    def mask(self, matcher: Any) -> Mask:
        """Which tokens of the model may come next."""
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8).copy()
        if matcher.is_error():
            if "NoExtension" not in matcher.get_error():
                raise self.failed(matcher)
            mask[:] = 0
        set_bits(mask, (self.vocabulary.size,), on=False)
        return mask

    def failed(self, matcher: Any) -> NothingLeftError:
        """Why a matcher can't go on."""
        return NothingLeftError(
            f"guided: {self.grammar.kind}: can't be followed any further: {said(matcher.get_error())}"
        )

    def __repr__(self) -> str:
        return f"CompiledGrammar({self.grammar.kind}, vocab={self.vocabulary.size})"


def set_bits(mask: Mask, tokens: Iterable[int], *, on: bool) -> None:
    """Allow some tokens, or rule them out."""
    for token in tokens:
        bit = 1 << (token & 7)
        mask[token >> 3] = mask[token >> 3] | bit if on else mask[token >> 3] & (255 - bit)


def compile_grammar(
    given: Any,
    tokenizer: Tokenizer,
    vocab: int,
    *,
    limits: GrammarLimits | None = None,
    fence: Fence = FENCE,
) -> CompiledGrammar:
    """A grammar for a model with so many tokens, from a description (see `SamplingParams.guided`).

    It may be called in any thread. Nothing that the source names is fetched, and a hostile one ends within the limits.
    """
    most = GrammarLimits() if limits is None else limits
    grammar = read_grammar(given, source_bytes=most.source_bytes)
    package = llguidance()
    vocabulary = vocabulary_of(tokenizer, vocab)
    question = {"kind": grammar.kind, "source": grammar.source, "size": vocab, "specials": vocabulary.specials}
    answer = fence.ask(question | {"limits": most.of_package}, most.seconds)
    if "wrong" in answer:
        raise InputError(f"guided: {grammar.kind}: {said(answer['wrong'], grammar.kind)}")
    options = package.LLParserLimits(**most.of_package)
    prototype = package.LLMatcher(vocabulary.tokens, answer["lark"], log_level=0, limits=options)
    if prototype.is_error():
        raise InputError(f"guided: {grammar.kind}: {said(prototype.get_error(), grammar.kind)}")
    return CompiledGrammar(grammar, vocabulary, most, prototype)


def said(message: str, kind: str = "") -> str:
    """What the package says is wrong, without quotations."""
    text = EXCERPT.split(message, maxsplit=1)[0]
    place = PLACE.match(text)
    if place is not None:
        # Only Lark is read as it was written.
        where = f"line {place[1]}, column {place[2]}: " if kind == "lark" else ""
        text = where + text[place.end() :]
    detail = DETAIL.search(text)
    if kind == "regex" and detail is not None:
        text = detail[1]
    text = " ".join(text.removeprefix("failed to compile JSON schema: ").split())
    return text if len(text) <= LONG else text[: LONG - 3] + "..."
