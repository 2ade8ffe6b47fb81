"""The zoo as a table: what each preset is, in a few words for each axis that people ask about."""

from dataclasses import dataclass
from typing import get_args

from anyformer.errors import InputError, nearest
from anyformer.explain.axes import heads_name
from anyformer.explain.groups import groups
from anyformer.families.family import Family, Preset
from anyformer.families.zoo import UNDISCLOSED, known, presets
from anyformer.specs.layer import Topology

TOPOLOGIES = get_args(Topology)


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

    def matches(self, text: str) -> bool:
        """Whether a text is part of what the table shows of it."""
        names = ("name", "title", "family", "topology", "attention", "position", "ffn", "norm", "placement")
        return any(text.lower() in part.lower() for part in (*self.also, *(getattr(self, name) for name in names)))


def zoo_table(text: str = "") -> list[Entry]:
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
    spec = family.varied(preset.changes)
    alike = groups(spec)

    def joined(*values: str) -> str:
        return " + ".join(dict.fromkeys(values))

    copied = ("name", "also", "title", "params", "published", "evidence", "note")
    return Entry(
        # A test holds the counted number of parameters against the preset's; counting two hundred would take a second.
        **{name: getattr(preset, name) for name in copied},
        **{name: getattr(spec, name) for name in ("topology", "width", "vocab", "context")},
        family=family.kind,
        depth=sum(stack.depth for stack in spec.stacks),
        attention=joined(*(heads_name(group.dims) for group in alike)),
        position=joined(
            *(each.called() for each in (spec.embed.position, *(group.layer.position for group in alike)) if each)
        ),
        ffn=joined(*(group.layer.ffn.called() for group in alike)),
        norm=joined(*(group.layer.norm.leaf.called() for group in alike)),
        placement=joined(
            *(each for group in alike for each in (group.layer.norm.of_attention(), group.layer.norm.of_ffn()))
        ),
    )
