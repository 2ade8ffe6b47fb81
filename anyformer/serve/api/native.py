"""llama.cpp's own POST /completion: its fields, its answer and its events."""

import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from anyformer.serve.api import large
from anyformer.serve.api.choices import Choice, Job, Jobs
from anyformer.serve.api.context import Context, new_id
from anyformer.serve.api.native_answer import NativeAnswer
from anyformer.serve.api.prompts import prompt_rows
from anyformer.serve.api.sampling import NATIVE_NAMES, Sampling, engine_params, new_tokens
from anyformer.serve.engine.messages import Output
from anyformer.serve.errors import bad_request
from anyformer.serve.fields.native import ALL, native_table
from anyformer.serve.http.reply import EventStream, HttpRequest, Reply, Route, to_json

PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Parameters to which repeat_last_n matters, each with the value that changes nothing."""


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """Where it is served."""
    route = Route(NativeCompletion(context), native_table(context.bounds))
    return {("POST", path): route for path in ("/completion", "/completions")}


class NativeCompletion:
    """The handler."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def __call__(self, request: HttpRequest) -> Reply | EventStream:
        """Answer one request."""
        context, data = self.context, request.data
        model = context.check_model(data["model"])
        context.check_generates()
        rows = await prompt_rows(context, data["prompt"], "prompt")
        biases = await self._biases(data)
        samplings = [self._sampling(data, ids, biases) for ids in rows]
        jobs = [Job(context, ids, each, first=i) for i, (ids, each) in enumerate(zip(rows, samplings, strict=True))]
        run = NativeRun(Jobs(context, request, new_id("cmpl"), jobs), data["t_max_predict_ms"])
        answer = NativeAnswer(context, data, model, biases)
        if data["stream"]:
            return EventStream(self._events(run, answer))
        async for batch in run.outputs():
            for job, output in batch:
                run.take(job, output)

        def bodies() -> Any:
            made = [answer.whole(job) for job in jobs]
            return made if data["prompt"].many else made[0]

        return large.answer(run.jobs, bodies)

    async def _events(self, run: "NativeRun", answer: NativeAnswer) -> AsyncIterator[bytes]:
        """llama.cpp's events: one for each step, and a last one with stop: true; there is no [DONE]."""
        data, jobs = answer.data, run.jobs.jobs
        begun: set[int] = set()
        try:
            if data["return_progress"]:
                yield b"".join(_event(answer.progress(job, read=False)) for job in jobs)
            async for batch in run.outputs():
                parts: list[dict[str, Any]] = []
                for job, output in batch:
                    step, choice = run.take(job, output), job.choices[0]
                    if step is None:
                        continue
                    if data["return_progress"] and choice.index not in begun:
                        parts.append(answer.progress(job, read=True))
                    begun.add(choice.index)
                    if any(step):
                        parts.append(answer.piece(job, choice, *step))
                    if choice.finish_reason is not None:
                        parts.append(answer.last(job))
                if parts:
                    yield b"".join(map(_event, parts))
        finally:
            # Whoever stops listening closes this generator only, and not those that it reads from.
            run.jobs.cancel()

    async def _biases(self, data: Mapping[str, Any]) -> dict[int, float | None]:
        """Biases by id; None: never."""
        texts, found = self.context.texts, dict[int, float | None]()
        for token, bias in data["logit_bias"] or ():
            ids = [token] if isinstance(token, int) else texts.tokenizer.encode(token)
            found |= dict.fromkeys(ids, bias)
        if data["ignore_eos"]:
            found |= dict.fromkeys(self.context.facts.eos)
        return found

    def _sampling(self, data: Mapping[str, Any], ids: list[int], biases: Mapping[int, float | None]) -> Sampling:
        """By llama.cpp's names, what our own endpoints read by OpenAI's."""
        asked = data["n_predict"]
        usual = self.context.defaults.get("max_tokens")
        tokens = new_tokens(self.context, len(ids), None if asked in (None, ALL) else asked, usual if asked is None else None, fields=("prompt", "n_predict"))  # fmt: skip
        mapped = dict(data) | {
            "repetition_penalty": data["repeat_penalty"],
            "seed": secrets.randbits(62) if data["seed"] == ALL else data["seed"],
            "logit_bias": {str(token): bias for token, bias in biases.items() if bias is not None},
        }
        logprobs = data["n_probs"] or None
        names = NATIVE_NAMES | {"guided": "grammar" if data["json_schema"] is None else "json_schema"}
        made = engine_params(
            mapped, self.context, max_tokens=tokens, n=1, logprobs=logprobs, guided=_guided(data), names=names
        )
        _check_last(data["repeat_last_n"], made.params)
        never = [[token] for token, bias in biases.items() if bias is None]
        if never:
            made.params["bad_words"] = never
        if logprobs is not None and data["post_sampling_probs"]:
            made.params["processed_logprobs"] = True
        return made


class NativeRun:
    """The jobs of a request, ended one by one where their time is over."""

    def __init__(self, jobs: Jobs, milliseconds: int) -> None:
        self.jobs = jobs
        self.seconds = milliseconds / 1000 if milliseconds > 0 else None
        self._begun: dict[int, float] = {}
        self._ended: set[int] = set()

    async def outputs(self) -> AsyncIterator[list[tuple[Job, Output]]]:
        """What the engine reports, until the last job has ended."""
        try:
            async for batch in self.jobs.outputs():
                yield batch
                if len(self._ended) == len(self.jobs.jobs):
                    break
        finally:
            self.jobs.cancel()

    def take(self, job: Job, output: Output) -> tuple[list[int], str] | None:
        """The new ids and text of a job; None: it has ended before."""
        choice = job.choices[0]
        if choice.index in self._ended:
            return None
        before = len(choice.ids)
        ((_, piece),) = job.apply(output)
        if choice.finish_reason is None and self._is_late(choice):
            ((_, rest),) = job.apply(Output(0, [], finish_reason="length"))
            piece += rest
            if job.generation is not None:
                job.generation.cancel()
        if choice.finish_reason is not None:
            self._ended.add(choice.index)
        return choice.ids[before:], piece

    def _is_late(self, choice: Choice) -> bool:
        """Whether an answer that may end has taken longer than it should."""
        now = time.monotonic()
        began = self._begun.setdefault(choice.index, now)
        return self.seconds is not None and now - began > self.seconds and "\n" in choice.text


def _check_last(last: int | None, params: Mapping[str, Any]) -> None:
    """Refuse to penalise the last tokens only; without a penalty their number changes nothing."""
    on = [name for name, usual in PENALTIES.items() if params.get(name, usual) != usual]
    if last not in (None, ALL) and on:
        word = NATIVE_NAMES.get(on[0], on[0])
        raise bad_request(f"repeat_last_n: {last} is not supported here with {word}: the whole text counts; give -1, or leave it out", "repeat_last_n", "unsupported_value")  # fmt: skip


def _guided(data: Mapping[str, Any]) -> dict[str, Any]:
    if data["json_schema"] is not None and data["grammar"]:
        raise bad_request("grammar: json_schema asks for another form; give one of them", "grammar")
    if data["json_schema"] is not None:
        return {"guided": {"json_schema": data["json_schema"]}}
    return {"guided": {"grammar": data["grammar"]}} if data["grammar"] else {}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + to_json(body) + b"\n\n"
