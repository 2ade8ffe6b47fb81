"""What a server has done, as Prometheus reads it, under vLLM's names: its dashboards work here too.

Everything is counted on the event loop's thread, so nothing is locked.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

SHORT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
WHOLE = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip
STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ANSWERS = (1, 2, 5, 10, 20)
REASONS = ("stop", "length", "abort", "error")
"""How requests end; `error` is what the engine calls failed."""


class Histogram:
    """Counts of values by upper bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Samples of the exposition format."""
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels},le="{_number(bound)}"}} {below}'
        yield f"{name}_sum{{{labels}}} {_number(self.total)}"
        yield f"{name}_count{{{labels}}} {below}"


def one_two_five(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to a number."""
    found: list[int] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > most:
                return tuple(found) or (1,)
            found.append(factor * power)
        power *= 10


class Metrics:
    """Of one engine. `snapshot` gives what the engine itself counts."""

    def __init__(self, model_name: str, max_model_len: int, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        self._snapshot = snapshot
        self._labels = f'engine="0",model_name="{_escaped(model_name)}"'
        tokens = one_two_five(max_model_len)
        self.ttft, self.itl, self.tpot = Histogram(FIRST), Histogram(SHORT), Histogram(SHORT)
        self.e2e, self.queue, self.inference = Histogram(WHOLE), Histogram(WHOLE), Histogram(WHOLE)
        self.prefill, self.decode = Histogram(WHOLE), Histogram(WHOLE)
        self.prompt_tokens, self.generation_tokens = Histogram(tokens), Histogram(tokens)
        self.max_tokens, self.asked_tokens = Histogram(tokens), Histogram(tokens)
        self.n, self.iteration = Histogram(ANSWERS), Histogram(STEP)
        self.finished: dict[str, int] = dict.fromkeys(REASONS, 0)
        """Answers by how they ended."""
        self.refused = 0
        """Requests that found the queue full."""

    def first_token(self, seconds: float) -> None:
        """From the arrival of a request to its first token."""
        self.ttft.observe(seconds)

    def next_token(self, seconds: float, tokens: int = 1) -> None:
        """Between tokens of a sequence; of several at once the time is theirs in equal parts."""
        self.itl.observe(seconds / tokens, tokens)

    def end(
        self,
        *,
        arrival: float,
        scheduled: float | None,
        first_token: float | None,
        last_token: float | None,
        now: float,
        prompt_tokens: int,
        generated: Sequence[int],
        reasons: Sequence[str],
        max_tokens: int,
    ) -> None:
        """A request has ended: its times, the tokens of each of its sequences, and how each ended."""
        self.e2e.observe(now - arrival)
        self.n.observe(len(generated))
        self.prompt_tokens.observe(prompt_tokens)
        self.asked_tokens.observe(max_tokens)
        self.max_tokens.observe(max(generated, default=0))
        for count in generated:
            self.generation_tokens.observe(count)
        for reason in reasons:
            self.finished["error" if reason == "failed" else reason] += 1
        if scheduled is None:
            return
        self.queue.observe(scheduled - arrival)
        if first_token is None or last_token is None:
            return
        self.prefill.observe(first_token - scheduled)
        self.decode.observe(last_token - first_token)
        self.inference.observe(last_token - scheduled)
        longest = max(generated, default=0)
        if longest > 1:
            self.tpot.observe((last_token - first_token) / (longest - 1))

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        lines: list[str] = []
        for name, help_, histogram in self._histograms():
            lines += (f"# HELP {name} {help_}", f"# TYPE {name} histogram", *histogram.lines(name, self._labels))
        for name, help_, value in self._gauges():
            lines += (f"# HELP {name} {help_}", f"# TYPE {name} gauge", f"{name}{{{self._labels}}} {_number(value)}")
        for name, help_, value in self._counters():
            lines += (f"# HELP {name} {help_}", f"# TYPE {name} counter", f"{name}{{{self._labels}}} {_number(value)}")
        name = "vllm:request_success_total"
        lines += (f"# HELP {name} Answers that ended, by reason.", f"# TYPE {name} counter")
        for reason, count in self.finished.items():
            lines.append(f'{name}{{{self._labels},finished_reason="{reason}"}} {count}')
        return "\n".join(lines) + "\n"

    def _histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        for name, help_, histogram in (
            ("time_to_first_token_seconds", "From the arrival of a request to its first token.", self.ttft),
            ("inter_token_latency_seconds", "Between two tokens of an answer.", self.itl),
            ("request_time_per_output_token_seconds", "Mean time of a token after the first, by request.", self.tpot),
            ("e2e_request_latency_seconds", "From the arrival of a request to its end.", self.e2e),
            ("request_queue_time_seconds", "From the arrival of a request to its first step.", self.queue),
            ("request_inference_time_seconds", "From the first step of a request to its last token.", self.inference),
            ("request_prefill_time_seconds", "From the first step of a request to its first token.", self.prefill),
            ("request_decode_time_seconds", "From the first token of a request to its last.", self.decode),
            ("request_prompt_tokens", "Tokens of prompts.", self.prompt_tokens),
            ("request_generation_tokens", "Tokens of answers.", self.generation_tokens),
            ("request_max_num_generation_tokens", "Tokens of the longest answer of a request.", self.max_tokens),
            ("request_params_max_tokens", "Tokens that requests allow at most.", self.asked_tokens),
            ("request_params_n", "Answers that requests ask for.", self.n),
            ("iteration_tokens_total", "Tokens that a step of the engine computes.", self.iteration),
        ):
            yield f"vllm:{name}", help_, histogram

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        now = self._snapshot()
        for name, help_, key in (
            ("num_requests_running", "Sequences that run.", "running"),
            ("num_requests_waiting", "Sequences that wait for a slot.", "waiting"),
            ("kv_cache_usage_perc", "The share of the KV cache that is in use; 1 is all of it.", "kv_cache_usage"),
        ):
            yield f"vllm:{name}", help_, now.get(key, 0)

    def _counters(self) -> Iterator[tuple[str, str, float]]:
        now = self._snapshot()
        for name, help_, key in (
            ("prompt_tokens_total", "Tokens of prompts that were taken.", "prompt_tokens"),
            ("generation_tokens_total", "Tokens that were generated.", "generation_tokens"),
            ("prompt_tokens_cached_total", "Tokens of prompts that the prefix cache held.", "prefix_cache_hits"),
            ("prefix_cache_queries_total", "Tokens that were looked up in the prefix cache.", "prefix_cache_queries"),
            ("prefix_cache_hits_total", "Tokens that were found there.", "prefix_cache_hits"),
            ("num_preemptions_total", "Sequences that gave up their blocks and began again.", "preemptions"),
        ):
            yield f"vllm:{name}", help_, now.get(key, 0)
        for name, help_, value in (
            ("requests_refused_total", "Requests that found the queue full.", self.refused),
            ("engine_steps_total", "Steps of the engine.", now.get("steps", 0)),
            ("embedded_tokens_total", "Tokens that were embedded.", now.get("embedded_tokens", 0)),
        ):
            yield f"anyformer:{name}", help_, value


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(float(value)) if isinstance(value, float) else str(value)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
