"""Samplers: each a small frozen dataclass that turns logits into logits, one after the other in a chain."""

from anyformer.generation.samplers.filters import MinP, Temperature, TopK, TopP, Typical
from anyformer.generation.samplers.guided import Choices
from anyformer.generation.samplers.penalties import FrequencyPenalty, LogitBias, PresencePenalty, RepetitionPenalty
from anyformer.generation.samplers.token_bans import BadWords, First, MinNewTokens, NoRepeatNgram
from anyformer.generation.samplers.token_history import (
    NEVER,
    NO_HISTORY,
    Chain,
    LogitsProcessor,
    TokenHistory,
    apply_chain,
    apply_chains,
)

__all__ = [
    "NEVER",
    "NO_HISTORY",
    "BadWords",
    "Chain",
    "Choices",
    "First",
    "FrequencyPenalty",
    "LogitBias",
    "LogitsProcessor",
    "MinNewTokens",
    "MinP",
    "NoRepeatNgram",
    "PresencePenalty",
    "RepetitionPenalty",
    "Temperature",
    "TokenHistory",
    "TopK",
    "TopP",
    "Typical",
    "apply_chain",
    "apply_chains",
]  # fmt: skip
