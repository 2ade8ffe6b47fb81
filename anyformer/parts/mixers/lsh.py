"""LSH attention (Reformer): a token looks at those whose queries fall into the same bucket of random rotations."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.parts.mixers.linear import serves_whole_documents
from anyformer.specs.axes import Mixer, MixerInput, Problem, Tensor
from anyformer.specs.patterns import Pattern


@dataclass(frozen=True, kw_only=True)
class LSH(Mixer, kind="lsh"):
    """Approximate beyond one chunk, where tokens are sorted by bucket and see the chunks near to theirs; exact in
    documents that fit into one, and with a cache, which keeps every key. Queries are keys too, so a token sees itself
    only if there is nothing else to see.
    """

    title = "LSH attention"
    exact = False
    shares_keys = True
    minimum = {"chunk": 1, "before": 0, "after": 0, "rounds": 1}
    chunk: int = 64
    """Tokens that are taken together, in the order of buckets."""
    before: int = 1
    """Chunks before its own that a token sees, in the order of buckets."""
    after: int = 0
    """Chunks after it."""
    buckets: int | tuple[int, ...] | None = None
    """How many, or factors of that; unset: about two for each chunk of the row."""
    rounds: int = 1
    """How often tokens are hashed and sorted."""
    seed: int | None = 0
    """Of the rotations; unset: drawn anew in every pass."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        factors = (self.buckets,) if isinstance(self.buckets, int) else self.buckets
        if factors is not None and (not factors or any(n < 2 or n % 2 for n in factors)):
            yield "buckets", f"{self.buckets} is not an even number of buckets, nor a list of such factors"

    def equation(self) -> str:
        often = "" if self.rounds == 1 else f", all {self.rounds} rounds in one softmax"
        near = f"j among the {self.chunk} tokens of i's chunk, the {self.before} before and {self.after} after"
        return f"s_ij = scale q_i . q_j / rms(q_j), j != i if there is another; {near}, by bucket{often}"

    def approximation(self) -> str:
        again = "anew in every pass, as no seed is set" if self.seed is None else "the same for the same seed and input"
        return (
            f"is approximate in texts of more than {self.chunk} tokens: which keys are near depends on the whole row. "
            f"It never gives weight to a later token (in a decoder), to padding or to another document, and answers {again}"
        )

    def serves(self, pattern: Pattern) -> str | None:
        return serves_whole_documents(pattern, "buckets alone decide what is left out")

    def keys(self, q_BTHK: Tensor) -> Tensor:
        from anyformer.kernels.lsh import normalised

        return normalised(q_BTHK)

    def mix(self, work: MixerInput) -> Tensor:
        from anyformer.kernels import lsh

        q, mask = work.q_BTHK, work.mask
        tokens = q.shape[1]
        # Keys that are not these very queries come from a cache: then every one of them is there to be seen.
        if work.k_BSGK is not q or tokens <= self.chunk:
            k = self.keys(work.k_BSGK)
            return lsh.exact(q, k, work.v_BSGK, mask, scale=work.scale, dropout=work.dropout)
        factors = lsh.bucket_counts(tokens, self.chunk, self.buckets)
        # Drawn in every pass, decided once: a pass that is replayed then draws as many random numbers as the first.
        turns = lsh.rotations(q, factors, self.rounds, self.seed)
        found = work.decide(lambda: lsh.hashed(q, turns, factors))
        plan = lsh.plan(
            found, math.prod(factors), self.chunk, range(-self.before, self.after + 1), causal=mask.pattern.causal,
            document_BT=None if isinstance(mask.q.document, int) else mask.q.document, valid_BT=mask.valid_BS,
        )  # fmt: skip
        return lsh.attend(q, work.v_BSGK, plan, scale=work.scale, dropout=work.dropout)

    def pairs(self, allowed: int, length: int, head_dim: int) -> int:
        seen = self.chunk * (self.before + 1 + self.after)
        if length <= self.chunk:
            return allowed
        # Buckets know nothing of places: of what a chunk sees, the same share is allowed as of all pairs.
        return round(self.rounds * min(1.0, seen / length) * allowed)
