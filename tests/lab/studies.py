"""Made-up studies."""

from collections.abc import Mapping, Sequence

from anyformer.lab.results import Results, RunResult, Status, VariantResult

Runs = Sequence[float | Status | None] | Mapping[int, float | Status | None]


def variant(name: str, runs: Runs, *, metric: str = "loss", **rest) -> VariantResult:
    """A variant with runs by seed: a loss, None for a run without one, or how it was lost."""
    by_seed = runs if isinstance(runs, Mapping) else dict(enumerate(runs))
    made = [
        RunResult(seed=seed, status=value) if isinstance(value, str)
        else RunResult(seed=seed, status="finished", metrics={metric: value})
        for seed, value in by_seed.items()
    ]  # fmt: skip
    return VariantResult(name=name, runs=made, **rest)


def study(claims=(), *, metric: str = "loss", **runs: Runs) -> Results:
    """A study by the runs of its variants."""
    variants = [variant(name, values, metric=metric) for name, values in runs.items()]
    return Results(title="made up", metric=metric, variants=variants, claims=list(claims))


def speed_study(**speeds: Sequence[float | None]) -> Results:
    """A study of speeds by their rounds."""
    variants = [
        VariantResult(name=name, speeds={"train_tokens_per_second": list(rounds)}) for name, rounds in speeds.items()
    ]
    return Results(title="made up", metric="train_tokens_per_second", variants=variants)
