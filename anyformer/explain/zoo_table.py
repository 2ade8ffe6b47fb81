"""The zoo as a table: what each preset is, in a few words for each axis that people ask about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from anyformer.errors import InputError, nearest
from anyformer.explain.closed_axes import heads_name
from anyformer.explain.groups import Group, groups
from anyformer.families.family import Family, Preset
from anyformer.families.zoo import UNDISCLOSED, known, presets

TOPOLOGIES = ("decoder", "encoder", "encoder-decoder")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One preset. Where layers differ, the values of all of them are joined by a plus."""

    name: str
    also: tuple[str, ...]
    title: str
    family: str
    params: int
    topology: str
    depth: int
    width: int
    vocab: int
    context: int
    attention: str
    position: str
    ffn: str
    norm: str
    placement: str
    published: str
    evidence: str
    note: str

    def data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self) | {"also": list(self.also)}

    def matches(self, text: str) -> bool:
        """Whether a text is part of what the table shows of it."""
        shown = (
            self.name, *self.also, self.title, self.family, self.topology, self.attention, self.position, self.ffn,
            self.norm, self.placement,
        )  # fmt: skip
        return any(text.lower() in part.lower() for part in shown)


def catalogue(text: str = "") -> list[Entry]:
    """Every preset, or those that match a text, by topology and then in the order of the families' files."""
    distinct = {preset.name: (family, preset) for family, preset in presets().values()}
    entries = [_entry(family, preset) for family, preset in distinct.values()]
    meant = known(text)
    found = [entry for entry in entries if entry.matches(text) or (meant is not None and entry.name == meant[1].name)]
    if not found and not undisclosed(text):
        names = [name for entry in entries for name in (entry.name, *entry.also)]
        raise InputError(f"{text!r} matches no preset{nearest(text, names)}")
    return sorted(found, key=lambda entry: TOPOLOGIES.index(entry.topology))


def undisclosed(text: str = "") -> dict[str, str]:
    """Models that match a text and can't have a preset, with the reason."""
    return {name: why for name, why in UNDISCLOSED.items() if text.lower() in name}


def _entry(family: type[Family], preset: Preset) -> Entry:
    spec = family.spec(preset)
    alike = groups(spec)

    def joined(*values: str) -> str:
        return " + ".join(dict.fromkeys(values))

    return Entry(
        name=preset.name,
        also=preset.also,
        title=preset.title,
        family=family.kind,
        # A test holds the counted number against this one; counting two hundred specs would take a second.
        params=preset.params,
        topology=spec.topology,
        depth=sum(stack.depth for stack in spec.stacks),
        width=spec.width,
        vocab=spec.vocab,
        context=spec.context,
        attention=joined(*(heads_name(group.dims) for group in alike)),
        position=joined(*(group.layer.position.called() for group in alike)),
        ffn=joined(*(group.layer.ffn.called() for group in alike)),
        norm=joined(*(group.layer.norm.leaf.called() for group in alike)),
        placement=joined(*(place for group in alike for place in _placements(group))),
        published=preset.published,
        evidence=preset.evidence,
        note=preset.note,
    )


def _placements(group: Group) -> tuple[str, str]:
    return group.layer.norm.of_attention(), group.layer.norm.of_ffn()
