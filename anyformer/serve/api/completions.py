"""POST /v1/completions: continue a text, or score it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from anyformer.serve.api import large
from anyformer.serve.api.choices import Choice, Job, Jobs
from anyformer.serve.api.context import Context, new_id
from anyformer.serve.api.sampling import check_seq2seq, engine_params, new_tokens
from anyformer.serve.errors import bad_request
from anyformer.serve.fields.completions import completions_table
from anyformer.serve.http.reply import EventStream, HttpRequest, Reply, Route
from anyformer.serve.http.sse import DONE, dumps, event, quoted
from anyformer.serve.text.logprobs import Offsets, completion_logprobs, vllm_prompt_logprobs

USUAL = 16
"""New tokens, if a request doesn't say how many."""


class Completions:
    """The handler."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.silent = frozenset(context.texts.tokenizer.specials.values())

    async def __call__(self, request: HttpRequest) -> Reply | EventStream:
        """Answer one request."""
        context, data = self.context, request.data
        model = context.check_model(data["model"])
        context.check_generates()
        self._check(data)
        name, jobs = new_id("cmpl"), list[Job]()
        best = data["best_of"] or data["n"]
        logprobs = data["logprobs"] if best == data["n"] else data["logprobs"] or 0
        scores = data["prompt_logprobs"]
        if data["echo"] and data["logprobs"] is not None:
            scores = max(scores or 0, data["logprobs"])
        for i, given in enumerate(_prompts(data["prompt"])):
            where = "prompt" if isinstance(data["prompt"], str) else f"prompt[{i}]"
            text = given if isinstance(given, str) else None
            ids = given if not isinstance(given, str) else await context.texts.prompt(given, context.room, specials=data["add_special_tokens"], where=where)  # fmt: skip
            tokens = new_tokens(context, len(ids), data["max_tokens"], context.defaults.get("max_tokens", USUAL))
            sampling = engine_params(
                data, context, max_tokens=tokens, n=best, logprobs=logprobs, prompt_logprobs=scores
            )
            # Who scores a prompt counts on one log-probability for each of its tokens and each new one.
            jobs.append(Job(context, ids, sampling, first=i * best, text=text, keeps_end=True))
        large.check_prompts(jobs)
        answer = Answer(self, Jobs(context, request, name, jobs), data, model)
        if data["stream"]:
            return EventStream(answer.jobs.until_closed(answer.events()))
        await answer.jobs.run()
        return large.answer(answer.jobs, answer.body)

    def _check(self, data: Mapping[str, Any]) -> None:
        best, n = data["best_of"], data["n"]
        if data["max_tokens"] == 0 and not data["echo"]:
            raise bad_request("max_tokens: 0 only with echo, which scores the prompt; ask for at least 1", "max_tokens")
        if best is not None and best < n:
            raise bad_request(f"best_of: {best} is less than n, {n}", "best_of")
        if data["stream"] and best is not None and best > n:
            raise bad_request("best_of: the best answers are known at the end, so they can't be streamed", "best_of", "unsupported_value")  # fmt: skip
        if best is not None and best > n and data["temperature"] == 0:
            raise bad_request("best_of: without a temperature all answers are the same; leave it out", "best_of")
        scored = data["prompt_logprobs"] is not None or (data["echo"] and data["logprobs"] is not None)
        check_seq2seq(self.context, (("echo", data["echo"]), ("prompt_logprobs", scored)))


class Answer:
    """One answer: as a whole, or in events."""

    def __init__(self, handler: Completions, jobs: Jobs, data: Mapping[str, Any], model: str) -> None:
        self.jobs, self.data, self.context = jobs, data, handler.context
        self.echo, self.with_ids = data["echo"], data["return_token_ids"]
        self.logprobs = data["logprobs"] is not None
        self.head = {
            "id": jobs.name, "object": "text_completion", "created": int(time.time()), "model": model,
            "system_fingerprint": self.context.fingerprint,
        }  # fmt: skip
        bytes_of, silent = self.context.texts.bytes_of, handler.silent
        self.offsets = {choice.index: Offsets(bytes_of, silent) for choice in jobs.choices}

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        choices = [choice for job in self.jobs.jobs for choice in self._best(job)]
        return self.head | {"choices": choices, "usage": self.jobs.usage()}

    def _best(self, job: Job) -> list[dict[str, Any]]:
        """The choices of a prompt: all, or the likeliest of them."""
        n, chosen = self.data["n"], job.choices
        place = job.choices[0].index // len(chosen) * n
        if n < len(chosen):
            mean = {
                id(each): sum(entry.logprob or 0.0 for entry in each.new) / max(1, len(each.new)) for each in chosen
            }
            chosen = sorted(chosen, key=lambda each: -mean[id(each)])[:n]
        return [self._choice(job, choice, place + i) for i, choice in enumerate(chosen)]

    def _choice(self, job: Job, choice: Choice, index: int) -> dict[str, Any]:
        scoring = job.sampling.max_tokens == 0
        before = self._echoed(job, choice) if self.echo else {"text": "", "logprobs": None}
        after = None if scoring or not self.logprobs else self._logprobs(choice)
        made: dict[str, Any] = {
            "index": index, "text": before["text"] + ("" if scoring else choice.text),
            "logprobs": _joined(before["logprobs"], after), "finish_reason": _reason(choice, scoring),
            "stop_reason": None if scoring else choice.stop_reason,
        }  # fmt: skip
        ids = {"token_ids": [] if scoring else choice.ids} if self.with_ids else {}
        return made | self._of_prompt(job) | ids

    def _of_prompt(self, job: Job) -> dict[str, Any]:
        """What was asked for of the prompt, beside its text."""
        made: dict[str, Any] = {"prompt_token_ids": job.prompt} if self.with_ids else {}
        if job.prompt_logprobs is not None and self.data["prompt_logprobs"] is not None:
            made["prompt_logprobs"] = vllm_prompt_logprobs(job.prompt_logprobs, self.context.texts.bytes_of)
        return made

    def _echoed(self, job: Job, choice: Choice) -> dict[str, Any]:
        """The prompt as part of the answer, with its log-probabilities."""
        texts, offsets = self.context.texts, self.offsets[choice.index]
        text = job.text if job.text is not None else texts.tokenizer.decode(job.prompt)
        found = None
        if job.prompt_logprobs is not None and self.logprobs:
            found = completion_logprobs(job.prompt_logprobs, texts.bytes_of, offsets, ids=self.with_ids)
            # Decoders drop the blank before the first word.
            extra = max(0, offsets.at - len(text))
            found["text_offset"] = [max(0, at - extra) for at in found["text_offset"]]
        offsets.at = len(text)
        return {"text": text, "logprobs": found}

    def _logprobs(self, choice: Choice) -> dict[str, Any]:
        entries = choice.take_entries()
        return completion_logprobs(entries, self.context.texts.bytes_of, self.offsets[choice.index], ids=self.with_ids)

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer while it is made."""
        options = self.data["stream_options"] or {}
        counts, ends = options.get("continuous_usage_stats"), options.get("include_usage")
        plain = not (self.logprobs or self.with_ids or counts)
        begin = dumps(self.head)[:-1]
        tail = ',"logprobs":null,"finish_reason":null}]' + (',"usage":null}\n\n' if ends else "}\n\n")
        heads = {c.index: f'data: {begin},"choices":[{{"index":{c.index},"text":' for c in self.jobs.choices}
        begun: set[int] = set()
        async for batch in self.jobs.outputs():
            parts: list[str] = []
            for job, output in batch:
                scoring = job.sampling.max_tokens == 0
                for choice, piece in job.apply(output):
                    if choice.index not in begun:
                        begun.add(choice.index)
                        if large.prompt_values(job) > large.LARGE:
                            parts.append(await asyncio.to_thread(self._first_event, job, choice, counts, ends))
                        else:
                            parts.append(self._first_event(job, choice, counts, ends))
                    if scoring:
                        piece = ""
                    if plain and piece:
                        parts.append(f"{heads[choice.index]}{quoted(piece)}{tail}")
                    elif not plain and not scoring:
                        parts.append(self._event(choice, self._piece(choice, piece), counts, ends))
                    if output.finish_reason is not None:
                        last = {"text": "", "logprobs": None, "finish_reason": _reason(choice, scoring), "stop_reason": choice.stop_reason}  # fmt: skip
                        parts.append(self._event(choice, last, counts, ends))
            if text := "".join(parts):
                yield text.encode()
        if ends:
            yield event(self.head | {"choices": [], "usage": self.jobs.usage()}).encode()
        yield DONE

    def _first(self, job: Job, choice: Choice) -> dict[str, Any]:
        """What comes before the answer: the prompt, as far as it was asked for."""
        made = (self._echoed(job, choice) if self.echo else {}) | self._of_prompt(job)
        ids = {"token_ids": []} if self.with_ids else {}
        return {"text": "", "logprobs": None, "finish_reason": None} | made | ids if made else {}

    def _first_event(self, job: Job, choice: Choice, counts: Any, ends: Any) -> str:
        made = self._first(job, choice)
        return self._event(choice, made, counts, ends) if made else ""

    def _piece(self, choice: Choice, piece: str) -> dict[str, Any]:
        found = self._logprobs(choice) if self.logprobs else None
        shown = {"token_ids": choice.take_ids()} if self.with_ids else {}
        return {"text": piece, "logprobs": found, "finish_reason": None} | shown

    def _event(self, choice: Choice, made: dict[str, Any], counts: Any, ends: Any) -> str:
        usage = {"usage": self.jobs.usage()} if counts else {"usage": None} if ends else {}
        return event(self.head | {"choices": [{"index": choice.index} | made]} | usage)


def _prompts(given: Any) -> list[Any]:
    """A list of texts or of ids."""
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    return given


def _reason(choice: Choice, scoring: bool) -> str | None:
    return "length" if scoring else choice.finish_reason


def _joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Log-probabilities of a prompt and of its answer."""
    if first is None or second is None:
        return first or second
    return {name: first[name] + second[name] for name in first}


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """Where it is served."""
    return {("POST", "/v1/completions"): Route(Completions(context), completions_table(context.bounds))}
