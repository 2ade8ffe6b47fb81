"""All that is known about a spec, gathered for printing, for drawing and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anyformer.explain.axes import Axis, axes_of
from anyformer.explain.costs import Cost, Sizes, check_contexts, cost, sizes, usual_contexts
from anyformer.explain.drawing import sketch
from anyformer.explain.grid import picture_of
from anyformer.explain.groups import Group, groups
from anyformer.explain.hardware import Machine
from anyformer.explain.summary import exemptions, summary
from anyformer.families.family import Preset
from anyformer.families.zoo import known
from anyformer.specs.model import ModelSpec

PRESET = ("name", "also", "title", "params", "published", "evidence", "note")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A spec, explained."""

    name: str
    spec: ModelSpec
    preset: Preset | None
    varied: bool
    """Whether the spec differs from the preset that it comes from."""
    summary: str
    axes: tuple[Axis, ...]
    sizes: Sizes
    costs: tuple[Cost, ...]
    machine: Machine
    groups: tuple[Group, ...]
    exemptions: tuple[str, ...]

    @property
    def title(self) -> str:
        if self.preset is None:
            return self.name
        return f"{self.name}: {self.preset.title}{', varied' if self.varied else ''}"

    def counted(self) -> str:
        """The count, against the number that is known of the released model."""
        text = f"{self.sizes.params:,} parameters counted"
        if self.preset is None:
            return f"{text}."
        if self.varied:
            return f"{text}; {self.preset.params:,} before it was varied."
        if not self.preset.released:
            return f"{text}; its weights were never released, so there is no exact number to compare with."
        gap = self.sizes.params - self.preset.params
        compared = f"{abs(gap):,} {'more' if gap > 0 else 'less'} than" if gap else "as many as"
        return f"{text}, {compared} the released model has."

    def data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "preset": _fields(self.preset, *PRESET) if self.preset else None,
            "varied": self.varied,
            "summary": self.summary,
            "spec": self.spec.to_data(),
            "axes": [_axis(axis) for axis in self.axes],
            "parameters": {"total": self.sizes.params, "by_part": dict(self.sizes.by_part)},
            "weights_bytes": dict(self.sizes.weights_bytes),
            "costs": [asdict(each) | {"kv_bytes_per_token": each.kv_bytes_per_token} for each in self.costs],
            "machine": asdict(self.machine) | {"balance": self.machine.balance},
            "layers": [_group(group) for group in self.groups],
            "exemptions": list(self.exemptions),
        }


def preset_of(source: str) -> Preset | None:
    """The preset that a source names, if it is no file and no directory."""
    found = None if Path(source).suffix == ".toml" or Path(source).is_dir() else known(source)
    return found and found[1]


def report(
    spec: ModelSpec,
    machine: Machine,
    *,
    name: str,
    preset: Preset | None = None,
    varied: bool = False,
    contexts: Sequence[int] = (),
    layer: int | None = None,
) -> Report:
    """Explain a spec: at these contexts (default: a few up to its own), and only the layers alike to `layer`."""
    count = spec.count()
    chosen = check_contexts(spec, contexts) if contexts else usual_contexts(spec)
    return Report(
        name=name,
        spec=spec,
        preset=preset,
        varied=varied,
        summary=summary(spec),
        axes=axes_of(spec, layer),
        sizes=sizes(count),
        costs=tuple(cost(count, context, machine) for context in chosen),
        machine=machine,
        groups=tuple(groups(spec, layer)),
        exemptions=tuple(exemptions(spec)),
    )


def _fields(node: Any, *names: str) -> dict[str, Any]:
    return {name: list(value) if isinstance(value := getattr(node, name), tuple) else value for name in names}


def _axis(axis: Axis) -> dict[str, Any]:
    choices = [
        _fields(each.choice, "value", "words", "equation", "file")
        | {"layers": {stack: list(indices) for stack, indices in each.layers.items()}}
        for each in axis.placed
    ]
    return {"axis": axis.name, "choices": choices}


def _group(group: Group) -> dict[str, Any]:
    drawn = picture_of(group)
    return {
        "stack": group.stack.name,
        "layers": list(group.indices),
        "block": asdict(sketch(group)),
        "pattern": str(group.pattern),
        "drawn_as": str(drawn.drawn),
        "divided_by": drawn.divided,
        "grid": drawn.cells.astype(int).tolist(),
        "grids": {name: cells.astype(int).tolist() for name, cells in drawn.panels.items() if name},
    }
