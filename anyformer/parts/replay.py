"""What a piece of work decided and drew, kept so that it can be computed a second time with the same outcome.

A reversible stack and a chunked feed-forward compute some of their work twice. Inputs that were recomputed differ in
the last digit, which is enough to move a token to another bucket, so decisions are kept. Random numbers are too many
to keep: the state of the generators is.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")


class ReplayLog:
    """Decisions in the order in which they were made. A new one records; what `replay` gives answers from the record.

    A decision holds no gradient and draws nothing from torch's own generators: it is made once.
    """

    def __init__(self) -> None:
        self.made: list[Any] = []
        self._answers: Iterator[Any] | None = None

    def decide(self, make: Callable[[], Made]) -> Made:
        """What `make` gives, or gave when this was recorded."""
        if self._answers is None:
            answer = make()
            self.made.append(answer)
            return answer
        for answer in self._answers:
            return answer
        raise RuntimeError(
            f"a pass that is replayed asks for more than the {len(self.made)} decisions it made: a mixer must ask for "
            "as many each time, whatever it reads"
        )

    def replay(self) -> Self:
        """The same decisions once more, from the first."""
        again = type(self)()
        again.made, again._answers = self.made, iter(self.made)
        return again


class RngState:
    """The random numbers of a piece of work: `same()` records them on its first use and gives them again after that.

    All threads share torch's generators. Pieces that draw take turns, and one whose numbers got mixed up with those of
    another thread is refused: its gradient would belong to another dropout mask.
    """

    turn = threading.RLock()

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.begin: list[Tensor] | None = None
        self.end: list[Tensor] = []

    @contextmanager
    def same(self) -> Iterator[None]:
        """Around the work, each time that it is done."""
        with self.turn:
            now = states(self.device)
            if self.begin is None:
                self.begin = now
                yield
                self.end = states(self.device)
                return
            restore(self.device, self.begin)
            try:
                yield
                end = states(self.device)
            finally:
                restore(self.device, now)
            if not all(map(torch.equal, end, self.end)):
                raise RuntimeError(
                    "dropout could not be replayed, because another thread drew random numbers at the same time: "
                    "train a reversible stack or a chunked feed-forward that has dropout in one thread"
                )


def states(device: torch.device) -> list[Tensor]:
    """The state of the generator of the CPU, and of the device's own."""
    found = [torch.get_rng_state()]
    if device.type in ("cuda", "xpu"):
        found.append(torch.get_device_module(device).get_rng_state(device))
    elif device.type == "mps":
        found.append(torch.mps.get_rng_state())
    return found


def restore(device: torch.device, kept: list[Tensor]) -> None:
    """Set the generators back to where they were."""
    torch.set_rng_state(kept[0])
    if device.type in ("cuda", "xpu"):
        torch.get_device_module(device).set_rng_state(kept[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(kept[1])
