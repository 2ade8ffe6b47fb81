"""Self-attention of few tokens in pages: between the merged product and the scores one kernel norms, turns and stores."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.kernels.few import NormTerms
from anyformer.kernels.few.rotate import rotate_store
from anyformer.parts.attention import Attention, temperature
from anyformer.parts.norm import HeadsNorm
from anyformer.parts.paged import PagedCache
from anyformer.parts.positions.rope import Rope
from anyformer.parts.scene import Scene


def why_not(body: Attention) -> str | None:
    """Why an attention takes the longer way; None: it does not."""
    if body.k is None or body.spec.global_projections or not body.early:
        return "what it keeps is not one key and one value of each token, as they are projected"
    if body.turns and not isinstance(body.leaf, Rope):
        return f"the kernel turns by RoPE, not by {body.leaf.kind!r}"
    if body.turns_values:
        return "the kernel turns no values"
    if body.position is not None and body.turns:
        return "each layer has angles of its own"
    norms = [norm for norm in (body.q_norm, body.k_norm, body.v_norm) if norm is not None]
    if any(norm.whole for norm in norms) or (body.v_norm is not None and body.v_norm.last):
        return "the kernel norms each head"
    if body.q_norm is not None and body.k_norm is not None and body.q_norm.last != body.k_norm.last:
        return "queries and keys are normed at different places"
    return None


class PagedStep:
    """The kernel's arguments that do not change."""

    def __init__(self, body: Attention) -> None:
        self.body = body
        leaf: Any = body.leaf
        norm_last = any(norm is not None and norm.last for norm in (body.q_norm, body.k_norm))
        dims = body.dims
        self.fixed = {
            "heads": dims.heads, "kv_heads": dims.kv_heads, "dim": dims.head_dim, "clip": body.spec.clip_qkv,
            "layout": leaf.layout if body.turns else "half", "norm_last": norm_last,
        }  # fmt: skip

    def __call__(self, y_BTO: Tensor, scene: Scene) -> Tensor:
        """Weighted values (B,T,H,K) of every head, from the merged projection."""
        body, cache = self.body, scene.cache
        if not isinstance(cache, PagedCache) or scene.kernel is None:
            raise TypeError("this is the way of a paged cache and a kernel that reads pages")
        batch, tokens, width = y_BTO.shape
        slot_N, (k_PsGK, v_PsGK), scales = cache.slots(body.layer)
        cos_ND = sin_ND = None
        if body.turns and scene.q_turn is not None:
            cos_ND, sin_ND = (
                part.expand(batch, -1, -1, -1).reshape(batch * tokens, -1) for part in scene.q_turn.angles
            )
        q_NHK = rotate_store(
            y_BTO.view(-1, width), slot_N=slot_N, k_PsGK=k_PsGK, v_PsGK=v_PsGK, scales=(scales[0], scales[1]) if scales else None, cos_ND=cos_ND,
            sin_ND=sin_ND, q_norm=_terms(body.q_norm), k_norm=_terms(body.k_norm), v_norm=_terms(body.v_norm),
            **self.fixed,
        )  # fmt: skip
        q_BTHK = q_NHK.view(batch, tokens, *q_NHK.shape[1:])
        if body.spec.temperature is not None:
            q_BTHK = q_BTHK * temperature(body.spec.temperature, scene.sight.q.pos, q_BTHK)
        return body.mix(q_BTHK, k_PsGK, v_PsGK, scene, scene.sight, scene.kernel, scales)


def _terms(norm: HeadsNorm | None) -> NormTerms | None:
    own: Any = {} if norm is None else norm._parameters
    return None if norm is None else NormTerms(norm.leaf, own)
