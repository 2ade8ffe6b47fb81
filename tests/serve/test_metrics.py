"""Metrics: what Prometheus reads, against a plain count of the same events."""

import asyncio
import math
import re

import pytest

from anyformer.serve.metrics import FIRST, SHORT, Histogram, Metrics, one_two_five
from tests.serve.engines import MENU, PROMPTS, ask, local, outputs

SAMPLE = re.compile(r"^([a-z_]+:[a-z0-9_]+)\{([^{}]*)\} (\S+)$")
DASHBOARDS = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_max_num_generation_tokens", "iteration_tokens_total",
)  # fmt: skip
"""Histograms that vLLM's dashboards ask for."""


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and labels; every one stands after the HELP and TYPE lines of its family."""
    found, families = {}, {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in families
            families[name] = None
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert families[name] is None
            families[name] = kind
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            family = re.sub("_(bucket|sum|count)$", "", name) if name not in families else name
            assert families[family] == ("histogram" if family != name else families[name])
            assert labels.startswith('engine="0",model_name="')
            key = name, labels.split('"', 4)[4].lstrip(",")
            assert key not in found
            found[key] = float(value)
    return found


def test_histogram_counts_values_up_to_each_bound():
    made, values = Histogram(SHORT), [0.0, 0.01, 0.0100001, 0.5, 79.9, 80.0, 81.0, 1e9]
    for value in values:
        made.observe(value)
    lines = list(made.lines("x:y", 'a="b"'))
    for bound, line in zip((*SHORT, math.inf), lines, strict=False):
        le = "+Inf" if bound == math.inf else repr(float(bound))
        assert line == f'x:y_bucket{{a="b",le="{le}"}} {sum(value <= bound for value in values)}'
    assert lines[-2:] == [f'x:y_sum{{a="b"}} {sum(values)!r}', f'x:y_count{{a="b"}} {len(values)}']


@pytest.mark.parametrize(("most", "want"), [(1, (1,)), (7, (1, 2, 5)), (100, (1, 2, 5, 10, 20, 50, 100)), (0, (1,))])
def test_bounds_of_tokens_are_one_two_five(most, want):
    assert one_two_five(most) == want


def test_labels_are_escaped():
    text = Metrics('a"b\\c\nd', 100, dict).text()
    assert 'model_name="a\\"b\\\\c\\nd"' in text
    assert all("\n" not in line for line in text.split("\n"))


def test_metrics_of_a_request_are_its_times_and_tokens():
    made = Metrics("m", 100, lambda: {"running": 3, "waiting": 4, "kv_cache_usage": 0.25, "prompt_tokens": 7})
    made.first_token(0.003)
    made.next_token(0.06, 3)
    made.end(
        arrival=10.0, scheduled=10.5, first_token=11.0, last_token=13.0, now=13.25, prompt_tokens=7, generated=[5, 3],
        reasons=["stop", "length"], max_tokens=9,
    )  # fmt: skip
    made.end(
        arrival=20.0, scheduled=None, first_token=None, last_token=None, now=21.0, prompt_tokens=1, generated=[0],
        reasons=["failed"], max_tokens=9,
    )  # fmt: skip
    found = parsed(made.text())

    def total(name: str) -> tuple[float, float]:
        return found[f"vllm:{name}_sum", ""], found[f"vllm:{name}_count", ""]

    assert total("time_to_first_token_seconds") == (0.003, 1)
    assert total("inter_token_latency_seconds") == (pytest.approx(0.06), 3)
    assert total("e2e_request_latency_seconds") == (4.25, 2)
    assert total("request_queue_time_seconds") == (0.5, 1)
    assert total("request_prefill_time_seconds") == (0.5, 1)
    assert total("request_decode_time_seconds") == (2.0, 1)
    assert total("request_inference_time_seconds") == (2.5, 1)
    assert total("request_time_per_output_token_seconds") == (0.5, 1)
    assert total("request_prompt_tokens") == (8, 2)
    assert total("request_generation_tokens") == (8, 3)
    assert total("request_max_num_generation_tokens") == (5, 2)
    assert found["vllm:request_success_total", 'finished_reason="stop"'] == 1
    assert found["vllm:request_success_total", 'finished_reason="error"'] == 1
    assert found["vllm:num_requests_running", ""] == 3
    assert found["vllm:num_requests_waiting", ""] == 4
    assert found["vllm:kv_cache_usage_perc", ""] == 0.25
    assert found["vllm:prompt_tokens_total", ""] == 7
    assert found["vllm:time_to_first_token_seconds_bucket", f'le="{FIRST[1]}"'] == 1


def test_metrics_of_an_engine_count_what_it_did(model_folder):
    async def scenario():
        async with local(model_folder) as client:
            asked = [ask(client, prompt, **params) for prompt, params in zip(PROMPTS, MENU, strict=True)]
            found = await asyncio.gather(*map(outputs, asked))
            gone = ask(client, [1, 2, 3], max_new_tokens=90, stop=[])
            await anext(gone)
            gone.cancel()
            await outputs(ask(client, [4], max_new_tokens=1))
            return found, parsed(client.metrics.text()), client.snapshot

    found, metrics, snapshot = asyncio.run(scenario())
    tokens = sum(len(output.ids) for each in found for output in each)
    answers = sum(params.get("n", 1) for params in MENU)
    for name in DASHBOARDS:
        assert metrics[f"vllm:{name}_count", ""] > 0
    assert metrics["vllm:time_to_first_token_seconds_count", ""] == len(MENU) + 2
    assert metrics["vllm:e2e_request_latency_seconds_count", ""] == len(MENU) + 2
    assert metrics["vllm:request_success_total", 'finished_reason="abort"'] == 1
    ended = sum(metrics["vllm:request_success_total", f'finished_reason="{each}"'] for each in ("stop", "length"))
    assert ended == answers + 1
    assert metrics["vllm:generation_tokens_total", ""] == snapshot["generation_tokens"] >= tokens + 2
    assert metrics["vllm:prompt_tokens_total", ""] == sum(map(len, PROMPTS)) + 3 + 1
    assert metrics["vllm:num_requests_running", ""] == 0
    # All tokens that steps have computed: prompts, and all but the last of each answer.
    assert metrics["vllm:iteration_tokens_total_sum", ""] > sum(map(len, PROMPTS))
    assert metrics["vllm:iteration_tokens_total_count", ""] == snapshot["steps"]
