"""Vectors of texts: OpenAI's /v1/embeddings, and llama.cpp's /embedding and /embeddings."""

import base64
from typing import Any

import numpy as np

from anyformer.serve.api.context import Context
from anyformer.serve.api.large import LARGE
from anyformer.serve.api.prompts import prompt_rows
from anyformer.serve.errors import ApiError, bad_request
from anyformer.serve.fields.embeddings import embeddings_table, native_embeddings_table
from anyformer.serve.fields.prompts import Prompts
from anyformer.serve.http.reply import HttpRequest, Reply, Route

BY_TOKEN = "none"
"""The pooling that leaves a vector for each token."""
NUMBERS = 2**22
"""The most that one answer with vectors of tokens has."""


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """All of them."""
    api, bounds = EmbeddingsApi(context), context.bounds
    native = Route(api.native, native_embeddings_table(bounds))
    return {
        ("POST", "/v1/embeddings"): Route(api.openai, embeddings_table(bounds, context.facts.embedding_width)),
        ("POST", "/embedding"): native,
        ("POST", "/embeddings"): native,
    }


class EmbeddingsApi:
    """The handlers, for one model."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def openai(self, request: HttpRequest) -> Reply:
        """POST /v1/embeddings."""
        data, context = request.data, self.context
        model = context.check_model(data["model"])
        if context.facts.pooling == BY_TOKEN:
            raise ApiError(
                400, "this server was started with --pooling none, so it has a vector for each token: use /embeddings",
                code="unsupported_value",
            )  # fmt: skip
        vectors, tokens = await self._vectors(request, data["input"], "input")

        def body() -> dict[str, Any]:
            kept = [shortened(each, data["dimensions"]) for each in vectors]
            found = [
                {"object": "embedding", "index": i, "embedding": encoded(each, data["encoding_format"])}
                for i, each in enumerate(kept)
            ]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return {"object": "list", "data": found, "model": model, "usage": usage}

        return Reply(body if sum(each.size for each in vectors) > LARGE else body())

    async def native(self, request: HttpRequest) -> Reply:
        """POST /embedding, /embeddings: a list of vectors for each text, of which there is one if they are pooled."""
        data = request.data
        self.context.check_model(data["model"])
        given = [name for name in ("input", "content") if data[name] is not None]
        if len(given) != 1:
            raise bad_request(f"{' and '.join(given) or 'input: is missing'}; give one of input and content", "input")
        vectors, _ = await self._vectors(request, data[given[0]], given[0])

        def body() -> list[Any]:
            form = data["encoding_format"]
            return [
                {"index": i, "embedding": [encoded(each, form) for each in np.atleast_2d(rows)]}
                for i, rows in enumerate(vectors)
            ]

        return Reply(body if sum(each.size for each in vectors) > LARGE else body())

    async def _vectors(self, request: HttpRequest, prompts: Prompts, where: str) -> tuple[list[Any], int]:
        """The vector of each text, or its vectors by token; and how many tokens were read."""
        context = self.context
        if not context.facts.embeds:
            raise ApiError(501, "this model makes no vectors of texts", code="not_supported")
        rows = await prompt_rows(context, self._written(prompts), where)
        tokens = sum(map(len, rows))
        request.log["prompt_tokens"] = tokens
        pooling = context.facts.pooling
        if pooling == BY_TOKEN and tokens * context.facts.width > NUMBERS:
            raise bad_request(f"{where}: {tokens:,} tokens of {context.facts.width:,} numbers each; one answer has {NUMBERS:,} at most: send fewer texts at once", where)  # fmt: skip
        made = await context.client.embed(
            rows, pooling=pooling, normalize=pooling != BY_TOKEN, prompt=self._prompt_tokens()
        )
        return [np.asarray(each, np.float32) for each in made], tokens

    def _prompt_tokens(self) -> int:
        """Tokens of the prompt of such a folder, with what stands before it and without what stands after it."""
        how = self.context.facts.sentence
        if how is None or not how["prompt"]:
            return 0
        found = self.context.texts.reader.inner.encode(how["prompt"].lower() if how["lower"] else how["prompt"])
        return len(found.ids) - (1 if found.special_tokens_mask and found.special_tokens_mask[-1] else 0)

    def _written(self, prompts: Prompts) -> Prompts:
        """Texts as a folder of sentence-transformers wants them: behind its prompt, and in small letters."""
        how = self.context.facts.sentence
        if how is None:
            return prompts

        def written(text: str) -> str:
            return (how["prompt"] + text).lower() if how["lower"] else how["prompt"] + text

        each = [written(one) if isinstance(one, str) else one for one in prompts.each]
        return Prompts(each, many=prompts.many)


def shortened(vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first numbers of a vector, of length 1 again."""
    if dimensions is None or dimensions >= len(vector):
        return vector
    kept = vector[:dimensions]
    length = float(np.linalg.norm(kept.astype(np.float64)))
    return kept / np.float32(length) if length else kept


def encoded(vector: np.ndarray, form: str) -> list[float] | str:
    """A vector as JSON has it."""
    return vector.tolist() if form == "float" else base64.b64encode(vector.astype("<f4").tobytes()).decode()
