"""What an engine has done so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stats:
    """Counts since an engine was made."""

    seconds: float = 0.0
    """Spent in steps."""
    steps: int = 0
    passes: int = 0
    """Runs of the model: a step has one for all rows that go on by one token, and some for prompts."""
    new_tokens: int = 0
    """Chosen tokens."""
    decode_tokens: int = 0
    """Tokens that were read one at a time."""
    prefill_tokens: int = 0
    """Tokens of prompts that were read, again after a preemption too."""
    source_tokens: int = 0
    """Tokens that an encoder read."""
    cached_tokens: int = 0
    """Tokens that were not read, as blocks held them already."""
    forked_tokens: int = 0
    """Tokens that further answers of a request did not read, as the first one had."""
    padding_tokens: int = 0
    """What was read beside, to make the rows of a pass equally long."""
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    """Of the proposed ones."""
    preemptions: int = 0
    retries: int = 0
    """Requests that begin again alone, as a pass with others failed."""
    finished: int = 0
    """Answers that ended, whatever the reason."""

    @property
    def tokens_per_second(self) -> float:
        """New tokens for each second in steps."""
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def waste(self) -> float:
        """Padding as a share of all that passes read."""
        read = self.decode_tokens + self.prefill_tokens + self.padding_tokens
        return self.padding_tokens / read if read else 0.0
