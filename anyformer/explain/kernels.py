"""Which attention kernel serves each distinct layer in training and in decoding, and why the others do not."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from anyformer.explain.costs import decodes
from anyformer.explain.groups import Group, groups, place_of
from anyformer.kernels.attention import KERNELS, choice
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import KernelRequest
from anyformer.model.stack import LayerGroup, cached_layout, cross_group, kernel_request, layer_groups
from anyformer.model.token_layout import TokenLayout, attention_mask, place
from anyformer.parts.static_cache import StaticKVCache
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import Stack, cache_specs

META = torch.device("meta")
"""Kernels are chosen by shapes and settings alone, so nothing is allocated."""


@dataclass(frozen=True, kw_only=True)
class KernelUse:
    """The kernel of some layers in one phase."""

    attention: str
    """`self` or `cross`."""
    phase: str
    """`training`; of a decoder `prefill`, `decoding` (static cache) and `paged decoding` (continuous batching, and
    `generate` on CUDA); of an encoder `inference`."""
    kernel: str | None
    """None: the mixer weighs no scores, and computes its output itself."""
    others: tuple[tuple[str, str], ...]
    """Every other kernel in order of preference, and why it does not serve."""


@dataclass(frozen=True, kw_only=True)
class KernelTable:
    """All kernels of a model on one device."""

    device: str
    dtype: str
    uses: tuple[tuple[str, KernelUse], ...]
    """Layers in words, and what serves them."""

    def data(self) -> dict[str, Any]:
        uses = [{"layers": where} | asdict(use) | {"others": dict(use.others)} for where, use in self.uses]
        return {"device": self.device, "dtype": self.dtype, "uses": uses}


def kernel_table(
    spec: ModelSpec, device: str | None = None, dtype: str | None = None, layer: int | None = None
) -> KernelTable:
    """The kernels on a device (default: this machine's) in a dtype (default: float32 on a CPU, else bfloat16)."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
    where: dict[tuple[str, KernelUse], list[int]] = {}
    for group in groups(spec, layer):
        for attention, phase, request, asked in requests(spec, group, device, getattr(torch, dtype)):
            use = KernelUse(attention=attention, phase=phase, **_chosen(request, asked))
            where.setdefault((group.stack.name, use), []).extend(group.indices)
    uses = tuple((place_of(spec, {stack: layers}), use) for (stack, use), layers in where.items())
    return KernelTable(device=device, dtype=dtype, uses=uses)


def requests(
    spec: ModelSpec, group: Group, device: str, dtype: torch.dtype
) -> Iterator[tuple[str, str, KernelRequest, KernelRequest | None]]:
    """What layers ask kernels for, as `self` or `cross` attention in each phase; last, of keys that lie in pages, what
    was asked before they are gathered.
    """
    first, stack = group.indices[0], group.stack
    kind = layer_groups(spec, stack)[first]
    heads, number = kind.attention.heads, kind.layer or 0
    for phase, queries, cache in _passes(spec, stack):
        given: dict[str, Any] = {"device": device, "dtype": dtype, "training": phase == "training"}
        given |= {"cached": cache is not None}

        def asks(kind: LayerGroup, mask: AttentionMask, given: dict[str, Any] = given, **more: Any) -> KernelRequest:
            # Only a pass of training has gradients.
            with torch.set_grad_enabled(given["training"]):
                return kernel_request(kind, mask, **given, **more)

        keys = queries if cache is None or kind.mixer.stateful else cached_layout(cache, first, queries)
        mask = attention_mask(
            kind.pattern if phase == "training" else kind.evaluated, queries, keys, heads=heads, layer=number
        )
        request, asked = asks(kind, mask), None
        if phase == "paged decoding":
            # Keys are gathered in whole blocks, so that even a window of one token has several.
            request = replace(request, phase="decode")
        if phase == "paged decoding" and len(cache_specs(spec, stack)[first].streams) == 2:
            mask = attention_mask(kind.pattern, queries, queries, heads=heads, layer=number)
            mask.shape = "pattern"
            asked = asks(kind, mask, paged=True)
            request = asked if choice(asked).kernel.reads_pages else request
        yield "self", phase, request, asked
        if stack.cross:
            cross = cross_group(kind)
            mask = attention_mask(cross.pattern, queries, place(1, spec.context, META), heads=heads)
            yield "cross", phase, asks(cross, mask), None


def _passes(spec: ModelSpec, stack: Stack) -> Iterator[tuple[str, TokenLayout, StaticKVCache | None]]:
    """Each phase, with the queries and the cache of one of its passes."""
    yield "training", place(1, spec.context, META), None
    if not (stack.causal and decodes(spec)):
        yield "inference", place(1, spec.context, META), None
        return
    cache = StaticKVCache(cache_specs(spec, stack), batch=1, length=spec.context, device=META, dtype=torch.float32)
    prompt = max(1, spec.context - 1)
    one = place(1, 1, META, before=prompt)
    for phase, queries in (("prefill", place(1, prompt, META)), ("decoding", one)):
        cache.begin(queries.pos_BT, None, ragged=False)
        yield phase, queries, cache
        if phase == "prefill":
            cache.advance(prompt)
    # Rows of a pool differ in their lengths.
    yield "paged decoding", replace(one, plain=False), cache


def _chosen(request: KernelRequest, asked: KernelRequest | None) -> dict[str, Any]:
    """The kernel of a request, and what keeps every other one from serving it."""
    if not request.mixer.weighs:
        return {"kernel": None, "others": ()}
    chosen = choice(request).kernel
    reasons = {
        kernel.name: kernel.why_not(asked if asked is not None and kernel.reads_pages else request)
        for kernel in KERNELS
        if kernel is not chosen
    }
    preferred = f"could serve too, but {chosen.name} is preferred"
    return {"kernel": chosen.name, "others": tuple((name, why or preferred) for name, why in reasons.items())}
