"""Answers with so many numbers that to make them on the event loop would keep everybody else waiting."""

from collections.abc import Callable, Sequence
from typing import Any

from anyformer.serve.api.choices import Job, Jobs
from anyformer.serve.errors import bad_request
from anyformer.serve.http.reply import Reply

LARGE = 4096
"""Numbers from which on an answer is made beside the event loop."""
MOST = 2**20
"""Log-probabilities of prompts that one answer tells."""


def prompt_values(job: Job) -> int:
    """Log-probabilities of a prompt that an answer tells."""
    count = job.sampling.params.get("prompt_logprobs")
    return 0 if count is None else len(job.prompt) * (count + 1)


def check_prompts(jobs: Sequence[Job]) -> None:
    """Refuse what would be told of prompts if it is too much: unlike new tokens, those take no time to come."""
    found = sum(prompt_values(job) * len(job.choices) for job in jobs)
    if found > MOST:
        raise bad_request(
            f"logprobs: {found:,} log-probabilities of the prompts; one answer tells {MOST:,} at most: ask for fewer at each "
            "token, or send fewer prompts at once",
            "logprobs",
        )


def values(jobs: Jobs) -> int:
    """Log-probabilities and ids of all tokens that an answer tells."""
    found = 0
    for job in jobs.jobs:
        each = (job.sampling.params.get("logprobs") or 0) + 1
        found += sum(prompt_values(job) + choice.num_tokens * each for choice in job.choices)
    return found


def answer(jobs: Jobs, make: Callable[[], Any]) -> Reply:
    """The reply with what `make` makes."""
    return Reply(make if values(jobs) > LARGE else make())
