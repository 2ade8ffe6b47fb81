"""The building blocks alone, called on plain tensors: each is around, or is, the module that models are made of."""

from anyformer.nn.attention import Attention, Block
from anyformer.nn.functional import cross_entropy, linear_cross_entropy
from anyformer.nn.layers import Embedding, FeedForward, LayerNorm, Linear, Norm, PositionEmbedding, RMSNorm

__all__ = [
    "Attention", "Block", "Embedding", "FeedForward", "LayerNorm", "Linear", "Norm", "PositionEmbedding", "RMSNorm",
    "cross_entropy", "linear_cross_entropy",
]  # fmt: skip
