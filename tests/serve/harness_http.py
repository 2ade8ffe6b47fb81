"""The lm-evaluation-harness on one folder twice: over HTTP (its `local-completions`), and through our adapter in process."""

import logging
from pathlib import Path
from typing import Any

from tests.evals.lm_eval_peer import Compared, write_tasks
from tests.serve.running import config_of, serving_engine

TASKS = ("local_choice", "local_rolling", "local_answer")


def compare_http(
    folder: Path, place: Path, *, batch_invariant: bool, concurrent: int = 4, backend: str = "remote", add_bos: bool = False, **settings: Any
) -> Compared:  # fmt: skip
    """Both on the local tasks, in fp32 on a CPU unless `settings` of the server say otherwise."""
    import lm_eval

    from anyformer.evals.lm_eval import lm_eval_model

    dtype = settings.setdefault("dtype", "float32")
    ours = lm_eval_model(str(folder), dtype=dtype, device="cpu")
    context = ours.model.room
    tasks = write_tasks(place / "tasks")
    # A window of ours ends with a token that is only predicted; over HTTP the model reads that one too.
    config = config_of(model=str(folder), batch_invariant=batch_invariant, max_model_len=context + 1, **settings)
    with serving_engine(config) as running:
        arguments: dict[str, Any] = {
            "model": folder.name, "base_url": f"{running.base_url}/v1/completions", "tokenizer_backend": backend,
            "num_concurrent": concurrent, "max_retries": 1, "max_length": context + 2, "add_bos_token": add_bos,
        }  # fmt: skip
        if backend == "huggingface":
            arguments["tokenizer"] = str(folder)
        theirs = lm_eval.api.registry.get_model("local-completions")(**arguments)
        both = [evaluate(model, tasks) for model in (theirs, ours)]
        running.engine_idle()
    return compared(*both)


def evaluate(model: Any, tasks: Path) -> dict[str, Any]:
    """The harness's own results."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    return lm_eval.simple_evaluate(model=model, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)


def compared(theirs: dict[str, Any], ours: dict[str, Any]) -> Compared:
    """All figures and answers side by side."""
    figures = {
        f"{task} {name}": (value, ours["results"][task][name])
        for task, row in theirs["results"].items()
        for name, value in row.items()
        if isinstance(value, float) and "stderr" not in name
    }

    def said(found: Any, task: str) -> list[Any]:
        rows = sorted(found["samples"][task], key=lambda row: row["doc_id"])
        return [answer for row in rows for each in row["resps"] for answer in each]

    choice, rolling, answers = ([*zip(said(theirs, task), said(ours, task), strict=True)] for task in TASKS)
    return Compared(
        figures=figures,
        nats=[(float(a[0]), float(b[0])) for a, b in choice] + [(float(a), float(b)) for a, b in rolling],
        greedy=[(str(a[1]) == "True", str(b[1]) == "True") for a, b in choice],
        answers=answers,
    )
