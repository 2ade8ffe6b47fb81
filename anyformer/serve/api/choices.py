"""Answers in the making: the text, tokens and log-probabilities of each choice, from what the engine reports step by step."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from anyformer.generation.params.stop import StopText
from anyformer.serve.api.context import Context
from anyformer.serve.api.sampling import Sampling, renamed
from anyformer.serve.engine.client import GenerateRequest, Generation, Output
from anyformer.serve.errors import ApiError
from anyformer.serve.http.reply import HttpRequest
from anyformer.serve.text.logprobs import Entry


class Choice:
    """One answer to one prompt."""

    __slots__ = ("_asked_ids", "_begins", "_detokenizer", "_keeps", "_keeps_end", "_shown", "_stop_ids", "_taken", "finish_reason", "ids", "index", "new", "num_tokens", "stop_reason", "text")  # fmt: skip

    def __init__(
        self,
        context: Context,
        index: int,
        prompt: Sequence[int],
        sampling: Sampling,
        shown: dict[int, str] | None = None,
        *,
        keeps_end: bool = False,
    ) -> None:
        self.index, self.ids, self.text = index, list[int](), ""
        self.new: list[Entry] = []
        """Tokens with log-probabilities that were not sent."""
        self.num_tokens = 0
        """Tokens that were generated, that which ended the answer included."""
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        """The stop string with which it ended, or that of the request's stop_token_ids; None: as the model ends its texts."""
        self._detokenizer = context.texts.detokenizer(prompt, sampling.stops, least=sampling.least)
        self._asked_ids = sampling.asked_ids
        self._stop_ids, self._keeps = sampling.stop_ids, "logprobs" in sampling.params
        self._keeps_end = keeps_end
        """Whether the id that ends an answer is one of its tokens; of its text it is no part."""
        self._shown = shown or {}
        """Special tokens that are written out, as tool calls begin with one in some models."""
        self._taken = 0
        self._begins: list[int] = []
        """Where the text of each of `new` begins, if there are stop strings: what those held back was not sent either."""

    def push(self, output: Output) -> str:
        """Take what a step did; the text that can be sent now."""
        ids, reason = output.ids, output.finish_reason
        kept = ids
        self.num_tokens += len(ids)
        if reason is not None:
            self.finish_reason = reason
            if reason == "stop" and ids and ids[-1] in self._stop_ids:
                self.stop_reason = ids[-1] if ids[-1] in self._asked_ids else None
                ids = ids[:-1]
                kept = kept if self._keeps_end else ids
            elif output.stop_text is not None:
                self.stop_reason = output.stop_text
        self.ids += kept
        if self._keeps and output.logprobs is not None:
            top = output.top or [()] * len(kept)
            self.new += [Entry(*each) for each in zip(kept, output.logprobs, top, strict=False)]
        piece = self._written(ids)
        if self._keeps and isinstance(self._detokenizer, StopText):
            self._begins += [self._detokenizer.length] * (len(kept) - len(ids))
        if reason is not None:
            piece += self._detokenizer.end()
        self.text += piece
        return piece

    def _written(self, ids: list[int]) -> str:
        """The text that can be sent after some more tokens."""
        if self._keeps and isinstance(self._detokenizer, StopText):
            piece = ""
            for token in ids:
                self._begins.append(self._detokenizer.length)
                piece += self._detokenizer.push(token) + self._shown.get(token, "")
            return piece
        if self._shown and not self._shown.keys().isdisjoint(ids):
            return "".join(self._detokenizer.push(token) + self._shown.get(token, "") for token in ids)
        return self._detokenizer.push(*ids) if ids else ""

    def take_ids(self) -> list[int]:
        """Tokens that were not sent yet."""
        found, self._taken = self.ids[self._taken :], len(self.ids)
        return found

    def take_entries(self) -> list[Entry]:
        """Log-probabilities that were not sent yet, of tokens whose text was; those of a stop string have none."""
        count, stop_text = len(self.new), self._detokenizer
        if isinstance(stop_text, StopText) and (self.finish_reason is None or stop_text.met is not None):
            count = bisect_left(self._begins, stop_text.shown)
        found = self.new[:count]
        self.new, self._begins = ([], []) if self.finish_reason else (self.new[count:], self._begins[count:])
        return found


