"""Softmax over the scores, with an optional learned sink: p_s = exp(x_s) / (exp(sink) + sum exp(x)) (gpt-oss)."""

from dataclasses import dataclass

from anyformer.specs.axes import Mixer, Params, ParamSpec, Tensor


@dataclass(frozen=True, kw_only=True)
class Softmax(Mixer, kind="softmax"):
    """The usual weights."""

    sinks: bool = False
    """A learned logit for each head in the denominator, so that a head may attend to nothing."""

    def equation(self) -> str:
        total = "(exp(sink_h) + sum_k exp(s_ik))" if self.sinks else "sum_k exp(s_ik)"
        return f"p_ij = exp(s_ij) / {total}, o_i = sum_j p_ij v_j"

    @property
    def ignores_shift(self) -> bool:
        return not self.sinks

    def weights(self, heads: int) -> dict[str, ParamSpec]:
        return {"sink_H": ParamSpec(shape=(heads,), role="sink", fill=0.0)} if self.sinks else {}

    def weigh(self, scores: Tensor, own: Params) -> Tensor:
        import torch

        highest = scores.amax(-1, keepdim=True)
        sink = own["sink_H"].to(scores.dtype)[:, None, None] if self.sinks else None
        highest = highest if sink is None else torch.maximum(highest, sink)
        # A row that sees nothing has -inf as its highest score, and weights of 0.
        highest = highest.detach().clamp(min=torch.finfo(scores.dtype).min)
        weights = (scores - highest).exp()
        total = weights.sum(-1, keepdim=True)
        # The highest score weighs 1 (compiled code may round it below), so only a row that sees nothing has less than
        # half of that; dividing by a number keeps its gradient finite.
        total = total.clamp(min=0.5) if sink is None else total + (sink - highest).exp()
        return weights / total
