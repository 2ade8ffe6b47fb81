"""Texts to tokens and back, without the model: /tokenize, /detokenize, /tokenizer_info, /apply-template, input_tokens."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from anyformer.data.token_bytes import TokenBytes
from anyformer.data.tokenizer import encoded
from anyformer.serve.api.context import Context
from anyformer.serve.api.conversation import read_conversation
from anyformer.serve.api.large import LARGE
from anyformer.serve.errors import bad_request
from anyformer.serve.fields.chat import chat_table
from anyformer.serve.fields.tokens import detokenize_table, tokenize_table
from anyformer.serve.http.reply import HttpRequest, Reply, Route
from anyformer.serve.text.texts import Texts

COUNTS = ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens")
PIECES = 2**17
"""The most tokens that are told one by one."""
SOURCES = ("content", "prompt", "messages")
"""Fields of /tokenize, of which each request has one."""


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """All of them."""
    api, bounds = TokensApi(context), context.bounds
    chat = chat_table(bounds)
    template = dataclasses.replace(chat, summary="A conversation as the model reads it, and its tokens.")
    count = dataclasses.replace(chat, summary="How many tokens a conversation has.")
    return {
        ("POST", "/tokenize"): Route(api.tokenize, tokenize_table(bounds)),
        ("POST", "/detokenize"): Route(api.detokenize, detokenize_table(bounds)),
        ("GET", "/tokenizer_info"): Route(api.tokenizer_info),
        ("POST", "/apply-template"): Route(api.apply_template, template),
        **{("POST", path): Route(api.input_tokens, count) for path in COUNTS},
    }


class TokensApi:
    """The handlers, for one model."""

    def __init__(self, context: Context) -> None:
        self.context, self.texts = context, context.texts
        same = self.texts.reader is self.texts.tokenizer
        self.bytes_of = self.texts.bytes_of if same else TokenBytes(self.texts.reader)

    async def tokenize(self, request: HttpRequest) -> Reply:
        """POST /tokenize."""
        data, context = request.data, self.context
        context.check_model(data["model"])
        ids = await self._read(data)
        if data["with_pieces"] and len(ids) > PIECES:
            raise bad_request(f"with_pieces: {len(ids):,} tokens, and pieces are told of {PIECES:,} at most; leave it out, or send the text in parts", "with_pieces")  # fmt: skip

        def body() -> dict[str, Any]:
            tokens = [{"id": each, "piece": self.piece(each)} for each in ids] if data["with_pieces"] else ids
            return {"tokens": tokens, "count": len(ids), "max_model_len": context.room}

        return Reply(body if len(ids) > LARGE else body())

    async def _read(self, data: Mapping[str, Any]) -> list[int]:
        """The ids of the one source that is there."""
        given = [name for name in SOURCES if data[name] is not None]
        if len(given) != 1:
            found = f"{', '.join(given)}: are all given" if given else "content: is missing"
            raise bad_request(f"{found}; give one of {', '.join(SOURCES)}", (given or SOURCES)[0])
        if given == ["messages"]:
            return await chat_ids(self.context, data)
        text = data[given[0]]
        asked = [data[name] for name in ("add_special", "add_special_tokens") if data[name] is not None]
        if len(set(asked)) > 1:
            raise bad_request("add_special: says something else than add_special_tokens; give one of them", "add_special")  # fmt: skip
        # llama.cpp leaves them out unless asked, vLLM puts them in; each field behaves as where it comes from.
        specials = asked[0] if asked else given == ["prompt"]
        return await text_ids(self.texts, text, specials=specials, parse=data["parse_special"])

    async def detokenize(self, request: HttpRequest) -> Reply:
        """POST /detokenize."""
        data = request.data
        self.context.check_model(data["model"])
        reader = self.texts.reader
        text = await self.texts.count(lambda: reader.decode(data["tokens"], specials=True))
        return Reply({"content": text, "prompt": text})

    async def tokenizer_info(self, request: HttpRequest) -> Reply:
        """GET /tokenizer_info: what a client needs to write chats itself."""
        template = self.texts.template
        named = {name: self.texts.tokens.get(name) for name in ("eos_token", "bos_token", "pad_token")}
        return Reply(named | {"chat_template": None if template is None else template.text})

    async def apply_template(self, request: HttpRequest) -> Reply:
        """POST /apply-template."""
        data = request.data
        self.context.check_model(data["model"])
        found = await read_conversation(self.context, data)
        ids = found.ids
        if data["continue_final_message"]:
            text = self.texts.tokenizer.decode(ids, specials=True)
        else:
            answer = data["add_generation_prompt"] is not False
            text = await self.texts.render(found.messages, answer=answer, **found.names)
        special = frozenset(self.texts.tokenizer.specials.values())

        def body() -> dict[str, Any]:
            pieces = [{"id": each, "piece": self.piece(each), "special": each in special} for each in ids[:PIECES]]
            return {"prompt": text, "tokens": ids, "pieces": pieces}

        return Reply(body if len(ids) > LARGE else body())

    async def input_tokens(self, request: HttpRequest) -> Reply:
        """POST /v1/chat/completions/input_tokens."""
        data = request.data
        self.context.check_model(data["model"])
        ids = await chat_ids(self.context, data)
        return Reply({"object": "response.input_tokens", "input_tokens": len(ids)})

    def piece(self, token: int) -> str | list[int]:
        """What a token stands for: a text, or bytes where it is no whole character."""
        raw = self.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return list(raw)


async def text_ids(texts: Texts, text: str, *, specials: bool, parse: bool | None) -> list[int]:
    """The ids of a text. `parse`: whether special tokens spelled out in it are tokens; None: as in a prompt."""
    if parse is None and text in texts.tokens.values():
        # Clients look up the ids of the names that /tokenizer_info tells them here.
        parse = True
    if parse is None and text:
        return await texts.count(lambda: texts.prompt_ids_of(text, "content", specials=specials))
    return await texts.count(lambda: _spelled(texts, text, specials=specials, parse=parse or False))


def _spelled(texts: Texts, text: str, *, specials: bool, parse: bool) -> list[int]:
    reader, bos = texts.reader, texts.spec.ids.bos
    ids = encoded(reader.spelled if parse else reader.literal, text, specials=specials)
    own = specials and not reader.published and texts.spec.topology == "decoder"
    # A run of ours begins its texts with the bos of its spec, which its tokenizer's template need not know.
    if own and bos is not None and bos not in texts.spec.ids.eos and ids[:1] != [bos]:
        ids.insert(0, bos)
    return ids


async def chat_ids(context: Context, data: Mapping[str, Any]) -> list[int]:
    """The ids of a conversation, as POST /v1/chat/completions reads it."""
    return (await read_conversation(context, {"tool_choice": None, "reasoning_effort": None} | dict(data))).ids
