"""What a study measures of a trained model besides its held-out loss: other lengths, gradients by layer, spikes, steps to a loss."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from anyformer.data.loader import DRAW, VERSION, BatchLoader
from anyformer.errors import AnyformerError
from anyformer.lab.study import Measure
from anyformer.model.build import build
from anyformer.model.model import Model
from anyformer.optim.rule import total_norm
from anyformer.train.components import Components, load_weights
from anyformer.train.perplexity import evaluate
from anyformer.train.train_step import on_device

WINDOW = 64
"""Steps before a step that say which gradient norm is usual."""
SPIKE = 4.0
"""A spike is a gradient norm of so many times the median of those."""
LAYER = re.compile(r"(?:encoder|decoder)\.blocks\.(\d+)\.")
Metrics = dict[str, float | None]


def measurements(
    components: Components,
    measure: Measure,
    steps: Sequence[Mapping[str, Any]],
    curve: Sequence[tuple[int, int, float]],
) -> Metrics:
    """All of it, by name; None where there is no such number."""
    found: Metrics = {"gradient_spikes": float(spikes([step["gradient_norm"] for step in steps]))}
    found["skipped_steps"] = float(sum(bool(step.get("skipped")) for step in steps))
    found |= {f"steps_to_{loss:g}": steps_to(loss, curve) for loss in measure.steps_to}
    found |= {f"loss@{length}": loss_at(components, length=length) for length in measure.lengths}
    found |= {f"loss_{rows}": loss_at(components, rows=rows) for rows in measure.rows}
    if measure.gradients:
        for when, model in (("start", _first(components)), ("end", components.model)):
            norms = layer_gradients(components, model)
            found |= {f"gradient@{when}.layer{i}": norm for i, norm in enumerate(norms)}
            if norms and norms[0]:
                found[f"gradient@{when}.last_over_first"] = norms[-1] / norms[0]
    return found


def spikes(norms: Sequence[float | None]) -> int:
    """Steps whose gradient norm is far above those before it, or no number at all."""
    count, usual = 0, list[float]()
    for norm in norms:
        if norm is None or not math.isfinite(norm):
            count += 1
            continue
        count += len(usual) >= WINDOW // 4 and norm > SPIKE * float(np.median(usual[-WINDOW:]))
        usual.append(norm)
    return count


def steps_to(loss: float, curve: Sequence[tuple[int, int, float]]) -> float | None:
    """The step at which the held-out curve first reaches a loss, between two points by a straight line."""
    if curve and curve[0][2] <= loss:
        return float(curve[0][0])
    for (before, _, high), (after, _, low) in pairwise(curve):
        if low <= loss < high:
            return before + (after - before) * (high - loss) / (high - low)
    return None


def loss_at(components: Components, *, length: int = 0, rows: str = "") -> float | None:
    """Held-out loss in rows of another length or kind; None where the model can't read such rows."""
    config, spec = components.config, components.specs[-1]
    sizes = config.stages[-1]
    length = length or sizes.length
    if length > spec.context:
        return None
    kind: Any = rows or config.data.rows
    restart = config.data.restart or kind != "packed" or bool(rows)
    batch = max(1, sizes.batch * sizes.length // length)
    try:
        loader = BatchLoader(
            components.held_out, components.objective, spec=spec, length=length, batch=batch, seed=DRAW,
            rows=kind, packing=config.data.packing, restart=restart, version=VERSION,
        )  # fmt: skip
        with components.averaged():
            found = evaluate(components.model, loader, components.objective, precision=components.precision)
    except AnyformerError:
        return None
    return found.loss if math.isfinite(found.loss) else None


def _first(components: Components) -> Model:
    """The model as it was before the first step."""
    config, spec, device, dtype = components.config, components.spec, components.device, components.precision.dtype
    if config.model.weights:
        return load_weights(config.model.weights, spec, device, dtype).train()
    return build(spec, device=device, dtype=dtype, seed=config.run.seed).train()


def layer_gradients(components: Components, model: Model) -> list[float]:
    """The norm of the gradient of each layer on the first batch; the model is left as it was."""
    kept, device = {name: parameter.grad for name, parameter in model.named_parameters()}, components.device
    inputs = on_device(components.loader(0).batch(0), device)
    for parameter in model.parameters():
        parameter.grad = None
    with torch.random.fork_rng([device] if device.type == "cuda" else []), components.precision.products(device):
        # What is dropped is the same whatever was drawn before: in a run that was interrupted, too.
        torch.manual_seed(components.config.run.seed)
        with components.precision.step(device):
            terms = components.objective.loss(model, inputs)
        terms.total.backward()
    by_layer: dict[int, list[Any]] = {}
    for name, parameter in model.named_parameters():
        layer = LAYER.match(name)
        if layer and parameter.grad is not None:
            by_layer.setdefault(int(layer[1]), []).append(parameter.grad)
        parameter.grad = kept[name]
    return [float(total_norm(by_layer[i])) for i in sorted(by_layer)]
