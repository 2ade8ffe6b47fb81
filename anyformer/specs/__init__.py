"""What an architecture is, as frozen values. Nothing below `anyformer.specs` imports torch."""

from anyformer.specs.axes import Dims, FeedForward, Init, Mixer, Norm, ParamSpec, Position
from anyformer.specs.embed_head import Embed, Head
from anyformer.specs.layer import Attention, BlockWiring, HeadNorm, Layer, Loss, NormPlacement, SpecialIds, Temperature
from anyformer.specs.model import ModelSpec, Stack
from anyformer.specs.overrides import Layers, Overrides
from anyformer.specs.patterns import Pattern

__all__ = [
    "Attention", "BlockWiring", "Dims", "Embed", "FeedForward", "Head", "HeadNorm", "Init", "Layer", "Layers", "Loss",
    "Mixer", "ModelSpec", "Norm", "NormPlacement", "Overrides", "ParamSpec", "Pattern", "Position", "SpecialIds",
    "Stack", "Temperature",
]  # fmt: skip
