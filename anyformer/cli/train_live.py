"""What is seen of a run while it goes on: a live line on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import collections
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anyformer.cli.terminal import CONTROLS, console, errors, live_bar
from anyformer.specs import number_format
from anyformer.train.report.page import duration
from anyformer.train.trainer import Evaluated, Event, Resumed, Sampled, Saved, Step

if TYPE_CHECKING:
    from anyformer.train.dry_run import Stretch
    from anyformer.train.trainer import Trainer

WINDOW = 32
"""Steps over which speed is measured."""
KEPT = 0.9
"""Of the shown loss, from step to step."""


class Live:
    """Shows events as they come. A quiet one shows a line on standard error if that is a terminal, and else nothing."""

    def __init__(self, made: Trainer, stretches: Sequence[Stretch], peak: float | None, *, quiet: bool) -> None:
        self.made, self.stretches, self.peak, self.total = made, stretches, peak, made.total
        self.screen = errors() if quiet else console()
        self.silent = quiet and not (self.screen.is_terminal and made.components.ranks.is_rank0)
        self.lively = self.screen.is_terminal and not self.silent
        self.bar: Any = None
        self.evaluating: Any = None
        self.loss: float | None = None
        self.tenths = 0
        self.spent: collections.deque[tuple[int, int, float]] = collections.deque(maxlen=WINDOW)

    def __enter__(self) -> Live:
        if self.lively:
            self.bar = live_bar(self.screen)
            self.bar.start()
            self.task = self.bar.add_task("getting ready", total=self.total, left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self) -> None:
        made = self.made.components
        part, params = made.index.parts[made.config.data.train], number_format.params(made.spec.count().params)
        size = f", {number_format.data(part.bytes)} of text" if part.bytes else ""
        self.say(f"model  {params} parameters, {made.spec.topology}, {made.objective.kind}")
        self.say(f"data   {made.config.data.folder}: {part.examples:,} examples{size}")
        for each in self.stretches:
            waste = f", {each.waste:.1%} padding" if each.waste else ""
            self.say(f"stage  {each.steps:,} steps, {each.words}, {each.epochs:.3g} epochs{waste}")

    def show(self, event: Event) -> None:
        match event:
            case Step():
                self._step(event)
            case Evaluated():
                figures = [f"step {event.step:,}", f"held-out loss {event.loss:.4f}"]
                if event.bits_per_byte is not None:
                    figures.append(f"{event.bits_per_byte:.4f} bits per byte")
                figures += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in event.figures.items()]
                self.say("  ".join([*figures, *(["(all held-out rows)"] if event.final else [])]))
            case Sampled() if event.text.strip():
                self.say(f"--- step {event.step:,} says:\n{event.text.translate(CONTROLS)}\n---")
            case Resumed():
                if event.step < self.total:
                    self.say(f"goes on after step {event.step:,}")
                if self.bar is not None:
                    self.bar.update(self.task, completed=event.step)
            case Saved() if self.bar is not None:
                self.bar.refresh()

    def say(self, text: str) -> None:
        """A line, above the live one."""
        if not self.silent:
            encoding = (sys.stderr if self.screen.stderr else sys.stdout).encoding or "utf-8"
            self.screen.print(text.encode(encoding, "replace").decode(encoding), markup=False, soft_wrap=True)

    def _step(self, event: Step) -> None:
        if not event.skipped:
            self.loss = event.loss if self.loss is None else KEPT * self.loss + (1 - KEPT) * event.loss
        self.spent.append((event.step, event.tokens, event.seconds))
        if self.bar is not None:
            shown = self.figures(event)
            # As many pieces as leave room for a bar.
            while len(shown) > 1 and len("  ".join(shown)) > self.screen.width - 30:
                shown.pop()
            line = "  ".join(shown)
            self.bar.update(self.task, completed=event.step, description=line, left=self.left(event))
        tenths = event.step * 10 // self.total
        if not self.lively and tenths > self.tenths:
            self.say("  ".join([*self.figures(event), self.left(event)]))
        self.tenths = tenths

    def on_eval_rows(self, done: int, total: int) -> None:
        """Held-out rows are measured on; the bar of the run waits below."""
        if self.bar is None:
            return
        if self.evaluating is None:
            self.evaluating = self.bar.add_task("held-out rows", total=total, left="")
        self.bar.update(self.evaluating, completed=done, left=f"{done:,}/{total:,}")
        if done >= total:
            self.bar.remove_task(self.evaluating)
            self.evaluating = None

    def speed(self) -> tuple[float, float] | None:
        """Tokens and steps of each second lately."""
        if len(self.spent) < 2:
            return None
        (a, before, began), (b, after, now) = self.spent[0], self.spent[-1]
        return None if now <= began else ((after - before) / (now - began), (b - a) / (now - began))

    def figures(self, event: Step) -> list[str]:
        """The line in pieces, the most wanted first."""
        loss = event.loss if self.loss is None else self.loss
        bits, speed = self.made.components.bits_per_byte(loss), self.speed()
        parts = [f"step {event.step:,}/{self.total:,}", f"loss {loss:.3f}"]
        parts += [] if bits is None else [f"{bits:.3f} bits/B"]
        parts += [] if speed is None else [f"{number_format.short(speed[0])} tok/s"]
        parts += [f"lr x {event.rate:.2f}", f"grad {event.gradient_norm:.2f}"]
        if speed is not None and self.peak:
            parts.append(f"MFU {self.stretches[event.stage].flops_per_token * speed[0] / self.peak:.1%}")
        return [*parts, number_format.data(event.memory)]

    def left(self, event: Step) -> str:
        """Time to the end, at the speed of lately; stages to come take as much longer as they compute more."""
        speed = self.speed()
        if speed is None:
            return ""
        now = self.stretches[event.stage]
        rest = (now.first + now.steps - event.step) * float(now.flops)
        rest += sum(float(each.flops) * each.steps for each in self.stretches[event.stage + 1 :])
        return f"{duration(rest / now.flops / speed[1])} left"
