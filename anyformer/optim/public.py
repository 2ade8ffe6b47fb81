"""The public names of `anyformer.optim`, gathered where torch is loaded already."""

from anyformer.optim.clip import clip_grad_norm_
from anyformer.optim.grouping import groups
from anyformer.optim.optimizers import AdamW, Muon
from anyformer.optim.schedule import constant, cosine, inverse_sqrt, linear, wsd

__all__ = ["AdamW", "Muon", "clip_grad_norm_", "constant", "cosine", "groups", "inverse_sqrt", "linear", "wsd"]
