"""The lm-evaluation-harness on one folder: over HTTP (its `local-completions`), and through our adapter in process."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.families.io import spec_of
from tests.evals.lm_eval_peer import write_tasks
from tests.serve.running import Running, config_of, serving_engine

SCORED, SAID = ("local_choice", "local_rolling"), ("local_answer",)
"""Tasks that ask for log-likelihoods, and one that asks for answers."""

MANY = 8
"""Requests at once."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the harness found."""

    figures: dict[str, float]
    """Every metric of every task."""
    nats: list[float]
    """Every log-likelihood."""
    greedy: list[bool]
    answers: list[str]

    def furthest(self, other: "Result") -> float:
        """The largest difference of log-likelihoods."""
        return max(abs(a - b) for a, b in zip(self.nats, other.nats, strict=True))


def in_process(folder: Path, tasks: Path, *, alone: bool = False, prefix: int | None = None) -> Result:
    """By our own adapter; `alone`: each text is read by itself."""
    from anyformer.evals.lm_eval import lm_eval_model

    named = {"batch_tokens": 1 if alone else None, "prefix_token_id": prefix}
    model = lm_eval_model(str(folder), dtype="float32", device="cpu", **named)
    return evaluate([(model, SCORED), (model, SAID)], tasks)


def over_http(
    running: Running, tasks: Path, *, context: int, concurrent: int, encoder: Any = None, **how: Any
) -> Result:
    """By the harness's own client. `context` is what the model is made for; `encoder` makes the ids of texts instead of the
    server's tokenizer, which puts nothing before a text.
    """
    from lm_eval.api.registry import get_model

    arguments: dict[str, Any] = {
        "model": running.client.facts.name, "base_url": f"{running.base_url}/v1/completions", "num_concurrent": concurrent,
        "max_retries": 1, "tokenizer_backend": "remote", **how,
    }  # fmt: skip
    make = get_model("local-completions")
    # A window of ours ends with a token that is only predicted; over HTTP the model reads that one too, if it has room.
    room = running.client.facts.max_model_len
    scores, says = make(max_length=room + 1, **arguments), make(max_length=context + 1, **arguments)
    if encoder is not None:
        for each in (scores, says):
            each._encode_pair = encoder.split
            each.tok_encode = lambda text, **_: (
                encoder.ids(text) if isinstance(text, str) else [*map(encoder.ids, text)]
            )
    return evaluate([(scores, SCORED), (says, SAID)], tasks)


def evaluate(asked: Sequence[tuple[Any, Sequence[str]]], tasks: Path) -> Result:
    """Models on tasks, and all figures of those."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    figures, said = dict[str, float](), dict[str, list[Any]]()
    for model, names in asked:
        found: Any = lm_eval.simple_evaluate(model=model, tasks=list(names), task_manager=manager, bootstrap_iters=0)
        for task in names:
            rows = sorted(found["samples"][task], key=lambda row: row["doc_id"])
            said[task] = [answer for row in rows for each in row["resps"] for answer in each]
            numbers = {name: value for name, value in found["results"][task].items() if isinstance(value, float)}
            figures |= {f"{task} {name}": value for name, value in numbers.items() if "stderr" not in name}
    return Result(
        figures=figures, nats=[*(float(each[0]) for each in said["local_choice"]), *map(float, said["local_rolling"])],
        greedy=[str(each[1]) == "True" for each in said["local_choice"]], answers=said["local_answer"],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One folder, asked in every way."""

    ours: Result
    """In process."""
    alone: Result
    """In process, each text by itself."""
    single: Result
    """Over HTTP, one request at a time."""
    many: Result
    """Over HTTP, many at once."""


def compare(
    folder: Path,
    place: Path,
    *,
    batch_invariant: bool,
    beyond: int = 0,
    own_ids: bool = False,
    prefix: int | None = None,
) -> Compared:
    """All of it, in fp32. `beyond` are tokens that the server takes more than the model is made for; `own_ids`: both read
    the ids of our adapter; `prefix` is read where there is no text before, instead of what the tokenizer names.
    """
    from anyformer.evals.lm_eval import open_model

    tasks = write_tasks(place / "tasks")
    ours, alone = (in_process(folder, tasks, alone=each, prefix=prefix) for each in (False, True))
    encoder, context = open_model(str(folder), prefix_token_id=prefix), spec_of(folder).context
    room = context + beyond if beyond else None
    config = config_of(model=str(folder), dtype="float32", batch_invariant=batch_invariant, max_model_len=room)
    # The client takes an id of 0 for none.
    how = {"custom_prefix_token_id": encoder.prefix, "encoder": encoder if own_ids else None}
    with serving_engine(config) as running:
        single, many = (over_http(running, tasks, context=context, concurrent=n, **how) for n in (1, MANY))
        running.engine_idle()
    return Compared(ours=ours, alone=alone, single=single, many=many)
