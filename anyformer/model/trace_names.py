"""The names of what a trace can show of a model, and which of them a caller asked for."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from anyformer.errors import InputError, nearest
from anyformer.specs.model import ModelSpec

ALL = "all"
EMBED = "embed"
PROBS, LOGITS = ".probs", ".logits"
Wanted = str | int | Iterable[str | int] | None


class Sites:
    """Every name of a model: of residuals, of attention weights, and of logits by layer.

    Layer numbers are those of the last stack: the only one, or the decoder of an encoder-decoder.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.residuals: list[str] = []
        self.attention: dict[str, int] = {}
        """By name, how many heads there are."""
        self.of_layer: list[list[str]] = []
        """By layer of the last stack, the residual after it: one name, or one for each of two streams."""
        for stack in spec.stacks:
            self.of_layer = []
            self.residuals.append(f"{stack.name}.{EMBED}")
            for i, layer in enumerate(stack.layers):
                at, wiring = f"{stack.name}.{i}", layer.block.wiring
                mixes = ("attention", "cross") if stack.cross else ("attention",)
                self.attention |= {f"{at}.{name}{PROBS}": layer.attention.heads for name in mixes}
                if wiring in ("serial", "reversible"):
                    # Branches in parallel are added at once: there is nothing between them.
                    self.residuals += [f"{at}.{name}.residual" for name in (*mixes, "ffn")]
                after = [f"{at}.residual.{n}" for n in (0, 1)] if wiring == "reversible" else [f"{at}.residual"]
                self.of_layer.append(after)
                self.residuals += after
            self.residuals.append(f"{stack.name}.final")
        self.last = spec.stacks[-1].name
        self.has_head = spec.head.kind != "none"
        self.logits = [f"{self.last}.{at}{LOGITS}" for at in (EMBED, *range(len(self.of_layer)))]

    def pick_residuals(self, wanted: Wanted, problems: list[str]) -> set[str]:
        """Names of residuals; what can't be found goes to `problems`."""
        return set(self._pick(wanted, self.residuals, "residuals", self.of_layer, problems))

    def pick_logits(self, wanted: Wanted, problems: list[str]) -> list[str]:
        """Names of logits, from the first layer to the last."""
        if wanted is not None and not self.has_head:
            problems.append("logits: this model has no head; leave them out, and read its residuals")
            return []
        by_layer = [[name] for name in self.logits[1:]]
        found = set(self._pick(wanted, self.logits, "logits", by_layer, problems, {EMBED: self.logits[0]}))
        return [name for name in self.logits if name in found]

    def pick_heads(self, wanted: Any, problems: list[str]) -> dict[str, tuple[int, ...]]:
        """The heads of each attention that is asked for."""
        if wanted is None or wanted == ALL:
            return {name: tuple(range(n)) for name, n in self.attention.items()} if wanted == ALL else {}
        if not isinstance(wanted, Mapping):
            problems.append(
                f"attention: expected 'all' or a table such as {{0: 'all', 3: [0, 2]}}, got {type(wanted).__name__}"
            )
            return {}
        known = [name.removesuffix(PROBS) for name in self.attention]
        by_layer = [[f"{self.last}.{n}.attention"] for n in range(len(self.of_layer))]
        found: dict[str, tuple[int, ...]] = {}
        for layer, heads in wanted.items():
            one = layer if isinstance(layer, int) else str(layer).removesuffix(PROBS)
            for at in self._pick([one], known, "attention", by_layer, problems):
                name = at + PROBS
                found[name] = chosen_heads(heads, self.attention[name], name, problems)
        return found

    def _pick(
        self,
        wanted: Wanted,
        known: list[str],
        what: str,
        by_layer: list[list[str]],
        problems: list[str],
        short: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Known names that are meant by names, which may hold `*` or be `short`, and by numbers of layers."""
        if wanted is None or wanted == ALL:
            return known if wanted == ALL else []
        found: list[str] = []
        depth = len(by_layer)
        for each in (wanted,) if isinstance(wanted, str | int) else wanted:
            if not isinstance(each, int):
                name = (short or {}).get(str(each), str(each))
                meant = [one for one in known if fnmatchcase(one, name)]
                found += meant
                if not meant:
                    problems.append(f"{what}: {name!r} is no name of this model{nearest(name, known)}")
            elif -depth <= each < depth:
                found += by_layer[each]
            else:
                problems.append(f"{what}: there is no layer {each}; the {self.last} has layers 0 to {depth - 1}")
        return found


def chosen_heads(wanted: Any, heads: int, name: str, problems: list[str]) -> tuple[int, ...]:
    """The numbers of heads, in the order in which they were asked for."""
    if isinstance(wanted, str):
        if wanted != ALL:
            problems.append(f"attention: {name}: expected 'all' or numbers of heads, got {wanted!r}")
        return tuple(range(heads))
    numbers = (wanted,) if isinstance(wanted, int) else tuple(wanted)
    wrong = [n for n in numbers if not isinstance(n, int) or not 0 <= n < heads]
    if wrong or not numbers:
        which = ", ".join(map(str, wrong)) or "none given"
        problems.append(f"attention: {name}: it has heads 0 to {heads - 1}, and no {which}")
        return ()
    return numbers


def refuse(problems: list[str]) -> None:
    """Raise all problems at once, if there are any."""
    if problems:
        raise InputError("trace: " + "\n  ".join(problems))
