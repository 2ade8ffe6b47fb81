"""Linear attention (Katharopoulos 2020): weights are products of positive features, so that a state replaces the keys.

With RoPE the rotation acts on the numerator only (RoFormer, equation 19): the denominator stays positive.
"""

from dataclasses import dataclass
from typing import Literal

from anyformer.specs.axes import Dims, Mixer, MixerInput, Tensor
from anyformer.specs.patterns import Both, Pattern

MAPS = {
    "elu1": "elu(x) + 1",
    "relu": "max(x, 0)",
    "relu2": "max(x, 0)^2",
    "softmax": "softmax over the head's dimensions",
}


@dataclass(frozen=True, kw_only=True)
class Linear(Mixer, kind="linear"):
    """Time and memory linear in the tokens; a cache of a fixed size. The scale of scores cancels and is not read."""

    title = "linear attention"
    stateful = True
    positive = ("eps",)
    feature: Literal["elu1", "relu", "relu2", "softmax"] = "elu1"
    """elu1: elu(x) + 1; relu: max(x, 0); relu2: its square; softmax: over the head's dimensions. None is negative."""
    eps: float = 1e-6
    """Added to the denominator: a query that sees nothing, or (with relu) nothing in common with it, takes nothing."""

    def equation(self) -> str:
        ratio = f"sum_j (R_i f(q_i) . R_j f(k_j)) v_j / (sum_j f(q_i) . f(k_j) + {self.eps:g})"
        return f"o_i = {ratio}, f(x) = {MAPS[self.feature]}, R the rotation of the position scheme, if any"

    def serves(self, pattern: Pattern) -> str | None:
        return serves_whole_documents(pattern, "one state holds all that was read")

    def streams(self, dims: Dims) -> tuple[tuple[int, int], ...]:
        return ()

    def state(self, dims: Dims) -> tuple[tuple[int, ...], ...]:
        return ((dims.kv_heads, dims.head_dim, dims.head_dim), (dims.kv_heads, dims.head_dim))

    def features(self, x: Tensor) -> Tensor:
        """The feature map, over the last dimension."""
        match self.feature:
            case "elu1":
                from torch.nn.functional import elu

                return elu(x) + 1
            case "relu":
                return x.relu()
            case "relu2":
                return x.relu().square()
            case "softmax":
                return x.softmax(-1)

    def mix(self, work: MixerInput) -> Tensor:
        import torch

        from anyformer.kernels.linear_attention import Features, causal, full

        exact = torch.promote_types(work.q_BTHK.dtype, torch.float32)
        q, k = self.features(work.q_BTHK.to(exact)), self.features(work.k_BSGK.to(exact))
        mask = work.mask
        if mask.valid_BS is not None:
            k = k * mask.valid_BS[:, :, None, None].to(exact)
        given = Features(q, k, work.turn(q), work.turn(k), work.v_BSGK.to(exact), self.eps)
        document_BT = None if isinstance(mask.q.document, int) else mask.q.document
        if not mask.pattern.causal:
            return full(given, document_BT).to(work.q_BTHK.dtype)
        if work.state is None:
            return causal(given, document_BT)[0].to(work.q_BTHK.dtype)
        sums, sum_k = work.state
        out, after = causal(given, None, (sums.to(exact), sum_k.to(exact)))
        sums.copy_(after[0])
        sum_k.copy_(after[1])
        return out.to(work.q_BTHK.dtype)

    def pairs(self, allowed: int, length: int, head_dim: int) -> int:
        # A token is added to a square matrix and read from it: what `head_dim` pairs cost, however long the document.
        return length * head_dim


def serves_whole_documents(pattern: Pattern, why: str) -> str | None:
    """None if the pattern is causal or full; otherwise why a mixer that can tell nothing finer refuses it."""
    from anyformer.parts.patterns.causal import Causal
    from anyformer.parts.patterns.documents import Documents
    from anyformer.parts.patterns.full import Full

    if isinstance(pattern, Both):
        return serves_whole_documents(pattern.first, why) or serves_whole_documents(pattern.second, why)
    if isinstance(pattern, Causal | Full | Documents):
        return None
    return f"'{pattern}' leaves out tokens of a document, but {why}; write 'causal' or 'full'"
