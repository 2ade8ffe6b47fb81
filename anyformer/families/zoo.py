"""The zoo: every preset of every family, by name."""

from __future__ import annotations

import difflib
import functools

from anyformer.errors import InputError
from anyformer.families.family import Family, Preset
from anyformer.specs.model import ModelSpec

UNDISCLOSED: dict[str, str] = {
    "gpt-4": "OpenAI has not published its architecture; what circulates is rumour",
    "reka-flash": "Reka's report names its parts and, of its sizes, 21B parameters only; Reka Flash 3 is in LLaMA's "
    "format, so that its directory can be loaded",
    "anthropic-lm-52b": "Anthropic's 2021 papers call it a decoder-only Transformer of 52B parameters and say no more",
}
"""Models that people look for and that can't have a preset, with the reason."""

UNDISCLOSED_TOO = {"gpt4": "gpt-4", "anthropic-lm": "anthropic-lm-52b", "anthropic-52b": "anthropic-lm-52b"}
"""Other names of those."""


@functools.cache
def presets() -> dict[str, tuple[type[Family], Preset]]:
    """Name -> family and preset, in the order of the families' files; other names of a preset follow its own."""
    found: dict[str, tuple[type[Family], Preset]] = {}
    for kind in Family.kinds():
        family = Family.named(kind)
        if family is None:
            continue
        for preset in family.presets:
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
    found = presets().get(name)
    if found is not None:
        return found
    lower = name.lower()
    undisclosed = UNDISCLOSED_TOO.get(lower, lower)
    if undisclosed in UNDISCLOSED:
        raise InputError(f"{name!r} has no preset: {UNDISCLOSED[undisclosed]}")
    close = difflib.get_close_matches(lower, presets(), n=3, cutoff=0.5)
    hint = f"; the nearest presets are {', '.join(close)}" if len(close) > 1 else ""
    hint = f"; the nearest preset is {close[0]}" if len(close) == 1 else hint
    raise InputError(f"{name!r} is no preset, no .toml file and no directory{hint}; all of them: anyformer zoo")
