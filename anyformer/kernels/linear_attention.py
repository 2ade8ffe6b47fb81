"""Linear attention: out_t = sum_s (a_t . b_s) v_s / (sum_s q_t . k_s + eps), without a matrix of queries and keys.

q and k are features (positive numbers made from queries and keys), a and b the same features after the position scheme
turned them. What a query needs of earlier tokens is one matrix for each head, the sum of b_s v_s^T, and one vector, the
sum of k_s. Tokens are taken in chunks: inside a chunk all pairs are computed, between chunks only those sums travel.
Order is that of the row. A document is a run of equal numbers in it.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64
"""Tokens whose pairs are computed: about the head's width, where pairs and sums cost the same."""


class Features(NamedTuple):
    """Queries (B,T,H,K), keys and values (B,T,G,K) with G dividing H. Keys that are not real are 0."""

    q_BTHK: Tensor
    k_BTGK: Tensor
    turned_q_BTHK: Tensor
    turned_k_BTGK: Tensor
    v_BTGK: Tensor
    eps: float


State = tuple[Tensor, Tensor]
"""Sums over what a row has read: (B,G,K,K) of turned keys and values, and (B,G,K) of keys."""


def causal(given: Features, documents_BT: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
    """(B,T,H,K), and the state after the last token. A row with a state is one document."""
    if state is not None and given.q_BTHK.shape[1] == 1:
        # One token: the state takes it up, then answers.
        sums = state[0] + _outer(given.turned_k_BTGK, given.v_BTGK), state[1] + given.k_BTGK[:, 0]
        return _read(given.turned_q_BTHK, given.q_BTHK, sums, given.eps), sums
    chunks = _chunks(given, documents_BT)
    before = _running(chunks.sums(chunks.neighbour(1)), chunks.neighbour(1))
    if state is not None:
        before = before[0] + state[0][:, None], before[1] + state[1][:, None]
    last = before[0][:, -1], before[1][:, -1]
    out = chunks.attend(chunks.inside(causal=True), [(_shifted(before, state), chunks.document(0))])
    return out[:, : given.q_BTHK.shape[1]], last


def full(given: Features, documents_BT: Tensor | None = None) -> Tensor:
    """(B,T,H,K) where every query sees all keys (of its document)."""
    if documents_BT is None:
        sums = _outer(given.turned_k_BTGK, given.v_BTGK), given.k_BTGK.sum(1)
        return _read(given.turned_q_BTHK, given.q_BTHK, sums, given.eps)
    chunks = _chunks(given, documents_BT)
    previous, following = chunks.neighbour(-1), chunks.neighbour(1)
    # Of the chunks before, what belongs to a chunk's first document; of those after, what belongs to its last.
    after = _running(_flipped(chunks.sums(previous)), None if previous is None else previous.flip(1))
    earlier = _shifted(_running(chunks.sums(following), following), None)
    later = _flipped(_shifted(after, None))
    out = chunks.attend(chunks.inside(causal=False), [(earlier, chunks.document(0)), (later, chunks.document(-1))])
    return out[:, : given.q_BTHK.shape[1]]


def _outer(k_BTGK: Tensor, v_BTGK: Tensor) -> Tensor:
    return k_BTGK.permute(0, 2, 3, 1) @ v_BTGK.transpose(1, 2)


def _read(turned_q_BTHK: Tensor, q_BTHK: Tensor, sums: State, eps: float) -> Tensor:
    """What queries take from sums that all of them see."""
    groups = sums[1].shape[1]
    turned, plain = (_grouped(q, groups) for q in (turned_q_BTHK, q_BTHK))
    out = (turned @ sums[0]) / (plain @ sums[1][..., None] + eps)
    return out.unflatten(2, (-1, q_BTHK.shape[1])).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _grouped(q_BTHK: Tensor, groups: int) -> Tensor:
    """(B,G,RT,K): the queries of the R heads that share keys, one after the other."""
    batch, tokens, heads, dim = q_BTHK.shape
    split = q_BTHK.view(batch, tokens, groups, heads // groups, dim).permute(0, 2, 3, 1, 4)
    return split.reshape(batch, groups, -1, dim)


class _Chunks(NamedTuple):
    """The same features cut into N chunks of C tokens: queries (BN,G,RC,K), keys and values (BN,C,G,K)."""

    q: Tensor
    turned_q: Tensor
    k: Tensor
    turned_k: Tensor
    v: Tensor
    eps: float
    documents: Tensor | None
    """(B or 1, N, C)."""
    batch: int

    @property
    def length(self) -> int:
        return self.k.shape[1]

    def document(self, place: int) -> Tensor | None:
        """(B or 1, N): the first (0) or the last (-1) document of each chunk."""
        return None if self.documents is None else self.documents[:, :, place]

    def neighbour(self, side: int) -> Tensor | None:
        """The first document of the following chunk (1) or the last of the one before (-1), which alone can need some of
        this one; at the end of a row its own.
        """
        if self.documents is None:
            return None
        first, last = self.documents[:, :, 0], self.documents[:, :, -1]
        return torch.cat((first[:, 1:], last[:, -1:]) if side > 0 else (first[:, :1], last[:, :-1]), 1)

    def sums(self, wanted: Tensor | None) -> State:
        """(B,N,G,K,K) and (B,N,G,K): what each chunk adds to the state, of its tokens in the wanted document."""
        k, turned_k = self.k, self.turned_k
        if self.documents is not None and wanted is not None:
            inside = (self.documents == wanted[:, :, None]).expand(self.batch, -1, -1)
            inside = inside.reshape(-1, self.length, 1, 1).to(k.dtype)
            k, turned_k = k * inside, turned_k * inside
        return _outer(turned_k, self.v).unflatten(0, (self.batch, -1)), k.sum(1).unflatten(0, (self.batch, -1))

    def inside(self, *, causal: bool) -> Tensor | None:
        """(1 or BN, C, C): which keys of its chunk a query sees, as 0 and 1; None: all."""
        seen: Tensor | None = None
        if self.documents is not None:
            same = self.documents[:, :, :, None] == self.documents[:, :, None, :]
            seen = same.expand(self.batch, -1, -1, -1).reshape(-1, self.length, self.length)
        if causal:
            earlier = torch.ones(1, self.length, self.length, dtype=torch.bool, device=self.k.device).tril()
            seen = earlier if seen is None else seen & earlier
        return None if seen is None else seen.to(self.k.dtype)

    def attend(self, inside: Tensor | None, outside: list[tuple[State, Tensor | None]]) -> Tensor:
        """(B,NC,H,K) from the pairs inside chunks and from states (B,N,...), each seen by one document's queries."""
        groups, dim = self.k.shape[2:]
        repeats = self.q.shape[2] // self.length
        pairs = self.turned_q @ self.turned_k.permute(0, 2, 3, 1)
        if inside is None:
            total_k = self.k.sum(1, keepdim=True).expand_as(self.k)
        else:
            pairs = (pairs.unflatten(2, (repeats, -1)) * inside[:, None, None]).flatten(2, 3)
            # Sums of keys rather than of pairs: they are shared by the heads of a group.
            one = self.documents is None
            total_k = self.k.cumsum(1) if one else (inside @ self.k.flatten(2)).view_as(self.k)
        above = pairs @ self.v.transpose(1, 2)
        total_k = total_k.transpose(1, 2)
        for (sums, sum_k), document in outside:
            sums, sum_k = sums.flatten(0, 1), sum_k.flatten(0, 1)[:, :, None]
            if self.documents is None or document is None:
                above, total_k = above + self.turned_q @ sums, total_k + sum_k
                continue
            sees = (self.documents == document[:, :, None]).expand(self.batch, -1, -1)
            sees = sees.reshape(-1, 1, self.length, 1).to(self.k.dtype)
            above = above + (self.turned_q @ sums) * sees.repeat(1, 1, repeats, 1)
            total_k = total_k + sum_k * sees
        below = (self.q.unflatten(2, (repeats, -1)) * total_k[:, :, None]).sum(-1, keepdim=True) + self.eps
        out = above.unflatten(2, (repeats, -1)) / below
        out = out.unflatten(0, (self.batch, -1)).permute(0, 1, 4, 2, 3, 5)
        return out.reshape(self.batch, -1, groups * repeats, dim)


def _chunks(given: Features, documents: Tensor | None) -> _Chunks:
    batch, tokens, _, dim = given.q_BTHK.shape
    groups = given.k_BTGK.shape[2]
    length = min(CHUNK, tokens)
    missing = -tokens % length

    def cut(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, 0, 0, missing)).reshape(-1, length, x.shape[2], dim)

    def grouped(x: Tensor) -> Tensor:
        return _grouped(cut(x), groups)

    if documents is not None:
        documents = torch.cat((documents, documents[:, -1:].expand(-1, missing)), 1) if missing else documents
        documents = documents.unflatten(1, (-1, length))
    # Where nothing is turned both kinds of features are the same tensors.
    q, k = grouped(given.q_BTHK), cut(given.k_BTGK)
    turned_q = q if given.turned_q_BTHK is given.q_BTHK else grouped(given.turned_q_BTHK)
    turned_k = k if given.turned_k_BTGK is given.k_BTGK else cut(given.turned_k_BTGK)
    return _Chunks(q, turned_q, k, turned_k, cut(given.v_BTGK), given.eps, documents, batch)


def _running(sums: State, document: Tensor | None) -> State:
    """Sums of each chunk and of those before it that are about the same document.

    By doubling: a difference of two cumulative sums would lose the digits of a short document behind long ones.
    """
    if document is None:
        return sums[0].cumsum(1), sums[1].cumsum(1)
    chunks = document.shape[1]
    step = 1
    while step < chunks:
        same = (document[:, step:] == document[:, :-step]).to(sums[0].dtype)
        sums = _added(sums[0], same[:, :, None, None, None], step), _added(sums[1], same[:, :, None, None], step)
        step *= 2
    return sums


def _added(x: Tensor, same: Tensor, step: int) -> Tensor:
    return torch.cat((x[:, :step], x[:, step:] + x[:, :-step] * same), 1)


def _shifted(sums: State, first: State | None) -> State:
    """What the chunk before has, for every chunk."""
    begin = first or (torch.zeros_like(sums[0][:, 0]), torch.zeros_like(sums[1][:, 0]))
    values, keys = (torch.cat((start[:, None], x[:, :-1]), 1) for start, x in zip(begin, sums, strict=True))
    return values, keys


def _flipped(sums: State) -> State:
    return sums[0].flip(1), sums[1].flip(1)
