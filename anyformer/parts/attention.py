"""THE attention: project, norm, rotate, cache, mix, project back. No branch on the variant: leaves and slots decide."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.attention import run_repeated
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs, Kernel
from anyformer.kernels.precision import no_autocast
from anyformer.kernels.small_gemm import NormTerms
from anyformer.kernels.small_gemm.rope_store import RopeStoreArgs, rope_and_store_kv
from anyformer.parts.attention_metadata import AttentionMetadata, RotaryTables
from anyformer.parts.fused_linear import FusedInputs
from anyformer.parts.leaf_module import LeafModule
from anyformer.parts.linear import Linear
from anyformer.parts.norm import Norm, QKNorm
from anyformer.parts.positions.rope import Rope
from anyformer.specs.axes import Dims, MixerInput, Position, QKPositions
from anyformer.specs.formulas import evaluate
from anyformer.specs.layer import Attention as AttentionSpec
from anyformer.specs.layer import Temperature, mixer_of

NOTHING: dict[str, Tensor] = {}


class Attention(FusedInputs):
    """Self-attention, or cross-attention if it is given what an encoder made.

    Queries, keys and values are one product where that can be (see `parts.fused_linear`), and few tokens whose keys lie
    in pages are then normed, rotated and stored by one kernel.
    """

    reads, back = ("q", "k", "v"), "o"

    def __init__(self, spec: AttentionSpec, dims: Dims, position: Position, *, layer: int, cross: bool = False) -> None:
        super().__init__()
        self.spec, self.dims, self.layer, self.cross = spec, dims, layer, cross
        self.leaf, self.mixing = position, mixer_of(spec, cross=cross)
        self.rotates, self.rotates_values = position.overrides("rotate"), position.rotates_values()
        self.biases, self.reads_probs = position.biases(), position.reads_probs()
        self.projects = position.projects()
        """How many vectors of the position scheme go through the query and the key projection."""
        self.rope_before_cache = not self.mixing.stateful
        """Whether queries and keys are rotated before they are cached; a state takes them as they are."""
        self.scale = evaluate(spec.scale, dims.names())
        queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        shares = self.mixing.shares_keys
        self.q = Linear(dims.width, queries, bias="q" in spec.bias)
        self.k = None if shares else Linear(dims.width, keys, bias="k" in spec.bias)
        self.v = Linear(dims.width, keys, bias="v" in spec.bias)
        self.o = Linear(queries, dims.width, bias="o" in spec.bias)
        self.q_norm = QKNorm(spec.qk_norm, dims.heads, dims.head_dim) if spec.qk_norm else None
        self.k_norm = QKNorm(spec.qk_norm, dims.kv_heads, dims.head_dim) if spec.qk_norm and not shares else None
        self.v_norm = QKNorm(spec.v_norm, dims.kv_heads, dims.head_dim) if spec.v_norm else None
        mixer = self.mixing.weights(dims.heads)
        self.mixer = LeafModule(self.mixing, mixer) if mixer else None
        self.position = (
            LeafModule(position, position.weights(dims), position.constants(dims)) if position.per_layer else None
        )
        self.apart = "queries read another input than keys and values" if cross else None
        self.sizes = (dims.heads, 0 if shares else dims.kv_heads, dims.kv_heads)
        """Heads of queries, keys and values."""
        self.together = spec.qk_norm is None and spec.v_norm is None and not self.rotates_values
        """Whether nothing but a rotation stands between the projections and the heads."""
        norms = [norm for norm in (self.q_norm, self.k_norm, self.v_norm) if norm is not None]
        self.stores = (
            not (shares or cross or self.rotates_values)
            and self.rope_before_cache
            and (not self.rotates or (isinstance(position, Rope) and self.position is None))
            and not any(norm.whole for norm in norms)
            and not (self.v_norm is not None and self.v_norm.last)
        )
        """Whether one kernel norms each head, rotates by RoPE and stores what few tokens project."""

    def forward(
        self,
        x_BTD: Tensor,
        metadata: AttentionMetadata,
        encoder_BSD: Tensor | None = None,
        *,
        norm: Norm | None = None,
        residual_BTD: Tensor | None = None,
        inplace: bool = False,
    ) -> Tensor:
        """What attention makes of `norm(x)`, added to the residual if there is one, which may then be written over."""
        fused = self.fused(x_BTD, norm)
        if fused is None:
            out_BTHK = self.attend(x_BTD if norm is None else norm(x_BTD), metadata, encoder_BSD)
            y_BTD = self._modules["o"](out_BTHK.flatten(2))
            return y_BTD if residual_BTD is None else residual_BTD + y_BTD
        qkv_BTO = fused.project(x_BTD, norm)
        if metadata.pages is not None and self.stores:
            out_BTHK = self.attend_stored(qkv_BTO, metadata)
        else:
            out_BTHK = self.attend_heads(x_BTD, metadata, *self.split(qkv_BTO, metadata))
        return fused.output(out_BTHK, residual_BTD, x_BTD.shape, inplace=inplace)

    def attend(self, x_BTD: Tensor, metadata: AttentionMetadata, encoder_BSD: Tensor | None) -> Tensor:
        """Weighted values (B,T,H,K), each projection by itself."""
        q_rope = metadata.q_rope if self.rope_before_cache else None
        q_BTHK = self.split_heads(self._modules["q"](x_BTD), self.q_norm, q_rope)
        if self.cross:
            k_BSGK, v_BSGK = self.cross_kv(encoder_BSD, metadata)
            q_BTHK = self.tempered(q_BTHK, metadata.mask)
            return self.mix(q_BTHK, k_BSGK, v_BSGK, metadata, metadata.mask, metadata.kernel)
        return self.attend_heads(x_BTD, metadata, q_BTHK, *self.project_kv(x_BTD, metadata))

    def attend_heads(
        self,
        x_BTD: Tensor,
        metadata: AttentionMetadata,
        q_BTHK: Tensor,
        k_BTGK: Tensor | None,
        v_BTGK: Tensor,
        *further: Tensor,
    ) -> Tensor:
        """The same from heads of all three; without keys the queries are their own."""
        if self.spec.temperature is not None:
            q_BTHK = self.tempered(q_BTHK, metadata.mask)
        # Keys that are the queries themselves are those with their temperature.
        k_BTGK = q_BTHK if k_BTGK is None else k_BTGK
        kept: Sequence[Tensor] = further
        if metadata.cache is not None and self.rope_before_cache:
            paged = metadata.pages is not None
            k_BTGK, v_BTGK, *kept = metadata.cache.update(
                self.cached_at(metadata), k_BTGK, v_BTGK, *further, paged=paged
            )
        out_BTHK = self.mix(q_BTHK, k_BTGK, v_BTGK, metadata, metadata.mask, metadata.kernel, kept)
        return out_BTHK if metadata.globals_ is None else self.with_global_rows(x_BTD, out_BTHK, kept, metadata)

    def attend_stored(self, qkv_BTO: Tensor, metadata: AttentionMetadata) -> Tensor:
        """The same where one kernel norms and rotates queries and keys, and stores keys and values in their pages."""
        cache = metadata.cache
        if cache is None or metadata.kernel is None:
            raise TypeError("only a cache in blocks and a kernel that reads them come here")
        batch, tokens, width = qkv_BTO.shape
        slot_N, (k_PsGK, v_PsGK), scales = cache.slot_mapping(self.cached_at(metadata))
        cos_ND = sin_ND = None
        if self.rotates and metadata.q_rope is not None:
            cos_ND, sin_ND = (
                part.expand(batch, -1, -1, -1).reshape(batch * tokens, -1) for part in metadata.q_rope.angles
            )
        norms = self.q_norm, self.k_norm, self.v_norm
        q_norm, k_norm, v_norm = (None if n is None else NormTerms(n.leaf, n._parameters) for n in norms)
        leaf, d = self.leaf, self.dims
        given = RopeStoreArgs(
            qkv_BTO.view(-1, width), slot_N=slot_N, k_PsGK=k_PsGK, v_PsGK=v_PsGK,
            scales=(scales[0], scales[1]) if scales else None, cos_ND=cos_ND, sin_ND=sin_ND,
            q_norm=q_norm, k_norm=k_norm, v_norm=v_norm, norm_last=self.q_norm is not None and self.q_norm.last, clip=self.spec.clip_qkv,
            layout=leaf.layout if isinstance(leaf, Rope) else "half", heads=d.heads, kv_heads=d.kv_heads, dim=d.head_dim,
        )  # fmt: skip
        q_NHK = rope_and_store_kv(given)
        q_BTHK = self.tempered(q_NHK.view(batch, tokens, *q_NHK.shape[1:]), metadata.mask)
        return self.mix(q_BTHK, k_PsGK, v_PsGK, metadata, metadata.mask, metadata.kernel, scales)

    def split(self, qkv_BTO: Tensor, metadata: AttentionMetadata) -> tuple[Tensor, Tensor | None, Tensor]:
        """Queries, keys (None: the queries) and values of one product, rotated in one go if nothing else is done to them."""
        heads, keys, values = self.sizes
        rope = metadata.q_rope if self.rope_before_cache else None
        if not self.together:
            q, k, v = qkv_BTO.split_with_sizes([n * self.dims.head_dim for n in self.sizes], -1)
            v = self.split_heads(v, self.v_norm, metadata.k_rope if self.rotates_values else None)
            k = self.split_heads(k, self.k_norm, rope) if keys else None
            return self.split_heads(q, self.q_norm, rope), k, v
        if self.spec.clip_qkv is not None:
            qkv_BTO = qkv_BTO.clamp(-self.spec.clip_qkv, self.spec.clip_qkv)
        y = qkv_BTO.view(*qkv_BTO.shape[:2], -1, self.dims.head_dim)
        if self.rotates and rope is not None:
            y, v = y.split_with_sizes((heads + keys, values), 2)
            y = self.leaf.rotate(y, rope.angles) if self.position is None else self.apply_rotary(y, rope)
            q, k = y.split_with_sizes((heads, keys), 2)
        else:
            q, k, v = y.split_with_sizes(self.sizes, 2)
        return q, k if keys else None, v

    def tempered(self, q_BTHK: Tensor, mask: AttentionMask) -> Tensor:
        """Queries with the factor that grows with their position, if there is one."""
        spec = self.spec.temperature
        return q_BTHK if spec is None else q_BTHK * temperature(spec, mask.q.pos, q_BTHK)

    def split_heads(self, y: Tensor, norm: QKNorm | None, turn: RotaryTables | None) -> Tensor:
        """What was projected: clipped, split into heads, and normed and rotated in the spec's order."""
        if self.spec.clip_qkv is not None:
            y = y.clamp(-self.spec.clip_qkv, self.spec.clip_qkv)
        batch, tokens, _ = y.shape
        y = y.view(batch, tokens, -1, self.dims.head_dim)
        if norm is not None and not norm.last:
            y = norm(y)
        if turn is not None and self.rotates:
            y = self.apply_rotary(y, turn)
        return norm(y) if norm is not None and norm.last else y

    def apply_rotary(self, y_BTHK: Tensor, turn: RotaryTables) -> Tensor:
        """Rotated by the position scheme."""
        angles = turn.angles
        if self.position is not None:
            angles = self.leaf.angles(self.position.tensors(), turn.pos_BT, turn.length_BT, y_BTHK)
        return self.leaf.rotate(y_BTHK, angles)

    def project_kv(self, x_BSD: Tensor, metadata: AttentionMetadata, prefix: str = "") -> tuple[Any, ...]:
        """Keys (None: the queries) and values as they are cached; `prefix`: of which projections."""
        maps = self._modules
        k_rope = metadata.k_rope if self.rope_before_cache else None
        v_rope = metadata.k_rope if self.rotates_values else None
        shares = self.mixing.shares_keys
        k_BSGK = None if shares else self.split_heads(maps[f"{prefix}k"](x_BSD), self.k_norm, k_rope)
        return k_BSGK, self.split_heads(maps[f"{prefix}v"](x_BSD), self.v_norm, v_rope)

    def with_global_rows(
        self, x_BTD: Tensor, out_BTHK: Tensor, further: Sequence[Tensor], metadata: AttentionMetadata
    ) -> Tensor:
        """Weighted values with the rows of global tokens as their own projections give them."""
        raise TypeError("only an attention with global_projections has global rows")

    def cross_kv(self, encoder_BSD: Tensor | None, metadata: AttentionMetadata) -> tuple[Tensor, ...]:
        """Keys and values of the encoder's states, computed once for a cache."""
        cache = metadata.cache
        if encoder_BSD is None:
            assert cache is not None, "the model gives either a memory or a cache that holds one"
            return cache.cross[self.cached_at(metadata)]
        kept = self.project_kv(encoder_BSD, metadata)
        if cache is not None:
            cache.cross[self.cached_at(metadata)] = kept
        return kept

    def cached_at(self, metadata: AttentionMetadata) -> int:
        """The layer whose part of a cache this pass reads and writes."""
        return self.layer if metadata.layer is None else metadata.layer

    def mix(
        self,
        q_BTHK: Tensor,
        k_BSGK: Tensor,
        v_BSGK: Tensor,
        metadata: AttentionMetadata,
        mask: AttentionMask,
        kernel: Kernel | None,
        scales: Sequence[Tensor] = (),
    ) -> Tensor:
        """Weighted values of every head; without a kernel by the mixer's own way."""
        if kernel is None:
            return self.attend_custom(q_BTHK, k_BSGK, v_BSGK, metadata)
        scores, values = metadata.scores, None
        if self.biases or self.reads_probs:
            own = self.position.tensors() if self.position is not None else metadata.own or {}
            if any(self.projects):
                own = {**own, **self.projected(own)}
            if scores is None and self.biases:
                scores = self.leaf.scores(own, q_BTHK, k_BSGK, QKPositions(mask.q.pos, mask.k.pos), self.scale)
            if self.reads_probs:
                values = self.leaf.values(own, v_BSGK)
        terms = AttentionArgs(
            self.scale, self.mixing, NOTHING if self.mixer is None else self.mixer.tensors(), mask, scores, values,
            self.spec.softcap, self.spec.dropout if self.training else 0.0, metadata.cache is not None, None if metadata.pages is None else metadata.pages.scaled(scales),
        )  # fmt: skip
        if mask.pattern.repeats:
            return run_repeated(kernel, q_BTHK, k_BSGK, v_BSGK, terms)
        return kernel.run(q_BTHK, k_BSGK, v_BSGK, terms)

    def projected(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The vectors of the position scheme as queries and as keys, where it asks for them."""
        made: dict[str, Tensor] = {}
        vectors_ND = self.leaf.projected_vectors(own)
        for name, letter, count in zip(("q_NHK", "k_NGK"), "qk", self.projects, strict=True):
            if count:
                made[name] = self._modules[letter](vectors_ND).unflatten(-1, (-1, self.dims.head_dim))
        return made

    def attend_custom(self, q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, metadata: AttentionMetadata) -> Tensor:
        """The output of a mixer with a way of its own."""
        turn, cache, decisions = metadata.q_rope, metadata.cache, metadata.decisions
        late = self.rotates and not self.rope_before_cache
        work = MixerInput(
            q_BTHK=q_BTHK, k_BSGK=k_BSGK, v_BSGK=v_BSGK,
            turn=functools.partial(self.apply_rotary, turn=turn) if late and turn is not None else (lambda x: x),
            mask=metadata.mask, scale=self.scale, dropout=self.spec.dropout if self.training else 0.0,
            state=cache.state(self.cached_at(metadata)) if cache is not None and self.mixing.stateful else None,
            decide=(lambda make: make()) if decisions is None else decisions.decide,
        )  # fmt: skip
        with no_autocast(q_BTHK):
            return self.mixing.mix(work)

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
    place = (q_pos_BT + spec.offset).to(exact)
    if spec.kind == "log1p":
        factor = 1 + spec.strength * torch.log1p(torch.floor(place / spec.length))
    else:
        factor = (place.log() / math.log(spec.length)).clamp(min=1.0)
    return factor[:, :, None, None].to(like.dtype)
