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


def in_process(folder: Path, tasks: Path, *, alone: bool = False, dtype: str = "float32") -> Result:
    """By our own adapter; `alone`: each text is read by itself."""
    from anyformer.evals.lm_eval import lm_eval_model

    model = lm_eval_model(str(folder), dtype=dtype, device="cpu", batch_tokens=1 if alone else None)
    return evaluate([(model, SCORED), (model, SAID)], tasks)


def over_http(running: Running, tasks: Path, *, context: int, concurrent: int, backend: str = "remote", tokenizer: Path | None = None, add_bos: bool = False) -> Result:  # fmt: skip
    """By the harness's own client. `context` is what the model is made for."""
    from lm_eval.api.registry import get_model

    arguments: dict[str, Any] = {
        "model": running.client.facts.name, "base_url": f"{running.base_url}/v1/completions", "tokenizer_backend": backend,
        "num_concurrent": concurrent, "max_retries": 1, "add_bos_token": add_bos,
    }  # fmt: skip
    if backend == "huggingface":
        arguments["tokenizer"] = str(tokenizer)
    make = get_model("local-completions")
    # A window of ours ends with a token that is only predicted; over HTTP the model reads that one too, if it has room.
    room = running.client.facts.max_model_len
    scores, says = make(max_length=room + 1, **arguments), make(max_length=context + 1, **arguments)
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


def compare(folder: Path, place: Path, *, batch_invariant: bool, concurrent: int = 8, beyond: int = 0, **how: Any) -> Compared:
    """All of it, in fp32. `beyond` are tokens that the server takes more than the model is made for."""
    tasks = write_tasks(place / "tasks")
    ours, alone = in_process(folder, tasks), in_process(folder, tasks, alone=True)
    context = spec_of(folder).context
    room = context + beyond if beyond else None
    config = config_of(model=str(folder), dtype="float32", batch_invariant=batch_invariant, max_model_len=room)
    with serving_engine(config) as running:
        single, many = (over_http(running, tasks, context=context, concurrent=n, **how) for n in (1, concurrent))
        running.engine_idle()
    return Compared(ours=ours, alone=alone, single=single, many=many)
