"""The answers of llama.cpp's POST /completion: as a whole, and in events."""

import math
import time
from collections.abc import Mapping
from typing import Any

from anyformer.serve.api.choices import Choice, Job
from anyformer.serve.api.context import Context
from anyformer.serve.api.sampling import room_for
from anyformer.serve.fields.native import ALL, IDLE, OFF
from anyformer.serve.text.logprobs import Entry

NO_SLOT = -1
"""Sequences here have no slot of their own."""
NAMES: dict[str, tuple[str, Any]] = {
    "seed": ("seed", ALL), "temperature": ("temperature", 1.0), "top_k": ("top_k", 0), "top_p": ("top_p", 1.0),
    "min_p": ("min_p", 0.0), "typical_p": ("typical_p", 1.0), "repeat_penalty": ("repetition_penalty", 1.0),
    "presence_penalty": ("presence_penalty", 0.0), "frequency_penalty": ("frequency_penalty", 0.0),
}  # fmt: skip
"""llama.cpp's names of settings -> ours, and what is meant where nothing is said."""


class NativeAnswer:
    """What is sent of each job of one request."""

    def __init__(
        self, context: Context, data: Mapping[str, Any], model: str, biases: Mapping[int, float | None]
    ) -> None:
        self.context, self.data, self.model, self.biases = context, data, model, biases
        self.started = time.monotonic()

    def whole(self, job: Job) -> dict[str, Any]:
        """The answer to one prompt."""
        choice = job.choices[0]
        tokens = choice.ids if self.data["return_tokens"] and job.sampling.max_tokens else []
        return self._chosen(self._final(job, "" if not job.sampling.max_tokens else choice.text, tokens))

    def last(self, job: Job) -> dict[str, Any]:
        """The last event: all but what was sent before."""
        return self._chosen(self._final(job, "", []))

    def piece(self, job: Job, choice: Choice, ids: list[int], text: str) -> dict[str, Any]:
        """The event of a step."""
        scoring = not job.sampling.max_tokens
        made: dict[str, Any] = {
            "index": choice.index, "content": "" if scoring else text, "tokens": [] if scoring else ids, "stop": False,
            "id_slot": NO_SLOT, "tokens_predicted": choice.num_tokens, "tokens_evaluated": len(job.prompt),
        }  # fmt: skip
        if self.data["timings_per_token"]:
            made["timings"] = self.timings(job)
        return made | self._probabilities(choice)

    def progress(self, job: Job, *, read: bool) -> dict[str, Any]:
        """The event before and after a prompt is read."""
        cached = job.num_cached_tokens if read else 0
        made: dict[str, Any] = {
            "index": job.choices[0].index, "content": "", "tokens": [], "stop": False, "id_slot": NO_SLOT,
            "tokens_predicted": 0, "tokens_evaluated": len(job.prompt),
            "prompt_progress": {
                "total": len(job.prompt), "cache": cached, "processed": len(job.prompt) if read else 0,
                "time_ms": round((time.monotonic() - self.started) * 1000) if read else 0,
            },
        }  # fmt: skip
        return made | {"timings": self.timings(job, begun=read)} if self.data["timings_per_token"] else made

    def _final(self, job: Job, content: str, tokens: list[int]) -> dict[str, Any]:
        choice, texts = job.choices[0], self.context.texts
        limit = choice.finish_reason == "length"
        made: dict[str, Any] = {
            "index": choice.index,
            "content": content,
            "tokens": tokens,
            "id_slot": NO_SLOT,
            "stop": True,
            "model": self.model,
            "tokens_predicted": choice.num_tokens if job.sampling.max_tokens else 0,
            "tokens_evaluated": len(job.prompt),
            "generation_settings": self.settings(job),
            "prompt": texts.tokenizer.decode(job.prompt, specials=True),
            "has_new_line": "\n" in choice.text,
            "truncated": limit and choice.num_tokens >= room_for(self.context, len(job.prompt)),
            "stop_type": stop_type(choice),
            "stopping_word": choice.stop_reason if isinstance(choice.stop_reason, str) else "",
            "tokens_cached": job.num_cached_tokens,
            "timings": self.timings(job),
        }
        return made | self._probabilities(choice)

    def _chosen(self, made: dict[str, Any]) -> dict[str, Any]:
        """Only the fields that were asked for."""
        paths = self.data["response_fields"]
        if not paths:
            return made
        found: dict[str, Any] = {}
        for path in paths:
            value: Any = made
            for name in path.split("/"):
                value = value.get(name, found) if isinstance(value, dict) else found
            if value is not found:
                found[path] = value
        return found

    def _probabilities(self, choice: Choice) -> dict[str, Any]:
        if not self.data["n_probs"]:
            return {}
        entries = choice.take_entries()
        return {"completion_probabilities": [self._probability(each) for each in entries]}

    def _probability(self, entry: Entry) -> dict[str, Any]:
        """One token: log-probabilities of the model's own, or probabilities of what is drawn from."""
        bytes_of, drawn = self.context.texts.bytes_of, self.data["post_sampling_probs"]

        def one(token: int, logprob: float) -> dict[str, Any]:
            raw = bytes_of(token)
            named = {"id": token, "token": raw.decode("utf-8", "replace"), "bytes": list(raw)}
            return named | ({"prob": math.exp(logprob)} if drawn else {"logprob": logprob})

        top = [one(int(token), float(value)) for token, value in entry.top if value > -math.inf]
        return one(entry.id, entry.logprob or 0.0) | {"top_probs" if drawn else "top_logprobs": top}

    def settings(self, job: Job) -> dict[str, Any]:
        """With what the answer was made."""
        asked = self.data["n_predict"]
        usual = self.context.defaults.get("max_tokens", ALL)
        return generation_settings(job.sampling.params, usual if asked is None else asked) | {
            "stop": list(job.sampling.stops),
            "ignore_eos": self.data["ignore_eos"],
            "stream": self.data["stream"],
            "n_probs": self.data["n_probs"],
            "post_sampling_probs": self.data["post_sampling_probs"],
            "timings_per_token": self.data["timings_per_token"],
            "grammar": self.data["grammar"] or "",
            "logit_bias": [{"bias": bias, "token": token} for token, bias in self.biases.items()],
        }

    def timings(self, job: Job, *, begun: bool = True) -> dict[str, float]:
        """How long the prompt and the answer took. The first new token comes with the prompt, so it costs no step."""
        times = None if job.generation is None else job.generation.times
        count = job.choices[0].num_tokens if job.sampling.max_tokens else 0
        cached = job.num_cached_tokens
        prompt_ms = predicted_ms = 0.0
        if begun and times is not None and times.first_token is not None:
            start = times.arrival if times.scheduled is None else times.scheduled
            prompt_ms = 1000 * (times.first_token - start)
            predicted_ms = 1000 * ((times.last_token or times.first_token) - times.first_token)
        read = len(job.prompt) - cached if begun else 0
        steps = max(0, count - 1)
        return {
            "cache_n": cached if begun else 0,
            "prompt_n": read,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / read if read else 0.0,
            "prompt_per_second": 1000 * read / prompt_ms if prompt_ms else 0.0,
            "predicted_n": count,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": predicted_ms / steps if steps else 0.0,
            "predicted_per_second": 1000 * steps / predicted_ms if predicted_ms else 0.0,
        }


def stop_type(choice: Choice) -> str:
    """Why an answer ended, by llama.cpp's words."""
    if choice.finish_reason == "length":
        return "limit"
    if choice.finish_reason == "stop":
        return "word" if isinstance(choice.stop_reason, str) else "eos"
    return "none"


def generation_settings(params: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Sampling by llama.cpp's names, from the engine's; what this server does not have is off."""
    found = {name: params.get(own, usual) for name, (own, usual) in NAMES.items()}
    return found | {"repeat_last_n": ALL, "n_predict": tokens, "max_tokens": tokens} | OFF | IDLE
