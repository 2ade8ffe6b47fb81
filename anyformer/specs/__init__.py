"""What an architecture is, as frozen values. Nothing below `anyformer.specs` imports torch."""

from anyformer.specs.axes import Dims, FeedForward, Init, Mixer, Norm, Position, Weight
from anyformer.specs.ends import Embed, Head
from anyformer.specs.layers import Layers, Overrides
from anyformer.specs.model import ModelSpec, Stack
from anyformer.specs.nodes import Attention, HeadNorm, Layer, Loss, Norms, SpecialIds, Temperature, Wires
from anyformer.specs.patterns import Pattern

__all__ = [
    "Attention", "Dims", "Embed", "FeedForward", "Head", "HeadNorm", "Init", "Layer", "Layers", "Loss", "Mixer",
    "ModelSpec", "Norm", "Norms", "Overrides", "Pattern", "Position", "SpecialIds", "Stack", "Temperature",
    "Weight", "Wires",
]  # fmt: skip
