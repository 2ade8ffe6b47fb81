"""Normalised ReLU scores: p_s = relu(x_s) / sum relu(x); a query whose scores are all negative takes nothing."""

from dataclasses import dataclass

from anyformer.specs.axes import Mixer, Params, Tensor


@dataclass(frozen=True, kw_only=True)
class Relu(Mixer, kind="relu"):
    """Sparse weights without an exponential."""

    formula = "p_ij = max(s_ij, 0) / (sum_k max(s_ik, 0) + {eps:g}), o_i = sum_j p_ij v_j"
    title = "normalised ReLU"
    positive = ("eps",)
    eps: float = 1e-6
    """Added to the sum, so that a row of zeros stays zero."""

    def weigh(self, scores: Tensor, own: Params) -> Tensor:
        weights = scores.relu()
        return weights / (weights.sum(-1, keepdim=True) + self.eps)
