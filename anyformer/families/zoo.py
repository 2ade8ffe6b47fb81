"""The zoo: every preset of every family, by name."""

import difflib
import functools
import re

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


@functools.cache
def _by_key() -> dict[str, tuple[type[Family], Preset]]:
    """What `find` knows, in small letters: names, other names, and repositories of the hub with and without their owner."""
    found = {name.lower(): made for name, made in presets().items()}
    for family, preset in presets().values():
        for repository in preset.hub:
            for key in (repository.lower(), repository.lower().partition("/")[2]):
                if found.setdefault(key, (family, preset))[1] is not preset:
                    raise TypeError(f"{repository!r} of preset {preset.name!r} is a name of {found[key][1].name!r}")
    return found


def zoo() -> tuple[str, ...]:
    """The names of all presets, other names included. `anyformer.spec` takes them in any case, and behind an owner's."""
    return tuple(presets())


def named(name: str) -> ModelSpec:
    """The spec of a preset."""
    family, preset = find(name)
    return family.varied(preset.changes)


def known(name: str) -> tuple[type[Family], Preset] | None:
    """The family and the preset of a name, in any case, also behind somebody's name on the hub; None: there is none."""
    lower = name.lower()
    return _by_key().get(lower) or _by_key().get(lower.partition("/")[2])


def find(name: str) -> tuple[type[Family], Preset]:
    """The family and the preset of a name; what else may be meant if there is none."""
    lower = name.lower()
    if found := known(name):
        return found
    undisclosed = UNDISCLOSED_TOO.get(lower, lower)
    if undisclosed in UNDISCLOSED:
        raise InputError(f"{name!r} has no preset: {UNDISCLOSED[undisclosed]}")
    wider = _beginning(lower)
    if len(wider) > 1:
        raise InputError(f"{name!r} is the name of several presets; say which: {_listed(wider)}")
    close = wider or _near(lower)
    hint = f"; the nearest presets are {', '.join(close)}" if len(close) > 1 else ""
    hint = f"; the nearest preset is {close[0]}" if len(close) == 1 else hint
    raise InputError(f"{name!r} is no preset, no .toml file and no directory{hint}; all of them: anyformer zoo")


def _beginning(name: str) -> list[str]:
    """Presets whose name goes on after this one: sizes of llama-3, but not llama-33b, which is another number."""
    stem = name.rstrip("-_. ")
    # A number goes on with no digit; a word without one begins qwen2 as well as qwen-7b.
    end = re.compile(rf"{re.escape(stem)}(?![a-z0-9])" if stem[-1:].isdigit() else rf"{re.escape(stem)}(?![a-z])")
    return [own for own, (_, preset) in presets().items() if own == preset.name and stem and end.match(own)]


def _listed(names: list[str]) -> str:
    """Names of presets; where there are several families, of each of them the first and the last."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(presets()[name][0].kind, []).append(name)
    if len(kinds) == 1:
        return ", ".join(names)
    few = (", ".join(some) if len(some) < 3 else f"{some[0]} to {some[-1]} ({len(some)})" for some in kinds.values())
    return "; ".join(few)


def _near(name: str) -> list[str]:
    """Presets that are spelled alike and have a number in common, if there is one: 3 and 33 are as far apart as 3 and 7."""
    numbers = {*re.findall(r"\d+", name)}
    alike = [own for own in presets() if not numbers or numbers & {*re.findall(r"\d+", own)}]
    close = difflib.get_close_matches(name.partition("/")[2] or name, alike, n=12, cutoff=0.5)
    # By the name that is spelled most alike, and each once, whatever its other names are.
    found = {presets()[own][1].name: own for own in reversed(close)}
    return [own for own in close if own in found.values()][:3]
