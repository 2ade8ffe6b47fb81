"""A conversation with a model: what was said, cut to what the model can read, and the answer in pieces."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from anyformer.data.tokenizer import prompt_ids
from anyformer.errors import InputError
from anyformer.generation.generate import generate
from anyformer.generation.params.generation_request import check_model, context_length
from anyformer.generation.params.stop import StopText
from anyformer.generation.pipelines.source import Source
from anyformer.generation.text.detokenizer import detokenizer

USER, ASSISTANT = "User", "Assistant"
BASE = (
    "this model has no chat template (no chat_template.jinja and no chat_template in tokenizer_config.json), so it is a "
    "base model: it continues texts, and was not trained to answer"
)
SHARE = 4
"""An answer has at least one part in so many of the context."""


class Chat:
    """Turns of a conversation. Each answer is a stream of pieces; one that is stopped half way stays as far as it came."""

    def __init__(self, source: Source, *, system: str | None = None, plain: bool = False) -> None:
        check_model(source.model.spec)
        if source.model.spec.topology != "decoder":
            raise InputError(f"a chat needs a decoder, and this model is an {source.model.spec.topology}")
        if source.template is None and not plain:
            raise InputError(BASE)
        self.source, self.system, self.plain = source, system, plain
        # A base model writes both parts.
        self._stops = (f"\n{USER}:",) if plain else ()
        self.turns: list[dict[str, str]] = []
        """Messages of the user and the assistant in turn, the system's not among them."""
        self.forgotten = 0
        """Turns that were dropped before the last answer, to make room."""
        self.count = 0
        """Tokens of the last answer."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """All that is remembered."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def reset(self) -> None:
        """Forget what was said; the system's message stays."""
        self.turns.clear()

    def say(self, text: str, *, max_new_tokens: int, **options: Any) -> Iterator[str]:
        """Say something; pieces of the answer. The model does nothing before the first piece is asked for."""
        if not text.strip():
            raise InputError("there is nothing to answer; say something")
        if self.turns and self.turns[-1]["role"] == "user":
            # An answer that nobody listened to never began; its question would stand before this one.
            self.turns.pop()
        self.turns.append({"role": "user", "content": text})
        asked: dict[str, Any] = {"stop": [*self.source.stop, *self._stops]} | options
        try:
            ids, new = self._fit(max_new_tokens)
            steps = generate(
                self.source.model, self.source.to_device([ids]), max_new_tokens=new, stream=True,
                tokenizer=self.source.tokenizer, **asked,
            )  # fmt: skip
        except BaseException:
            self.turns.pop()
            raise
        return self._answer(ids, steps)

    def _answer(self, ids: list[int], steps: Any) -> Iterator[str]:
        stream = StopText(detokenizer(self.source.tokenizer, ids), self._stops)
        said, ended = "", False
        try:
            with closing(stream.pieces(steps)) as pieces:
                for each in pieces:
                    # The blank between a name and what it says is not said.
                    if piece := each.lstrip() if self.plain and not said else each:
                        said += piece
                        yield piece
            ended = True
        finally:
            self.count = stream.count
            if said or ended:
                self.turns.append({"role": "assistant", "content": said.strip() if self.plain else said})
            else:
                # A question that was never answered would stand before the next one.
                self.turns.pop()

    def _fit(self, most: int) -> tuple[list[int], int]:
        """Ids of what is remembered, and how many tokens may follow. The oldest turns are dropped if need be."""
        size, _ = context_length(self.source.model)
        wanted = min(most, max(size // SHARE, 1))
        dropped: list[dict[str, str]] = []
        ids = self._ids()
        while len(ids) + wanted > size and len(self.turns) > 1:
            # A question and its answer.
            dropped += self.turns[:2]
            del self.turns[:2]
            ids = self._ids()
        if len(ids) >= size:
            self.turns[:0] = dropped
            raise InputError(f"that makes {len(ids)} tokens, and this model is made for {size}; say it in fewer words")
        self.forgotten = len(dropped) // 2
        return ids, min(most, size - len(ids))

    def _ids(self) -> list[int]:
        words, template = self.source.tokenizer, self.source.template
        if not self.plain and template is not None:
            return template.ids(words, self.messages)
        return [*prompt_ids(self.source.model.spec, words, transcript(self.messages), literal=True)]


def transcript(messages: list[dict[str, str]]) -> str:
    """A conversation as a base model may have seen one, up to where the assistant speaks."""
    names = {"system": "", "user": f"{USER}: ", "assistant": f"{ASSISTANT}: "}
    lines = [names[each["role"]] + each["content"] + "\n" * (each["role"] == "system") for each in messages]
    return "\n".join([*lines, f"{ASSISTANT}:"])
