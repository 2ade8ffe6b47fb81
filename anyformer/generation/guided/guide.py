"""Where one sequence is in its grammar, and which tokens may come next."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import NothingLeftError
from anyformer.generation.guided.compiled import CompiledGrammar, Mask, set_bits


class Guide:
    """Follows the new tokens of a sequence.

    `stop` are the ids that end the sequence: they are allowed where the grammar accepts the text so far, and only there.
    """

    def __init__(self, grammar: CompiledGrammar, stop: tuple[int, ...]) -> None:
        self._grammar, self._stop = grammar, stop
        self._matcher = grammar.matcher()
        self._read: int | None = 0
        """New tokens that the matcher has read; None: nobody knows, as a step was interrupted."""
        self._mask = grammar.first.copy()
        """Which tokens may come next, a bit for each."""
        set_bits(self._mask, stop, on=self._matcher.is_accepting())

    def advance(self, new: Sequence[int]) -> bool:
        """Read all new tokens up to now; whether the text is complete, so that nothing but its end can follow."""
        began, read, self._read = time.thread_time(), self._read, None
        if read is None or read > len(new):
            self._matcher, read = self._grammar.matcher(), 0
        if not self._matcher.consume_tokens(list(new[read:])):
            raise self._grammar.failed(self._matcher)
        accepts = self._matcher.is_accepting()
        self._mask = self._grammar.mask(self._matcher)
        set_bits(self._mask, self._stop, on=False)
        goes_on = bool(self._mask.any())
        if accepts:
            set_bits(self._mask, self._stop, on=True)
        elif not goes_on:
            kind = self._grammar.grammar.kind
            raise NothingLeftError(
                f"guided: {kind}: after {len(new)} tokens none of this vocabulary goes on with a text that it allows"
            )
        took, most = time.thread_time() - began, self._grammar.limits.step_seconds * max(1, len(new) - read)
        if took > most:
            # It would hold up everybody else in every step from here on.
            kind = self._grammar.grammar.kind
            raise NothingLeftError(
                f"guided: {kind}: token {len(new)} took {took:.2g} s of a processor, more than {most:g}; make it simpler"
            )
        self._read = len(new)
        return not goes_on

    def mask(self, new: Sequence[int]) -> Mask:
        """Which tokens may come after the new ones, a bit for each."""
        if self._read != len(new):
            self.advance(new)
        return self._mask

    def fitting(self, proposed: list[int]) -> list[int]:
        """The first of some proposed tokens, as long as the grammar allows them."""
        count = self._matcher.validate_tokens(proposed)
        if self._matcher.is_error():
            # What nobody has chosen yet must not end an answer: the next step begins with another matcher.
            self._read = None
        return proposed[:count]


def unpacked(masks: Sequence[Mask], vocab: int, device: torch.device) -> Tensor:
    """(R,V): which tokens some masks allow."""
    packed_RN = np.stack(masks)
    if device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed_RN, axis=1, count=vocab, bitorder="little").view(np.bool_))
    # An eighth of the bytes travel to a device, which unpacks them faster than the host.
    place_8 = torch.arange(8, dtype=torch.uint8, device=device)
    return (torch.from_numpy(packed_RN).to(device)[..., None] >> place_8 & 1).flatten(1)[:, :vocab] != 0
