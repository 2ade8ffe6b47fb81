"""AdamW and Muon as optimizers of torch: any module's parameters, param groups, schedulers, state dicts.

They move parameters by the rules that training itself uses. What a rule remembers of a parameter is its `state`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anyformer.errors import CapabilityError, InputError
from anyformer.optim.rule import AdamWRule, MuonRule, OptimizedParam, Rule, StepSize, settled

Params = Iterable[Any]
"""Parameters, pairs of a name and a parameter, or param groups, as torch's optimizers take them."""


class RuleOptimizer(Optimizer):
    """An optimizer whose groups are moved by a rule."""

    def rule(self, group: dict[str, Any]) -> Rule:
        raise TypeError(f"{type(self).__name__} defines no rule()")

    def problems(self, group: dict[str, Any]) -> list[str]:
        plain = {name: group[name] for name in ("lr", "weight_decay") if not isinstance(group[name], Tensor)}
        return [f"{name}: {value!r} is not at least 0" for name, value in plain.items() if not value >= 0]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own, such as another `lr`."""
        if unknown := sorted(set(param_group) - {"params", "name", "param_names", *self.defaults}):
            # A misspelt option would be kept and never read.
            known = ", ".join(sorted(self.defaults))
            raise InputError(f"{type(self).__name__}: {', '.join(unknown)} is no option of a group (known: {known})")
        if wrong := self.problems({**self.defaults, **param_group}):
            raise InputError("\n  ".join([f"{type(self).__name__}: these options can't be:", *wrong]))
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; the loss of `closure`, which is run first, with gradients."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            rule = self.rule(group)
            going = [self._moved(p, rule, group["master_weights"]) for p in group["params"] if settled(p) is not None]
            pace = StepSize(rate=group["lr"], decay=group["weight_decay"])
            for _, update in rule.updates(going, pace) if going else []:
                update()
        return loss

    def _moved(self, parameter: nn.Parameter, rule: Rule, master: bool) -> OptimizedParam:
        if parameter.grad is not None and parameter.grad.is_sparse:
            advice = "make the embedding with sparse=False, or take torch.optim.SparseAdam for it"
            raise CapabilityError(f"{type(self).__name__} can't use sparse gradients; {advice}")
        if not self.state[parameter]:
            self.state[parameter] = rule.new("", parameter, master=master).slots
        found = OptimizedParam(name="", parameter=parameter, slots=self.state[parameter])
        found.refresh()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, to the bit."""
        super().load_state_dict(state_dict)
        # torch has cast all of it to the dtype of its parameter; a bf16 parameter's means and copy are float32.
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        for key, parameter in zip(saved, own, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.detach().to(parameter.device, copy=True)


class AdamW(RuleOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), in one fused kernel.

    Options and defaults are those of torch.optim.AdamW. `master_weights`: parameters narrower than float32 are moved in
    float32 copies, and their means are float32 too; a step in bf16 alone is often smaller than what bf16 can tell apart.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        master_weights: bool = True,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "master_weights": master_weights}
        super().__init__(params, options)

    def rule(self, group: dict[str, Any]) -> Rule:
        return AdamWRule(betas=tuple(group["betas"]), eps=group["eps"])

    def problems(self, group: dict[str, Any]) -> list[str]:
        found, betas = super().problems(group), group["betas"]
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            found.append(f"betas: {betas!r} are not two numbers from 0 to below 1, such as (0.9, 0.95)")
        if not group["eps"] > 0:
            found.append(f"eps: {group['eps']!r} is not above 0")
        return found


class Muon(RuleOptimizer):
    """Momentum made orthogonal by Newton-Schulz steps (Jordan et al. 2024), for matrices.

    An update has the root mean square that Adam's would have (factor 0.2 sqrt(max(rows, columns)), Liu et al. 2025), so
    `lr` and `weight_decay` are those of an AdamW beside it, which moves all that is no matrix: see `groups`. A parameter
    of more than two dimensions is a stack of matrices. `ns_steps` counts the Newton-Schulz steps.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 5e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        *,
        ns_steps: int = 5,
        master_weights: bool = True,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "ns_steps": ns_steps}
        super().__init__(params, {**options, "master_weights": master_weights})

    def rule(self, group: dict[str, Any]) -> Rule:
        return MuonRule(momentum=group["momentum"], rounds=group["ns_steps"])

    def problems(self, group: dict[str, Any]) -> list[str]:
        found = super().problems(group)
        if not 0 <= group["momentum"] < 1:
            found.append(f"momentum: {group['momentum']!r} is not from 0 to below 1")
        if type(group["ns_steps"]) is not int or group["ns_steps"] < 1:
            found.append(f"ns_steps: {group['ns_steps']!r} is not a whole number of at least 1")
        return found

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        shapes = [tuple(p.shape) for p in self.param_groups[-1]["params"] if p.dim() < 2]
        if shapes:
            self.param_groups.pop()
            count = f"{len(shapes)} of these parameters have fewer than two dimensions, such as {shapes[0]}"
            advice = "give it groups(module)['matrices'] of anyformer.optim, and the rest to AdamW"
            raise InputError(f"Muon is for matrices, and {count}; {advice}")
