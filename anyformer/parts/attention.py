"""THE attention: project, norm, rotate, cache, mix, project back. No branch on the variant: leaves and slots decide."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.kernels.choose import Terms
from anyformer.parts.held import Held
from anyformer.parts.linear import Linear
from anyformer.parts.norm import HeadsNorm
from anyformer.parts.scene import Scene, Turn
from anyformer.specs.axes import Dims, Position
from anyformer.specs.nodes import Attention as AttentionSpec
from anyformer.specs.nodes import Temperature
from anyformer.specs.scale import evaluate

NOTHING: dict[str, Tensor] = {}


class Attention(nn.Module):
    """Self-attention, or cross-attention if it is called with a memory."""

    def __init__(self, spec: AttentionSpec, dims: Dims, position: Position, *, layer: int, cross: bool = False) -> None:
        super().__init__()
        self.spec, self.dims, self.layer, self.cross = spec, dims, layer, cross
        self.leaf = position
        self.turns, self.turns_values = position.overrides("rotate"), position.rotates_values()
        self.biases, self.reads_probs = position.biases(), position.reads_probs()
        self.scale = evaluate(spec.scale, dims.names())
        queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        self.q = Linear(dims.width, queries, bias="q" in spec.bias)
        self.k = Linear(dims.width, keys, bias="k" in spec.bias)
        self.v = Linear(dims.width, keys, bias="v" in spec.bias)
        self.o = Linear(queries, dims.width, bias="o" in spec.bias)
        self.q_norm = HeadsNorm(spec.qk_norm, dims.heads, dims.head_dim) if spec.qk_norm else None
        self.k_norm = HeadsNorm(spec.qk_norm, dims.kv_heads, dims.head_dim) if spec.qk_norm else None
        self.v_norm = HeadsNorm(spec.v_norm, dims.kv_heads, dims.head_dim) if spec.v_norm else None
        mixer = spec.mixer.weights(dims.heads)
        self.mixer = Held(spec.mixer, mixer) if mixer else None
        self.position = Held(position, position.weights(dims), position.constants(dims)) if position.per_layer else None

    def forward(self, x_BTD: Tensor, scene: Scene, memory_BSD: Tensor | None = None) -> Tensor:
        # Past nn.Module.__getattr__: a token of a small model takes microseconds, and look-ups were a thirtieth of them.
        maps: Any = self._modules
        q_BTHK = self.heads_of(x_BTD, maps["q"], self.q_norm, scene.q_turn)
        if self.spec.temperature is not None:
            q_BTHK = q_BTHK * temperature(self.spec.temperature, scene.where.q_pos_BT, q_BTHK)
        if self.cross:
            k_BSGK, v_BSGK = self.remember(memory_BSD, scene)
        else:
            k_BSGK, v_BSGK = self.keys_values(x_BTD, scene)
            if scene.cache is not None:
                k_BSGK, v_BSGK, _, _ = scene.cache.extend(self.layer, k_BSGK, v_BSGK)
        out_BTHK = self.mix(q_BTHK, k_BSGK, v_BSGK, scene)
        return maps["o"](out_BTHK.flatten(2))

    def heads_of(self, x_BTD: Tensor, project: Linear, norm: HeadsNorm | None, turn: Turn | None) -> Tensor:
        """Projected, clipped, split into heads, and normed and rotated in the spec's order."""
        y = project(x_BTD)
        if self.spec.clip_qkv is not None:
            y = y.clamp(-self.spec.clip_qkv, self.spec.clip_qkv)
        batch, tokens, _ = y.shape
        y = y.view(batch, tokens, -1, self.dims.head_dim)
        if norm is not None and not norm.last:
            y = norm(y)
        if turn is not None and self.turns:
            angles = turn.angles
            if self.position is not None:
                angles = self.leaf.angles(self.position.tensors(), turn.pos_BT, turn.length_BT, y)
            y = self.leaf.rotate(y, angles)
        return norm(y) if norm is not None and norm.last else y

    def keys_values(self, x_BSD: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        """Keys and values as they are cached."""
        maps: Any = self._modules
        k_BSGK = self.heads_of(x_BSD, maps["k"], self.k_norm, scene.k_turn)
        v_BSGK = self.heads_of(x_BSD, maps["v"], self.v_norm, scene.k_turn if self.turns_values else None)
        return k_BSGK, v_BSGK

    def remember(self, memory_BSD: Tensor | None, scene: Scene) -> tuple[Tensor, ...]:
        """Keys and values of the encoder's states, computed once for a cache."""
        cache = scene.cache
        if memory_BSD is None:
            assert cache is not None, "the model gives either a memory or a cache that holds one"
            return cache.cross[self.layer]
        kept = self.keys_values(memory_BSD, scene)
        if cache is not None:
            cache.cross[self.layer] = kept
        return kept

    def mix(self, q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, scene: Scene) -> Tensor:
        """Weighted values of every head."""
        bias = scene.bias
        values: Any = None
        if self.biases or self.reads_probs:
            own = self.position.tensors() if self.position is not None else scene.own or {}
            if bias is None and self.biases:
                bias = self.leaf.bias(own, q_BTHK, k_BSGK, scene.where, self.scale)
            if self.reads_probs:
                values = functools.partial(self.leaf.values, own, where=scene.where)
        terms = Terms(
            self.scale, self.spec.mixer, NOTHING if self.mixer is None else self.mixer.tensors(), scene.causal,
            scene.mask, bias, self.spec.softcap, self.spec.dropout if self.training else 0.0, values,
        )  # fmt: skip
        return scene.kernel.run(q_BTHK, k_BSGK, v_BSGK, terms)

    def extra_repr(self) -> str:
        d = self.dims
        kind = "MHA" if d.kv_heads == d.heads else "MQA" if d.kv_heads == 1 else "GQA"
        words = [kind, f"{d.heads} heads of {d.head_dim}"]
        if d.kv_heads != d.heads:
            words.append(f"{d.kv_heads} kv")
        words.append("cross" if self.cross else str(self.spec.pattern or ("causal" if d.causal else "full")))
        words.append(self.leaf.kind)
        return ", ".join(words)


def temperature(spec: Temperature, q_pos_BT: Tensor, like: Tensor) -> Tensor:
    """The factor on queries that grows with their position, (B,T,1,1)."""
    exact = torch.promote_types(like.dtype, torch.float32)
    place = (q_pos_BT + 1).to(exact)
    if spec.kind == "log1p":
        factor = 1 + spec.strength * torch.log1p(torch.floor(place / spec.length))
    else:
        factor = (place.log() / math.log(spec.length)).clamp(min=1.0)
    return factor[:, :, None, None].to(like.dtype)
