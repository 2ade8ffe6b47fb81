"""Which family a config.json belongs to, and what to answer where there is none."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from anyformer.errors import SpecError
from anyformer.families.family import Family, families, stem_of
from anyformer.families.towers import inside, tower_of
from anyformer.families.unsupported import unsupported

LISTED = "anyformer zoo --families lists every type"


def family_of(config: Mapping[str, Any], source: str = "", where: str = "") -> type[Family]:
    """The family whose checkpoints a config describes, by its `architectures`, or else its `model_type`.

    Keys are named with `where` in front of them.
    """
    if (tower := tower_of(config)) is not None:
        return inside(tower, family_of({"model_type": tower.text_type(config, source)}, source, "text_config."))
    named, kind = config.get("architectures"), config.get("model_type")
    if isinstance(named, list) and named:
        known = {name: family for family in families() for name in (*family.architectures, *family.bodies)}
        for family in families():
            known |= {name: family for name in family.task_classes() if name not in known}
        found = next((known[name] for name in named if isinstance(name, str) and name in known), None)
        if found is None:
            need = _need(kind or stem_of(str(named[0])))
            why = f"architectures: {named!r} has no class that we read{need or _near_class(str(named[0]), known)}"
            raise SpecError([why], source)
        if kind is not None and kind not in (found.model_type, *found.also_types):
            why = f"model_type: {kind!r} does not go with architectures {named!r}, which are {found.model_type!r}"
            raise SpecError([why], source)
        return found
    # Where two classes share a type, it means the first.
    ordered = sorted(families(), key=lambda f: f.second, reverse=True)
    types = {name: family for family in ordered for name in (family.model_type, *family.also_types)}
    if not isinstance(kind, str) or kind not in types:
        if need := _need(kind):
            raise SpecError([f"{where}model_type: {kind!r} can't be read yet{need}"], source)
        given = "is missing" if kind is None else f"{kind!r} is unknown"
        known = _near_class(str(kind), types)
        why = f"{where}model_type: {given}, and there are no architectures{known}; write the right one"
        raise SpecError([why], source)
    return types[kind]


def _need(kind: object) -> str:
    """A clause with what a type that is known and can't be read would need; empty for any other.

    Classes are called like their types, in capitals and without the lines between words.
    """
    plain = {re.sub(r"\W|_", "", name).lower(): need for name, need in unsupported().items()}
    need = plain.get(re.sub(r"\W|_", "", kind).lower()) if isinstance(kind, str) else None
    return "" if need is None else f": it needs {need} ({LISTED})"


def _near_class(name: str, known: Iterable[str]) -> str:
    """A clause with the class that is spelled nearly so, and how to see all that there are.

    Classes end alike (ForCausalLM), and a number makes another family of one: neither makes two names near.
    """
    numbers = re.findall(r"\d+", name)
    alike: dict[str, str] = {}
    for option in known:
        if re.findall(r"\d+", option) == numbers:
            alike.setdefault(stem_of(option).lower(), option)
    match = difflib.get_close_matches(stem_of(name).lower(), alike, n=1, cutoff=0.8)
    return f"{f'; did you mean {alike[match[0]]!r}?' if match else ''} ({LISTED})"
