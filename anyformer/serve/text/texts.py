"""The front end's side of a model: its tokenizer and chat template, used in workers so that nobody waits for them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from anyformer.data.token_bytes import TokenBytes
from anyformer.data.tokenizer import Tokenizer, prompt_ids, source_ids, source_tokenizer, tokenizer
from anyformer.data.tokenizer_files import SETTINGS, SETTINGS_BYTES, special_tokens
from anyformer.errors import InputError
from anyformer.families.gguf.header import is_gguf
from anyformer.families.shards import read_json
from anyformer.generation.chat.template import ChatTemplate, read_template
from anyformer.generation.params.stop import StopText
from anyformer.generation.pipelines.sentence import transformer_folder
from anyformer.generation.text.detokenizer import ByteDetokenizer, Detokenizer, detokenizer
from anyformer.serve.errors import ApiError, bad_request, too_long
from anyformer.specs.model import ModelSpec

SHORT = 1024
"""Characters that are tokenised at once, as a worker would take longer to be asked."""
TAIL = 64
"""Tokens of a prompt that decide how those after it are spelled."""

T = TypeVar("T")


class Texts:
    """Tokenising, rendering and detokenising for one model."""

    def __init__(self, folder: Path, spec: ModelSpec, room: int, *, template: ChatTemplate | None = None) -> None:
        self.folder, self.spec, self.room = transformer_folder(folder), spec, room
        self.tokenizer: Tokenizer = tokenizer(self.folder)
        own = None if spec.source_vocab is None or is_gguf(self.folder) else source_tokenizer(self.folder)
        self.reader: Tokenizer = own or self.tokenizer
        """Of what the model reads, where the source has a vocabulary of its own."""
        self.bytes_of: TokenBytes = self.tokenizer.token_bytes
        self.longest = self.reader.token_bytes.longest
        self.tokens = self._special_tokens()
        """Special tokens by name: bos_token, ..."""
        self.template = read_template(self.folder) if template is None else replace(template, tokens=self.tokens)
        self._tokenising = ThreadPoolExecutor(2, thread_name_prefix="tokenise")
        # Texts that are only counted may be long, and must not keep prompts waiting.
        self._counting = ThreadPoolExecutor(1, thread_name_prefix="count")
        # A template that runs into its time limit must not keep others from being tokenised.
        self._rendering = ThreadPoolExecutor(1, thread_name_prefix="render")

    def close(self) -> None:
        """End the workers."""
        for pool in (self._tokenising, self._counting, self._rendering):
            pool.shutdown(wait=True, cancel_futures=True)

    async def in_worker(self, call: Callable[[], T]) -> T:
        """Do something with texts beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenising, guarded, call)

    async def count(self, call: Callable[[], T]) -> T:
        """The same for texts that nobody is going to continue, however long they are."""
        return await asyncio.get_running_loop().run_in_executor(self._counting, guarded, call)

    async def prompt(self, text: str, room: int, *, specials: bool = True, where: str = "prompt") -> list[int]:
        """The ids of a prompt. A text that can't fit into `room` tokens is refused before it is tokenised."""
        size = len(text.encode())
        if size > self.longest * room:
            raise too_long(-(-size // self.longest), room, param=where)
        if len(text) <= SHORT:
            return guarded(lambda: self.prompt_ids_of(text, where, specials=specials))
        return await self.in_worker(lambda: self.prompt_ids_of(text, where, specials=specials))

    def prompt_ids_of(self, text: str, where: str, *, specials: bool) -> list[int]:
        """The ids of a prompt, in this thread."""
        if self.spec.topology == "decoder":
            if specials:
                return list(prompt_ids(self.spec, self.tokenizer, text))
            found = self.tokenizer
            ids = found.text_ids(text, specials=False) if found.published else found.encode(text)
        else:
            ids = source_ids(self.reader, text) if specials else self.reader.encode(text)
        if not ids:
            raise bad_request(f"{where}: has no tokens; give a text", where)
        return ids

    async def chat(self, messages: Sequence[Mapping[str, Any]], *, continues: bool = False, **names: Any) -> list[int]:
        """The ids of a conversation, as the model's chat template writes it."""
        template = self.need_template()
        size = sum(len(str(message.get("content") or "")) for message in messages)
        if size > self.longest * self.room:
            # Each character is a byte at least, so no tokenizer makes it fit.
            raise too_long(-(-size // self.longest), self.room, param="messages")
        call = lambda: template.ids(self.tokenizer, messages, continue_final_message=continues, **names)  # noqa: E731
        return await asyncio.get_running_loop().run_in_executor(self._rendering, guarded, call)

    async def render(self, messages: Sequence[Mapping[str, Any]], **names: Any) -> str:
        """The text of a conversation."""
        template = self.need_template()
        call = lambda: template.render(messages, **names)  # noqa: E731
        return await asyncio.get_running_loop().run_in_executor(self._rendering, guarded, call)

    def need_template(self) -> ChatTemplate:
        """The chat template; a base model has none."""
        if self.template is None:
            raise bad_request(
                "messages: this model has no chat template, so it is a base model that continues texts: use /v1/completions, "
                "or start the server with --chat-template FILE",
                "messages",
                "no_chat_template",
            )
        return self.template

    def detokenizer(
        self, prompt: Sequence[int], stops: Sequence[str] = (), *, least: int = 0
    ) -> Detokenizer | ByteDetokenizer | StopText:
        """What turns the new tokens after a prompt into text, as they come; the text ends before a stop string."""
        before = prompt[-TAIL:] if self.spec.topology == "decoder" else ()
        made = detokenizer(self.tokenizer, before)
        return StopText(made, stops, least=least) if stops else made

    def _special_tokens(self) -> dict[str, str]:
        if is_gguf(self.folder):
            return dict(self.tokenizer.named)
        place = self.folder / SETTINGS
        named = special_tokens(read_json(place, SETTINGS_BYTES)) if place.is_file() else {}
        names = {token: name for name, token in self.tokenizer.specials.items()}
        ids = self.spec.ids
        first = {"bos_token": ids.bos, "eos_token": next(iter(ids.eos), None), "pad_token": ids.pad}
        usual = {name: names.get(token) or self.tokenizer.inner.id_to_token(token) for name, token in first.items() if token is not None}  # fmt: skip
        return {name: text for name, text in usual.items() if text} | dict(named)


def guarded(call: Callable[[], T]) -> T:
    """A panic inside of the tokenizers library is no Exception: it would end the thread instead of the request."""
    try:
        return call()
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ApiError(
            500, "the tokenizer failed on this text", code="tokenizer_failed", headers={"x-should-retry": "false"}
        ) from error


def template_file(path: str) -> ChatTemplate:
    """A chat template in a file of the operator's."""
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--chat-template: {path}: can't be read: {error}") from error
    return ChatTemplate(text=text)
