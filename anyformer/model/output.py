"""What a forward pass gives back."""

from dataclasses import dataclass, field

from torch import Tensor

from anyformer.parts.kv_cache import KVCache


@dataclass
class Output:
    """Results of `model(...)`."""

    hidden: Tensor
    """What the head reads: states (B,T,D), or one vector for each row (B,D) before a head that pools."""
    logits: Tensor | None = None
    """The head's answer, (B,T,V) for tokens; None without a head."""
    loss: Tensor | None = None
    """What is minimised, a mean over counted labels; None without labels."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """The terms of the loss, before weighting."""
    label_count: Tensor | None = None
    """How many labels counted."""
    cache: KVCache | None = None
    encoder_states: Tensor | None = None
    """The encoder's states in an encoder-decoder, to be passed back as `encoder_states=`."""
