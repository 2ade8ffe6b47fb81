"""Mixture of experts: a router picks, for each token, a few of many feed-forwards (Shazeer et al. 2017; Fedus et al. 2021).

y = sum over the top_k experts i of g_i expert_i(x), g from softmax(W_router x) or sigmoid(W_router x). No token is ever
dropped, and none is affected by where others go: a token has the same output alone, padded, packed or from a cache.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from anyformer.specs.axes import FeedForward, ParamSpec, Problem, linear
from anyformer.specs.layer import default

OURS = ("width", "bias", "down_bias", "dropout", "chunk")
"""What is set once for all experts, beside them and not in them."""


@dataclass(frozen=True, kw_only=True)
class Moe(FeedForward, kind="moe"):
    """Some of many feed-forwards for each token, chosen by a router."""

    title = "MoE"
    inputs = ()
    routes = True
    minimum = {"width": 1, "shared_width": 1}
    experts: int = 8
    """How many there are."""
    top_k: int = 2
    """How many of them each token goes through."""
    expert: FeedForward = default(FeedForward, "swiglu")
    """What an expert is, and the shared one: a dense kind with its own settings."""
    width: int | None = None
    """Inner width of one expert; unset: as its kind has it."""
    bias: bool = False
    """A bias in each projection of the experts."""
    dropout: float = 0.0
    """Dropout on the inner activation."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """What the router's logits become: probabilities of all experts, or a number for each by itself (DeepSeek-V3)."""
    normalise: bool = True
    """The scores of the chosen experts are divided by their sum. With softmax that is a softmax over the chosen alone."""
    scale: float = 1.0
    """The scores of the chosen experts are multiplied by this (DeepSeek-V3: 2.5)."""
    gates: Literal["output", "input"] = "output"
    """Whether a score multiplies what its expert gives, or what it reads (Llama 4)."""
    router_bias: bool = False
    """A bias on the router's logits (gpt-oss)."""
    exact_router: bool = False
    """The router's weights stay in at least float32 when a model is cast to 16 bits (ERNIE 4.5)."""
    selection_bias: bool = False
    """A number for each expert that is added to its score when experts are chosen, not when they are weighed
    (DeepSeek-V3). It has no gradient: it stays as it was loaded, in at least float32."""
    shared_width: int | None = None
    """Inner width of an expert that every token goes through; unset: there is none. Several are one of their total width."""
    shared_gate: bool = False
    """Multiply the shared expert by sigmoid(w x) (Qwen2-MoE)."""

    def problems(self) -> Iterator[Problem]:
        if self.experts < 2:
            yield "experts", f"{self.experts} is not at least 2: a router needs a choice"
        elif not 1 <= self.top_k <= self.experts:
            yield "top_k", f"{self.top_k} is not from 1 to experts={self.experts}"
        elif self.top_k == 1 and self.normalise:
            yield "normalise", "with top_k=1 the one score would always be 1, and the router never learn; write false"
        yield from super().problems()
        if self.scale == 0:
            yield "scale", "is 0, which would erase what it multiplies"
        if self.shared_gate and self.shared_width is None:
            yield "shared_gate", "has no effect without shared_width"
        yield from self._inner_problems()

    def _inner_problems(self) -> Iterator[Problem]:
        if self.expert.routes:
            yield "expert.kind", f"{self.expert.kind!r} can't be an expert; pick a dense kind"
            return
        expert: Any = self.expert
        usual = {field.name: field.default for field in dataclasses.fields(expert)}
        for name in OURS:
            if name in usual and getattr(self.expert, name) != usual[name]:
                own = name in {field.name for field in dataclasses.fields(self)}
                yield f"expert.{name}", f"has no effect here: {f'set ffn.{name}' if own else 'leave it out'}"
        for name, why in self.expert.problems():
            if name not in OURS:
                yield f"expert.{name}", why

    def hidden(self, width: int) -> int:
        return self.expert.hidden(width) if self.width is None else self.width

    def dense(self, width: int | None) -> FeedForward:
        """One expert of this inner width as a feed-forward of its own."""
        expert: Any = self.expert
        return dataclasses.replace(expert, width=width, bias=self.bias, dropout=self.dropout)

    def weights(self, width: int) -> dict[str, ParamSpec]:
        inner, stack = self.hidden(width), (self.experts,)
        router = linear("router", self.experts, width, "router", self.router_bias)
        found = {name: dataclasses.replace(weight, exact=self.exact_router) for name, weight in router}
        if self.selection_bias:
            found["selection_bias"] = ParamSpec(shape=stack, role="bias", fill=0.0, exact=True)
        for name in self.expert.inputs:
            found |= linear(f"experts.{name}", inner, width, "ffn_in", self.bias, stack)
        found |= linear("experts.down", width, inner, "ffn_out", self.bias, stack)
        if self.shared_width is not None:
            shared = self.dense(self.shared_width).weights(width)
            found |= {f"shared.{name}": weight for name, weight in shared.items()}
        if self.shared_gate:
            found |= linear("shared_gate", 1, width, "router", False)
        return found

    def silent(self) -> dict[str, str]:
        why = "it moves which experts are chosen, and not what they are weighed with"
        return {"selection_bias": why} if self.selection_bias else {}

    def products(self, width: int) -> int:
        total = width * self.experts + self.top_k * self.dense(self.width).products(width)
        if self.shared_width is not None:
            total += self.dense(self.shared_width).products(width) + width * self.shared_gate
        return total

    def inside(self, width: int) -> int:
        # Each chosen expert reads a copy of the token and writes an output of its own.
        total = 2 * self.experts + self.top_k * (2 * width + self.dense(self.width).inside(width))
        return total + (0 if self.shared_width is None else self.dense(self.shared_width).inside(width))

    def idle(self, width: int, tokens: int = 1) -> int:
        each = sum(weight.size for weight in self.dense(self.width).weights(width).values())
        return max(0, self.experts - self.top_k * tokens) * each

    def equation(self) -> str:
        logits = "W_router x + b_router" if self.router_bias else "W_router x"
        score = f"{self.score}({logits})"
        chosen = f"the {self.top_k} largest of {self.experts}" + (" s_i + b_i" if self.selection_bias else " s_i")
        gate = "s_i / sum_j s_j" if self.normalise else "s_i"
        gate = f"{self.scale:g} {gate}" if self.scale != 1 else gate
        term = "expert_i(g_i x)" if self.gates == "input" else "g_i expert_i(x)"
        shared = ""
        if self.shared_width is not None:
            shared = " + sigmoid(w x) shared(x)" if self.shared_gate else " + shared(x)"
        return f"y = sum_i {term}{shared}, g_i = {gate}, i of {chosen}, s = {score}; expert: {self.expert.equation()}"
