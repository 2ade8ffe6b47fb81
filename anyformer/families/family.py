"""What a family of published models is: its specs by name, how its config.json reads, and where its weights go.

A family is a leaf: one file, found by its name, with no forward pass of its own. What a model needs that a spec
can't say yet becomes a leaf of another axis first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from anyformer.registry import OpenAxis
from anyformer.specs.changes import vary
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One published model, as data."""

    name: str
    also: tuple[str, ...] = ()
    """Other names under which people look for it."""
    title: str
    """What it is called in print, with its year."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What it has otherwise than the family's base, by dotted names."""
    params: int
    """Unique parameters, counted on the public class or as published."""
    published: str
    """What the publisher says about that number."""
    evidence: str
    """Where the values were read."""
    note: str = ""


class Family(OpenAxis, axis="family", leaves="anyformer.families"):
    """Base of the families."""

    base: ClassVar[Mapping[str, Any]]
    """What all models of the family share, as a spec's data; sizes come from the presets."""
    presets: ClassVar[tuple[Preset, ...]] = ()

    @classmethod
    def spec(cls, preset: Preset) -> ModelSpec:
        """The spec of one of the family's presets."""
        return ModelSpec.from_data(vary(ModelSpec, dict(cls.base), preset.changes))
