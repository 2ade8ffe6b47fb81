"""The zoo: every preset of every family, by name."""

from __future__ import annotations

import functools

from anyformer.errors import SpecError, nearest
from anyformer.families.family import Family, Preset
from anyformer.specs.model import ModelSpec


@functools.cache
def presets() -> dict[str, tuple[type[Family], Preset]]:
    """Name -> family and preset, in the order of the families' files; other names of a preset follow its own."""
    found: dict[str, tuple[type[Family], Preset]] = {}
    for kind in Family.kinds():
        family = Family.named(kind)
        for preset in family.presets if family is not None else ():
            for name in (preset.name, *preset.also):
                if name in found:
                    raise TypeError(f"preset {name!r} stands in {kind} and in {found[name][0].kind}")
                found[name] = family, preset
    return found


def zoo() -> tuple[str, ...]:
    """Every name that `anyformer.spec` knows."""
    return tuple(presets())


def named(name: str) -> ModelSpec:
    """The spec of a preset."""
    family, preset = find(name)
    return family.spec(preset)


def find(name: str) -> tuple[type[Family], Preset]:
    """The family and the preset of a name; the nearest names if there is none."""
    if name not in presets():
        raise SpecError([f"{name!r} is no preset{nearest(name, presets())}, no .toml file and no directory"])
    return presets()[name]
