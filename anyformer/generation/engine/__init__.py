"""Continuous batching: scheduler, block manager, model runner, sampler, engine."""

from anyformer.generation.engine.engine import Engine
from anyformer.generation.engine.request import Request, RequestOutput, Sequence

__all__ = ["Engine", "Request", "RequestOutput", "Sequence"]