class Job:
    """The answers to one prompt: one request of the engine."""

    def __init__(
        self,
        context: Context,
        prompt: list[int],
        sampling: Sampling,
        *,
        first: int = 0,
        text: str | None = None,
        shown: dict[int, str] | None = None,
        keeps_end: bool = False,
    ) -> None:
        self.prompt, self.text, self.sampling = prompt, text, sampling
        count = sampling.n * sampling.copies
        self.choices = [Choice(context, first + i, prompt, sampling, shown, keeps_end=keeps_end) for i in range(count)]
        self.prompt_logprobs: list[Entry] | None = None
        self.generation: Generation | None = None

    def start(self, context: Context, request: HttpRequest, name: str, *, joins: bool = False) -> None:
        """Ask the engine. `joins`: for one more prompt of a request."""
        self.generation = context.client.generate(
            GenerateRequest(id=name, prompt=self.prompt, params=self.sampling.params, cache_salt=request.key_id),
            joins=joins,
        )

    def apply(self, output: Output) -> list[tuple[Choice, str]]:
        """What an output of the engine adds to the choices."""
        if output.prompt_logprobs is not None and self.prompt_logprobs is None:
            self.prompt_logprobs = [
                Entry(token, None) if each is None else Entry(token, each[0], each[1])
                for token, each in zip(self.prompt, output.prompt_logprobs, strict=False)
            ]
        if output.finish_reason == "failed":
            raise ApiError(500, output.error or "this request failed", headers={"x-should-retry": "false"})
        copies, index = self.sampling.copies, output.index
        chosen = self.choices[index : index + 1] if copies == 1 else self.choices
        return [(choice, choice.push(output)) for choice in chosen]

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed, as they had been before."""
        return 0 if self.generation is None else self.generation.num_cached_tokens


class Jobs:
    """The prompts of one HTTP request, side by side in the engine."""

    def __init__(self, context: Context, request: HttpRequest, name: str, jobs: list[Job]) -> None:
        self.context, self.request, self.name, self.jobs = context, request, name, jobs
        request.at_end.append(self.cancel)
        for i, job in enumerate(jobs):
            job.start(context, request, name if len(jobs) == 1 else f"{name}-{i}", joins=i > 0)
        self.note()

    def note(self) -> None:
        """Numbers for the log line."""
        self.request.log |= {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}

    @property
    def choices(self) -> list[Choice]:
        """All answers, those to one prompt beside each other."""
        return [choice for job in self.jobs for choice in job.choices]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(job.prompt) for job in self.jobs)

    @property
    def completion_tokens(self) -> int:
        """Tokens that were generated for those who asked; one that only scores a prompt counts none."""
        return sum(choice.num_tokens for job in self.jobs for choice in job.choices if job.sampling.max_tokens)

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        cached = sum(job.num_cached_tokens for job in self.jobs)
        return {
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }  # fmt: skip

    def cancel(self) -> None:
        """Give back what the engine holds for us."""
        for job in self.jobs:
            if job.generation is not None:
                job.generation.cancel()
        self.note()

    async def until_closed(self, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Events made of our outputs. Whoever stops to listen between two of them closes this generator and not that of
        the outputs, so the engine is told here.
        """
        try:
            async for event in events:
                yield event
        finally:
            self.cancel()
            await events.aclose()

    async def run(self) -> None:
        """To the end."""
        async for batch in self.outputs():
            for job, output in batch:
                job.apply(output)

    async def outputs(self) -> AsyncIterator[list[tuple[Job, Output]]]:
        """What the engine reports for any of them, all that came since the last time. However it ends, nothing is left."""
        try:
            if len(self.jobs) == 1:
                job = self.jobs[0]
                if job.generation is not None:
                    async for outputs in job.generation:
                        yield [(job, output) for output in outputs]
                return
            async for batch in self._merged():
                yield batch
        except ApiError as error:
            raise renamed(error, self.jobs[0].sampling) from None
        finally:
            self.cancel()

    async def _merged(self) -> AsyncIterator[list[tuple[Job, Output]]]:
        ready: asyncio.Queue[list[tuple[Job, Output]] | BaseException | None] = asyncio.Queue(len(self.jobs))

        async def pump(job: Job) -> None:
            try:
                if job.generation is not None:
                    async for outputs in job.generation:
                        await ready.put([(job, output) for output in outputs])
                await ready.put(None)
            except Exception as error:
                await ready.put(error)

        tasks = [asyncio.ensure_future(pump(job)) for job in self.jobs]
        try:
            left = len(tasks)
            while left:
                found = await ready.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
