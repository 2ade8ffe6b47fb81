"""How far a study is, in a form that people and programs can be shown, and the time that all its parts took."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anyformer.files import replace_file
from anyformer.lab.engine.job import Job
from anyformer.lab.engine.queue import JobEvent

CLOCK = "clock.json"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the study begins or goes on: what is done, and how much of it."""

    what: str
    done: float = 0.0
    of: float = 0.0
    jobs_done: int = 0
    jobs: int = 0
    seconds_left: float | None = None
    news: str = ""
    """Something that people should see, such as a run that failed."""


Watch = Callable[[Stage], None]


class Progress:
    """How far a study is, by the steps of all its runs, and how long the rest will take."""

    def __init__(self, jobs: Sequence[Job], left: Sequence[Job], what: str, watch: Watch) -> None:
        self.what, self.watch, self.jobs = what, watch, len(jobs)
        self.finished = len(jobs) - len(left)
        self.sizes = {job.id: sum(stage["steps"] for stage in job.config["stages"]) for job in left}
        self.done = dict.fromkeys(self.sizes, 0.0)
        self.began = time.monotonic()
        self._show()

    def tell(self, event: JobEvent) -> None:
        size, news = self.sizes[event.job.id], ""
        if event.event == "progress":
            self.done[event.job.id] = size * event.done / max(event.of, 1)
        elif event.event in ("done", "failed"):
            self.done[event.job.id], self.finished = size, self.finished + 1
            status = event.value["status"] if event.event == "done" else "failed"
            why = (event.value["reason"] if event.event == "done" else event.error).split("\n")[0]
            news = "" if status == "finished" else f"{event.job.variant}, seed {event.job.seed}: {status}: {why}"
        self._show(news)

    def _show(self, news: str = "") -> None:
        done, of = sum(self.done.values()), float(sum(self.sizes.values()))
        spent = time.monotonic() - self.began
        left = spent * (of - done) / done if done > 0 else None
        self.watch(Stage(
            what=self.what, done=done, of=of, jobs_done=self.finished, jobs=self.jobs, seconds_left=left, news=news,
        ))  # fmt: skip


def seconds_of(folder: Path) -> float:
    """The seconds that a study's runs took so far, over all its parts."""
    try:
        return float(json.loads((folder / CLOCK).read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0.0


@contextmanager
def clock(folders: Sequence[Path]) -> Iterator[Callable[[], None]]:
    """Count the time of a part of studies that share a queue. What it gives notes the time so far, in case of a kill."""
    began = time.monotonic()
    before = [seconds_of(folder) for folder in folders]

    def note() -> None:
        spent = (time.monotonic() - began) / len(folders)
        for folder, seconds in zip(folders, before, strict=True):
            text = json.dumps({"seconds": seconds + spent})
            replace_file(folder / CLOCK, lambda beside, text=text: beside.write_text(text, encoding="utf-8"))

    try:
        yield note
    finally:
        note()
