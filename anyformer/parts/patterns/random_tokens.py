"""Random tokens: a token sees `count` tokens of its document, drawn once for all (the random graph of BigBird's theory)."""

from dataclasses import dataclass

from anyformer.parts.patterns.random_blocks import Drawn


@dataclass(frozen=True, kw_only=True)
class RandomTokens(Drawn, kind="random_tokens"):
    """k is one of `count` tokens drawn from (seed, layer, head, the document's length, q)."""

    words = "tokens"
    counted = ()
    minimum = {"count": 1}
    block = 1
    count: int
    """Tokens that are drawn for each query."""
    seed: int = 0
    """Another seed draws other tokens."""
    past: bool = False
    """Draw among the tokens up to itself, as a decoder needs it; the document's length is not read then."""

    def equation(self) -> str:
        among = "tokens 0 to q" if self.past else "all tokens"
        return f"k in {self.count} of {among}, drawn by (seed {self.seed}, layer, head, length)"
