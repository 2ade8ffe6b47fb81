"""Pages: requests that go on at their own pace beside others == alone and whole, for every spec that keeps a cache."""

from typing import Any

import torch
from torch import Tensor

from anyformer.model.model import Model
from anyformer.parts.kv_pool import CachedSequence, KVBlockPool
from anyformer.parts.paged_cache import PagedKVCache
from anyformer.specs import ModelSpec
from anyformer.specs.stacks import cache_specs
from tests.contract.contracts import answers, keeps_a_cache, model_of, prefix_of
from tests.contract.feed import Document, alone, call, document
from tests.tolerances import assert_close

CHUNK, SIZE = 3, 4


def feed(
    model: Model, pool: KVBlockPool, who: list[tuple[CachedSequence, Document]], lengths: list[int]
) -> list[Tensor]:
    """The next tokens of some tenants in one pass, padded behind with noise; the logits of each."""
    for (tenant, _), length in zip(who, lengths, strict=True):
        assert pool.reserve(tenant, length)
    cache = PagedKVCache(pool, [tenant for tenant, _ in who], lengths)
    width = max(lengths)
    two = who[0][1].target is not None
    counts = [tenant.num_computed_tokens for tenant, _ in who]

    def side_by_side(parts: list[Tensor | None]) -> Any:
        if parts[0] is None:
            return None
        rows = []
        for part, count, length in zip(parts, counts, lengths, strict=True):
            assert part is not None
            some = part[count : count + length]
            rows.append(torch.cat((some, torch.ones_like(some[:1]).expand(width - length, *some.shape[1:]))))
        return torch.stack(rows)

    tokens = side_by_side([doc.target if two else doc.source for _, doc in who])
    mask = None
    if len(set(lengths)) > 1:
        mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    if two:
        given: dict[str, Any] = {"decoder_input_ids": tokens}
        if mask is not None:
            given["decoder_attention_mask"] = mask
        if not cache.has_source:
            assert len(who) == 1, "sources are read one at a time"
            doc = who[0][1]
            given["input_ids"] = doc.source[None]
            given |= {"token_types": doc.types[None]} if doc.types is not None else {}
            given |= {"global_mask": doc.marks[None]} if doc.marks is not None else {}
        out = model(cache=cache, **given)
    else:
        out = call(
            model, tokens, attention_mask=mask, token_types=side_by_side([d.types for _, d in who]),
            global_mask=side_by_side([d.marks for _, d in who]), cache=cache,
        )  # fmt: skip
    pool.check()
    return [answers(out)[i, :n] for i, n in enumerate(lengths)]


def pool_bytes(spec: ModelSpec, length: int, rows: int, *, chunk: int, storage: str) -> int:
    """Bytes of keys, values and states in float64, or in int8 with a scale of 4 bytes for each head of a token."""
    size, scale = (1, 4) if storage == "int8" else (8, 0)
    total = 0
    for stack in spec.stacks:
        for room in cache_specs(spec, stack) if stack.causal else ():
            slots = -(-room.tokens(length, chunk) // SIZE) * SIZE
            heads = sum(heads for heads, _ in room.streams)
            total += slots * (room.per_token * size + heads * scale) + room.per_row * 8
    return total * rows


def paged(spec: ModelSpec) -> None:
    """Two requests with pages of one pool, in turns and together, == each of them whole."""
    if not keeps_a_cache(spec):
        return
    model = model_of(spec)
    declared = 30 if model.reads_length else None
    early = max(2, prefix_of(spec))
    docs = [document(spec, early + 13, 2, target=early + 13), document(spec, early + 9, 3, target=early + 9)]
    wholes = [answers(alone(model, doc, rope_length=declared))[0] for doc in docs]
    pool = model.new_pool(3, early + 14, block_size=SIZE, chunk=CHUNK, rope_length=declared)
    first = early
    for storage in ("model", "int8"):
        some = model.new_pool(2, 9, block_size=SIZE, chunk=2, kv_cache_dtype=storage)
        assert some.nbytes == pool_bytes(spec, 9, 2, chunk=2, storage=storage)
    a, b, c = pool.add(), pool.add(), None
    assert a is not None
    assert b is not None
    found: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}

    def step(rows: list[int], lengths: list[int]) -> None:
        tenants = {0: a, 1: b, 2: c}
        who = [(tenants[row], docs[row % 2]) for row in rows]
        for row, logits in zip(rows, feed(model, pool, who, lengths), strict=True):
            found[row].append(logits)

    step([0], [first + 1])
    step([1], [first])
    step([1, 0], [1, 1])
    step([0, 1], [3, 1])
    # What was read after a snapshot is forgotten, however it was.
    before = pool.snapshot(a)
    feed(model, pool, [(a, Document(docs[1].source, docs[1].types, docs[1].target, docs[1].marks))], [2])
    pool.rewind(a, *before)
    c = pool.fork(a)
    assert c is not None
    found[2] = list(found[0])
    step([0, 1, 2], [1, 1, 1])
    left = [len(wholes[row % 2]) - tenant.num_computed_tokens for row, tenant in enumerate((a, b, c))]
    step([0, 1], left[:2])
    for _ in range(left[2]):
        step([2], [1])
    for row, parts in found.items():
        assert_close("promise", torch.cat(parts), wholes[row % 2])
    for tenant in (a, b, c):
        pool.free(tenant)
    pool.check()
    assert all(manager.free == manager.total for manager in pool.managers)
