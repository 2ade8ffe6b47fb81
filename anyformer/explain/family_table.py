"""Every published type of text model: whether its checkpoints can be read, and how they compare with its class."""

import difflib
from dataclasses import dataclass
from typing import Literal, get_args

from anyformer.errors import InputError
from anyformer.families.config_values import read_by
from anyformer.families.family import Family, families
from anyformer.families.towers import TOWERS, Tower
from anyformer.families.unsupported import unsupported
from anyformer.specs.layer import Topology

State = Literal["equal", "equal, with an exemption", "no public class", "not supported"]
TOPOLOGIES = get_args(Topology)


@dataclass(frozen=True, kw_only=True)
class PublishedType:
    """One `model_type` of config.json."""

    model_type: str
    family: str | None
    """Its kind here."""
    architecture: str
    """The class that it is held against; empty where it can't be read."""
    topology: str
    state: State
    why: str = ""
    """The exemption, or what it would need."""

    @property
    def said(self) -> str:
        """The state in words."""
        match self.state:
            case "equal, with an exemption":
                return f"equal, except {self.why}"
            case "not supported":
                return f"not supported: needs {self.why}"
            case _:
                return self.state

    def matches(self, text: str) -> bool:
        """Whether a text is part of what the table shows of it."""
        shown = (self.model_type, self.family or "", self.architecture, self.topology, self.said)
        return any(text.lower() in part.lower() for part in shown)


def family_table(text: str = "") -> list[PublishedType]:
    """Every type, or those that match a text: what can be read by topology and name, then the rest."""
    read = [_read(family, name) for family in families() for name in (family.model_type, *family.also_types)]
    read += [_tower(tower) for tower in TOWERS]
    read.sort(key=lambda each: (TOPOLOGIES.index(each.topology), each.model_type))
    needs = sorted(unsupported().items())
    rest = [_unsupported(name, need) for name, need in needs]
    found = [each for each in (*read, *rest) if each.matches(text)]
    if not found:
        near = difflib.get_close_matches(text, [each.model_type for each in (*read, *rest)], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{text!r} matches no type{hint} (without a filter all {len(read) + len(rest)} are listed)")
    return found


def _read(family: type[Family], name: str) -> PublishedType:
    state: State = "equal"
    if read_by(family.architectures[0]) is None:
        state = "no public class"
    elif family.exempt:
        state = "equal, with an exemption"
    return PublishedType(
        model_type=name, family=family.kind, architecture=family.architectures[0],
        topology=str(family.base.get("topology", "decoder")), state=state, why=family.exempt,
    )  # fmt: skip


def _tower(tower: Tower) -> PublishedType:
    kinds = {family.model_type: family.kind for family in families()}
    inner = next(iter(tower.types.values()))
    return PublishedType(
        model_type=tower.model_type, family=kinds[inner], architecture=tower.architectures[0], topology="decoder",
        state="equal, with an exemption", why="what is not text: the language model is read, images are not",
    )  # fmt: skip


def _unsupported(name: str, need: str) -> PublishedType:
    return PublishedType(model_type=name, family=None, architecture="", topology="", state="not supported", why=need)
