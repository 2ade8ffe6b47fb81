"""Small models for tests of the training step."""

import torch

import anyformer as af

BASE = {
    "vocab": 48, "width": 16, "depth": 3, "context": 64, "attention": {"heads": 4, "kv_heads": 2},
    "position": {"kind": "rope"}, "ffn": {"kind": "swiglu"}, "head": {"kind": "lm", "tied": True},
}  # fmt: skip
IDS = torch.randint(0, 48, (2, 24), generator=torch.Generator().manual_seed(3))
SEGMENTS = torch.tensor([[0] * 9 + [1] * 15, [0] * 20 + [1] * 4])


def heads(**fields):
    return {"attention": {"heads": 4, **fields}}


VARIANTS = {
    "plain": {},
    "dropout": heads(dropout=0.2) | {"block": {"dropout": 0.2}, "ffn": {"kind": "swiglu", "dropout": 0.1}},
    "window": heads(pattern="causal & window(6)"),
    "alibi": {"position": {"kind": "alibi"}},
    "t5": {"position": {"kind": "t5"}},
    "shaw": {"position": {"kind": "shaw"}},
    "xl": {"position": {"kind": "xl"}},
    "disentangled": {"position": {"kind": "disentangled", "buckets": 8, "max_distance": 20}},
    "shared layers": {"layers": {"shared": "all"}},
    "softcap": heads(softcap=3.0),
    "parallel": {"block": {"wiring": "parallel"}},
    "chunk": {"ffn": {"kind": "swiglu", "chunk": 16}},
    "linear": heads(mixer={"kind": "linear"}),
}
"""What goes its own way through a block."""


def small(changes=None, **more):
    """A model in fp64, the same in every run, in training."""
    torch.manual_seed(0)
    return af.build(af.spec(BASE | (changes or {}) | more)).double().train()


def gradients(model, **inputs):
    """The loss and the gradient of each parameter; what is dropped is the same each time."""
    torch.manual_seed(1)
    loss = model(IDS, labels=IDS, **inputs).loss
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return loss.detach(), [g for g in found if g is not None]
