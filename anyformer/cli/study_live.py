"""What is seen of a study while it goes on: a live line on a terminal, a line now and then in a pipe; on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli.terminal import errors, live_bar
from anyformer.train.report.page import duration

if TYPE_CHECKING:
    from anyformer.lab.engine.progress import Stage


class StudyLive:
    """Shows stages as they come. A quiet one shows its line on a terminal, and else nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self.screen = errors()
        self.lively = self.screen.is_terminal
        self.silent = quiet and not self.lively
        self.bar: Any = None
        self.what, self.tenths = "", 0

    def __enter__(self) -> StudyLive:
        if self.lively:
            self.bar = live_bar(self.screen)
            # A study that is asked to plan shows that it does before its first stage is over.
            self.task = self.bar.add_task("planning", total=None, left="")
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, stage: Stage) -> None:
        """A stage begins or goes on."""
        if stage.news:
            self.say(stage.news)
        if self.bar is not None:
            total = stage.of or None
            left = "" if stage.seconds_left is None else f"{duration(stage.seconds_left)} left"
            self.bar.update(self.task, description=_words(stage), completed=stage.done, total=total, left=left)
        elif stage.what != self.what:
            self.what, self.tenths = stage.what, 0
            if not stage.jobs or stage.jobs_done < stage.jobs:
                self.say(_words(stage))
        elif stage.jobs and _tenths(stage) > self.tenths:
            self.tenths = _tenths(stage)
            left = "" if stage.seconds_left is None else f", {duration(stage.seconds_left)} left"
            self.say(f"{_words(stage)}, {stage.done / max(stage.of, 1):.0%}{left}")

    def say(self, text: str) -> None:
        """A line, above the live one."""
        if not self.silent:
            self.screen.print(text, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Make room for what is printed on standard output."""
        if self.bar is None:
            yield
            return
        self.bar.update(self.task, visible=False)
        self.bar.refresh()
        self.bar.stop()
        try:
            yield
        finally:
            self.bar.update(self.task, visible=True)
            self.bar.start()


def _tenths(stage: Stage) -> int:
    """How far it is; the last tenth is over when every run is."""
    if stage.jobs_done == stage.jobs:
        return 10
    return min(9, int(10 * stage.done / stage.of)) if stage.of else 0


def _words(stage: Stage) -> str:
    """What is done, and how many runs are over."""
    return f"{stage.what}: {stage.jobs_done} of {stage.jobs} runs" if stage.jobs else stage.what
