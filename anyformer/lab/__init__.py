"""Studies: variants at matched cost, several seeds, statistics, scaling laws. Its public names are loaded when first used.

results = af.lab.run("studies/ffn.toml", "runs/ffn")
sentences = af.lab.summarize(results)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyformer.lab.engine.ray_engine import RayEngine
    from anyformer.lab.experiment import Experiment
    from anyformer.lab.results import Results
    from anyformer.lab.run_study import finish, read, run
    from anyformer.lab.scaling.ladder import sizes, tokens_for
    from anyformer.lab.scaling.laws import Point, fit, still_wins
    from anyformer.lab.scaling.lr_transfer import TransferPoint, transfer
    from anyformer.lab.statistics.best import best_of
    from anyformer.lab.statistics.comparison import compare, judge
    from anyformer.lab.study import Study

__all__ = [
    "Experiment", "Point", "RayEngine", "Results", "Study", "TransferPoint", "best_of", "compare", "finish", "fit", "judge",
    "read", "run", "sizes", "still_wins", "summarize", "tokens_for", "transfer",
]  # fmt: skip


def summarize(results: "Results", metric: str | None = None) -> Sequence[str]:
    """What a study says about its variants, sentence by sentence, and no more than its data hold."""
    from anyformer.lab.statistics.verdict import verdict

    return verdict(results, metric)


def __getattr__(name: str) -> Any:
    match name:
        case "Study":
            from anyformer.lab import study as module
        case "Results":
            from anyformer.lab import results as module
        case "run" | "read" | "finish":
            from anyformer.lab import run_study as module
        case "Experiment":
            from anyformer.lab import experiment as module
        case "compare" | "judge":
            from anyformer.lab.statistics import comparison as module
        case "best_of":
            from anyformer.lab.statistics import best as module
        case "Point" | "fit" | "still_wins":
            from anyformer.lab.scaling import laws as module
        case "TransferPoint" | "transfer":
            from anyformer.lab.scaling import lr_transfer as module
        case "sizes" | "tokens_for":
            from anyformer.lab.scaling import ladder as module
        case "RayEngine":
            from anyformer.lab.engine import ray_engine as module
        case _:
            raise AttributeError(f"module 'anyformer.lab' has no attribute {name!r}")
    return vars(module)[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
