"""Where the tensors of a published checkpoint go: one table for each family, read in both directions.

A rule names one of their tensors and the tensors of ours that it holds; its op only moves elements and has an inverse,
so that a checkpoint that was read and written again is the same to the last bit. In names, `{i}` runs over the layers,
`{p}` over `weight` and `bias`, and `{n}` over the first dimension of ours, where they have a tensor for each (experts).
A rule counts if our model has its tensors, so a table lists all that a family may have and needs no condition: biases,
untied heads, optional norms and dense layers among sparse ones come and go with the spec.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from anyformer.families.tensor_ops import JOINED, Joined, Shape
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """One of their tensors, ours that it holds, and how."""

    theirs: str
    ours: str | tuple[str, ...]
    op: Joined = JOINED


PARTS: dict[str, tuple[str, ...]] = {
    **{name: (f"attention.body.{name}",) for name in ("q", "k", "v", "o", "q_norm", "k_norm")},
    **{f"cross_{name}": (f"cross.body.{name}",) for name in "qkvo"},
    **{f"global_{name}": (f"attention.body.global_{name}",) for name in "qkv"},
    **{name: (f"ffn.body.{name}",) for name in ("gate", "up", "down")},
    "qkv": ("attention.body.q", "attention.body.k", "attention.body.v"),
    "gate_up": ("ffn.body.gate", "ffn.body.up"),
    **{
        f"{branch}_{slot}": (f"{branch}.{slot}",)
        for branch in ("attention", "cross", "ffn")
        for slot in ("inner", "outer", "after")
    },
}
"""Short names of a block's parts -> ours. A norm has that of its branch and its slot: before the branch, on its output,
or after the addition.
"""


def block_rules(
    theirs: str, parts: Mapping[str, str], ours: str = "decoder.blocks.{i}", *, op: Joined = JOINED
) -> tuple[Rule, ...]:
    """The rules of a block of theirs: for each part, what it is called there. `op` is that of a part made of several."""
    return tuple(
        Rule(
            f"{theirs}.{name}.{{p}}",
            tuple(f"{ours}.{own}.{{p}}" for own in PARTS[part]),
            op if len(PARTS[part]) > 1 else JOINED,
        )
        for part, name in parts.items()
    )


def decoder_map(
    layers: str,
    parts: Mapping[str, str],
    *more: Rule,
    op: Joined = JOINED,
    ignored: tuple[str, ...] = (),
    renamed: Mapping[str, str] | None = None,
    head: str = "lm_head",
) -> StateMap:
    """The table of a decoder by its names: the list of its layers, the parts of a block, and those of its body.

    The latter are called `tokens`, `positions` (of a learned table) and `final` (the norm at the end).
    """
    body = layers.rpartition(".")[0]
    table = f"{body}.{parts['tokens']}.weight"
    ends = (
        Rule(table, "embed.tokens.weight"),
        Rule(f"{body}.{parts.get('positions')}.weight", "decoder.positions.0.table"),
        Rule(f"{body}.{parts.get('final')}.{{p}}", "decoder.final_norm.{p}"),
        Rule(f"{head}.{{p}}", "head.{p}"),
    )
    inner = {part: name for part, name in parts.items() if part in PARTS}
    return StateMap(
        rules=(*ends, *block_rules(f"{layers}.{{i}}", inner, op=op), *more),
        copies={f"{head}.weight": table},
        ignored=ignored,
        prefix=f"{body}.",
        renamed=renamed or {},
    )


@dataclass(frozen=True)
class Entry:
    """A rule for one layer: names and shapes in full."""

    theirs: str
    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]
    op: Joined

    @property
    def shape(self) -> Shape:
        """The shape of theirs."""
        return self.op.shape(self.shapes)


@dataclass(frozen=True)
class Sines:
    """A table that a public class reads from its file and that is computed here: row p is [sin(p f) | cos(p f)]."""

    frequency: tuple[float, ...]
    first: int = 0
    """The first row that a token can have."""

    def differs(self, stored: Tensor) -> str | None:
        """How a stored table differs from it, beyond rounding; None if it does not."""
        import torch

        if stored.dim() != 2 or stored.shape[1] != 2 * len(self.frequency) or not stored.is_floating_point():
            return f"has shape {tuple(stored.shape)} and {stored.dtype}, not {2 * len(self.frequency)} numbers in a row"
        place = torch.arange(self.first, stored.shape[0], dtype=torch.float64, device=stored.device)
        angle = place[:, None] * torch.tensor(self.frequency, dtype=torch.float64, device=stored.device)
        gap = (torch.cat((angle.sin(), angle.cos()), -1) - stored[self.first :].double()).abs()
        # Files have it in 16 bits or in fp32, whose angles are off by up to 6e-8 for each position.
        limit = 2 * torch.finfo(stored.dtype).eps + 2.0**-22 * max(stored.shape[0], 1)
        worst = float(gap.max()) if gap.numel() else 0.0
        return None if worst <= limit else f"differs from the sines by up to {worst:.2g}"


@dataclass(frozen=True, kw_only=True)
class StateMap:
    """A family's table for one spec."""

    rules: tuple[Rule, ...]
    copies: Mapping[str, str] = field(default_factory=dict)
    """A name under which files may hold a tensor once more -> the name in the rules, e.g. that of a tied head."""
    repeated: tuple[str, ...] = ()
    """Those copies that files must hold, since the public class has a tensor of its own for each and ties none."""
    ignored: tuple[str, ...] = ()
    """Patterns of names that hold nothing learned, or nothing that this model uses; the public class reads none of them
    from its file but those in `computed`.
    """
    others: tuple[str, ...] = ()
    """Patterns among those of tensors that the public class does use, but for no text: how many there are is said."""
    computed: Mapping[str, Sines] = field(default_factory=dict)
    """Patterns among those that the public class does read -> what must stand there, since we compute it."""
    zeros: tuple[str, ...] = ()
    """Names that files may leave out where the tensor is 0, as the public class does."""
    prefix: str = ""
    """What files that were saved without the head leave out at the front of names."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Old endings of names -> the present ones."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """Patterns of names that the class uses in memory, but not in files -> those of files."""
    extra: str = ""
    """How a name ends that only an extra layer has, which predicts further tokens: all names beside it are ignored."""
    also: tuple[StateMap, ...] = ()
    """Tables of other layouts that files may have; this one is written."""

    def layout(self, spec: ModelSpec, stored: Mapping[str, Shape]) -> StateMap:
        """The table whose tensors these are: of this one and the others, that of which the largest share is there.

        Names that all of them have with the same shape say nothing. Where no shape fits, names alone decide.
        """
        tables = (self, *self.also)
        if len(tables) == 1:
            return self
        known = [{entry.theirs: entry.shape for entry in table.entries(spec)} for table in tables]
        shared = set.intersection(*(set(own.items()) for own in known))

        def share(place: int) -> tuple[float, float]:
            own, names = known[place].items() - shared, known[place].keys()
            there = {(tables[place].current(name, names), shape) for name, shape in stored.items()}
            wanted = {name for name, _ in own}
            named = wanted & {name for name, _ in there}
            return (len(own & there) / len(own), len(named) / len(wanted)) if own else (0.0, 0.0)

        return tables[max(range(len(tables)), key=share)]

    def as_encoder(self) -> StateMap:
        """The table of a decoder for an encoder with the same layers."""

        def moved(rule: Rule) -> Rule:
            names = (rule.ours,) if isinstance(rule.ours, str) else rule.ours
            return replace(rule, ours=tuple(re.sub(r"^decoder\.", "encoder.", name) for name in names))

        return replace(self, rules=tuple(map(moved, self.rules)), also=tuple(table.as_encoder() for table in self.also))

    def bare(self) -> StateMap:
        """The table of files without a head: names lack the prefix, and a head that is there all the same is ignored."""

        def holds_head(rule: Rule) -> bool:
            return (rule.ours if isinstance(rule.ours, str) else rule.ours[0]).startswith("head.")

        heads = {rule.theirs.replace("{p}", "weight") for rule in self.rules if holds_head(rule)}
        heads |= {rule.theirs.replace("{p}", "bias") for rule in self.rules if holds_head(rule)}
        heads |= {copy for copy, name in self.copies.items() if name in heads}
        return replace(
            self,
            rules=tuple(
                replace(rule, theirs=rule.theirs.removeprefix(self.prefix))
                for rule in self.rules
                if not holds_head(rule)
            ),
            copies={
                copy.removeprefix(self.prefix): name.removeprefix(self.prefix)
                for copy, name in self.copies.items()
                if copy not in heads
            },
            repeated=(),
            ignored=(*self.ignored, *map(re.escape, sorted(heads))),
            zeros=tuple(name.removeprefix(self.prefix) for name in self.zeros),
            prefix="",
            forms={**self.forms, f"^{re.escape(self.prefix)}": ""} if self.prefix else self.forms,
            also=tuple(table.bare() for table in self.also),
        )

    def entries(self, spec: ModelSpec) -> list[Entry]:
        """The rules that count for a spec, for every layer, in the order of our inventory."""
        inventory, stack = weights(spec), spec.stacks[-1]
        dims = spec.dims(stack.layers[0], stack)
        found: dict[str, Entry] = {}
        deepest = max(stack.depth for stack in spec.stacks)
        for rule in self.rules:
            names = (rule.ours,) if isinstance(rule.ours, str) else rule.ours
            layers = range(deepest) if "{i}" in rule.theirs else (0,)
            kinds = ("weight", "bias") if "{p}" in rule.theirs else ("weight",)
            op = rule.op.sized(dims)
            for i, p in itertools.product(layers, kinds):
                theirs, *own = (name.replace("{i}", str(i)).replace("{p}", p) for name in (rule.theirs, *names))
                if all(name in inventory for name in own):
                    ours = tuple(own)
                    shapes = tuple(inventory[name].shape for name in ours)
                    for n in range(shapes[0][0]) if "{n}" in theirs else (0,):
                        name = theirs.replace("{n}", str(n))
                        found.setdefault(name, Entry(name, ours, shapes, op.at(n)))
        order = {name: place for place, name in enumerate(inventory)}
        return sorted(found.values(), key=lambda entry: order[entry.ours[0]])

    def written(self, spec: ModelSpec) -> list[Entry]:
        """What files hold of a spec: the entries, and the copies that are needed beside them."""
        found = self.entries(spec)
        named = {entry.theirs: entry for entry in found}
        return found + [replace(named[self.copies[copy]], theirs=copy) for copy in self.repeated]

    def placed(self, stored: Iterable[str], known: Iterable[str]) -> dict[str, str]:
        """Present name -> stored name of all that is neither ignored nor a copy of something that is there too."""
        names, found, copies, given = set(known), dict[str, str](), dict[str, str](), list(stored)
        ignored = re.compile("|".join(f"(?:{pattern})" for pattern in self.ignored) or r"(?!)")
        extra = tuple(name.removesuffix(self.extra) for name in given if self.extra and name.endswith(self.extra))
        for name, current in self._renamed(given, names):
            if name.startswith(extra):
                continue
            if current in names:
                found[current] = name
            elif current in self.copies:
                copies[current] = name
            elif not ignored.fullmatch(name) and not ignored.fullmatch(current):
                found[current] = name
        for copy, name in copies.items():
            found.setdefault(self.copies[copy], name)
        return found

    def doubles(self, stored: Iterable[str], known: Iterable[str]) -> list[tuple[str, str]]:
        """Stored names of copies, with the present name of what they must equal."""
        names = set(known)
        renamed = self._renamed(stored, names)
        return [(name, self.copies[now]) for name, now in renamed if now not in names and now in self.copies]

    def _renamed(self, stored: Iterable[str], names: Set[str]) -> Iterator[tuple[str, str]]:
        """Stored names with their present ones. All known names are gathered once: files have tens of thousands."""
        known = names | self.copies.keys()
        return ((name, self.current(name, known)) for name in stored)

    def current(self, name: str, known: Set[str]) -> str:
        """The present name of a stored tensor."""
        for pattern, now in self.forms.items():
            name = re.sub(pattern, now, name)
        for old, new in self.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return self.prefix + name if name not in known and self.prefix + name in known else name


def uncovered(spec: ModelSpec, entries: Iterable[Entry]) -> list[str]:
    """Tensors of ours that no entry holds."""
    held = {name for entry in entries for name in entry.ours}
    return [name for name in weights(spec) if name not in held]
