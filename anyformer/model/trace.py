"""`model.trace(...)`: one pass, and what it showed: residuals, attention weights and predictions of any layer, by name.

A second shell around a model's parameters records what passes through it; the model itself is not touched. No flag in
the forward pass, no hook on a module that others use: a trace runs beside training and serving.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from anyformer.errors import InputError, nearest
from anyformer.kernels.attention.reference import scores
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs, Kernel
from anyformer.kernels.precision import no_autocast
from anyformer.model.block import Block, Branch
from anyformer.model.model import Model, Output
from anyformer.model.stack import Stack
from anyformer.model.token_layout import TokenLayout
from anyformer.parts.attention import Attention
from anyformer.parts.attention_metadata import AttentionMetadata, gather_tokens
from anyformer.parts.global_attention import put_global_rows
from anyformer.parts.heads import answered, eos_among, pool_hidden
from anyformer.parts.replay import ReplayLog
from anyformer.specs.model import ModelSpec
from anyformer.specs.patterns import Tokens

Made = TypeVar("Made", bound=nn.Module)
ROOM = 1 << 24
"""Scores that are in memory at once, of all heads."""
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

    def pick_logits(self, wanted: Wanted, problems: list[str]) -> list[str]:
        """Names of logits, from the first layer to the last."""
        if wanted is not None and not self.has_head:
            problems.append("logits: this model has no head; leave them out, and read its residuals")
            return []
        by_layer = [[name] for name in self.logits[1:]]
        found = set(self.pick(wanted, self.logits, "logits", by_layer, problems, {EMBED: self.logits[0]}))
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
            for at in self.pick([one], known, "attention", by_layer, problems):
                name = at + PROBS
                found[name] = chosen_heads(heads, self.attention[name], name, problems)
        return found

    def pick(
        self,
        wanted: Wanted,
        known: list[str],
        what: str,
        by_layer: list[list[str]],
        problems: list[str],
        short: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Known names that `wanted` means, by name (with `*`, or `short`) or number of a layer; others go to `problems`."""
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


class Trace(Mapping[str, Tensor]):
    """Tensors of one pass by their names, and its output. See docs/trace.md for the names.

    It is a record without gradients: later changes of the weights reach nothing but `lens`.
    """

    def __init__(
        self,
        output: Output,
        tensors: Mapping[str, Tensor],
        heads: Mapping[str, tuple[int, ...]],
        read: Callable[[list[Tensor]], Tensor],
        sites: Sites,
    ) -> None:
        self.output = output
        """What `model(...)` gives for the same arguments, in eval mode."""
        self.heads = dict(heads)
        """The heads of each `*.probs`, in the order in which it holds them."""
        self._tensors, self._read, self._sites = dict(tensors), read, sites

    def lens(self, layer: int | str) -> Tensor:
        """The logits after a layer (or `"embed"`), computed now from its residual, for who can't keep those of all layers.

        See `docs/trace.md` for what stands between the residual and the head.
        """
        problems: list[str] = []
        names = self._sites.pick_logits([layer], problems)
        refuse(problems)
        with torch.no_grad():
            return self._read([self[each] for each in after(names[0], self._sites)])

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise KeyError(f"{name!r} was not traced{nearest(str(name), self._tensors)}")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        lines = [f"  {name}  {tuple(tensor.shape)}" for name, tensor in self._tensors.items()]
        return "\n".join(["Trace of", *lines])


def trace(
    model: Model, given: Mapping[str, Any], *, residuals: Wanted = None, attention: Any = None, logits: Wanted = None
) -> Trace:
    """See `Model.trace`."""
    sites, problems = Sites(model.spec), []
    if given.get("cache") is not None:
        problems.append("cache: a trace reads the whole text in one pass; leave the cache out")
    kept = set(sites.pick(residuals, sites.residuals, "residuals", sites.of_layer, problems))
    heads = sites.pick_heads(attention, problems)
    predicted = sites.pick_logits(logits, problems)
    refuse(problems)
    behind = {name: after(name, sites) for name in predicted}
    watch = Watch(model, kept.union(*behind.values()), heads)

    def read(streams: list[Tensor]) -> Tensor:
        """What the model would answer if the residual after some layer were that after the last: merged where there are
        two streams, through the final norm if there is one, and through the head.
        """
        states, valid = getattr(watch.model, sites.last).finish(streams), watch.layouts[sites.last].valid_BT
        head: Any = watch.model.head
        ids = next((given[name] for name in ("decoder_input_ids", "input_ids") if given.get(name) is not None), None)
        ends = eos_among(model.spec, None if ids is None else ids.flatten(0, -2))
        read = pool_hidden(model.spec.head, states, valid, given.get("token_types"), ends)
        answer = answered(model.spec.head, head(read), valid)
        return answer.view_as(output.logits) if model.spec.head.kind == "choice" else answer

    with torch.no_grad():
        output, found = watch.model(**given), watch.found
        for name, streams in behind.items():
            found[name] = read([found[each] for each in streams])
    asked = set() if residuals == ALL else kept
    asked = asked if attention == ALL else asked | heads.keys()
    missed = sorted(name for name in asked if name not in found)
    if missed:
        # Nothing else can keep a layer from running.
        raise InputError(f"trace: {', '.join(missed)}: the encoder did not run, as encoder_states were given")
    order = [*sites.residuals, *sites.attention, *sites.logits]
    shown = kept | heads.keys() | set(predicted)
    tensors = {name: found[name] for name in order if name in shown and name in found}
    return Trace(output, tensors, {name: some for name, some in heads.items() if name in found}, read, sites)


def after(name: str, sites: Sites) -> list[str]:
    """The residuals whose prediction a name means."""
    layer = name.removeprefix(f"{sites.last}.").removesuffix(LOGITS)
    return [f"{sites.last}.{EMBED}"] if layer == EMBED else sites.of_layer[int(layer)]


def twin(module: Made) -> Made:
    """Modules of its own around the same parameters, in eval mode and not compiled; hooks that were there run too."""
    made = copy.copy(module)
    own = vars(made)
    own |= {name: copy.copy(value) for name, value in own.items() if "_hooks" in name}
    own["_modules"] = {name: child if child is None else twin(child) for name, child in module._modules.items()}
    own["training"], own["_compiled_call_impl"] = False, None
    return made


class Watch:
    """What one pass showed, by name: residuals and attention weights that were asked for."""

    def __init__(self, model: Model, residuals: Set[str], heads: Mapping[str, tuple[int, ...]]) -> None:
        self.residuals, self.heads = residuals, heads
        self.found: dict[str, Tensor] = {}
        self.layouts: dict[str, TokenLayout] = {}
        """Where the tokens of each stack are."""
        self.model = twin(model)
        for stack in model.spec.stacks:
            self._stack(cast(Stack, getattr(self.model, stack.name)), stack.name)

    def keep(self, name: str, value: Tensor) -> None:
        """Record a residual if somebody asked for it."""
        if name in self.residuals:
            self.found[name] = value

    def _stack(self, stack: Stack, name: str) -> None:
        def begin(_: nn.Module, args: tuple[Any, ...]) -> None:
            self.layouts[name] = args[1]

        def end(_: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            self.keep(f"{name}.final", out)

        stack.register_forward_pre_hook(begin)
        stack.register_forward_hook(end)
        if stack.shared:
            # A module for each layer that runs the block: what one layer shows is not another's.
            stack.blocks = nn.ModuleList(twin(stack.blocks[i]) for i in stack.shared)
            stack.shared = tuple(range(len(stack.blocks)))
        for i, module in enumerate(stack.blocks):
            self._block(cast(Block, module), f"{name}.{i}", f"{name}.{EMBED}" if i == 0 else "")

    def _block(self, block: Block, at: str, before: str) -> None:
        reversible = block.wiring == "reversible"
        streams: list[Tensor] = []

        def begin(_: nn.Module, args: tuple[Any, ...]) -> None:
            if reversible:
                streams[:] = args[0]
            self.keep(before, args[0][0] if reversible else args[0])

        def end(_: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            each = {f"{at}.residual.{n}": x for n, x in enumerate(out)} if reversible else {f"{at}.residual": out}
            for name, value in each.items():
                self.keep(name, value)
            streams.clear()

        block.register_forward_pre_hook(begin)
        block.register_forward_hook(end)
        branches = {name: child for name, child in block.named_children() if isinstance(child, Branch)}
        for order, (name, branch) in enumerate(branches.items()):
            if block.serial:
                vars(branch)["residual_add"] = partial(self._residual_add, branch, f"{at}.{name}.residual")
            elif reversible:
                branch.register_forward_hook(partial(self._added, streams, order % 2, f"{at}.{name}.residual"))
            probs = f"{at}.{name}{PROBS}"
            if probs in self.heads:
                vars(branch.body)["mix"] = partial(self._mix, cast(Attention, branch.body), probs)

    def _residual_add(self, branch: Branch, name: str, x_BTD: Tensor, *args: Any, inplace: bool = False) -> Tensor:
        """Adds a branch to the residual, as it does by itself."""
        # Not in place, whoever asks for it: what was kept before must stay.
        out = Branch.residual_add(branch, x_BTD, *args)
        self.keep(name, out)
        return out

    def _added(self, streams: list[Tensor], to: int, name: str, _: nn.Module, args: tuple[Any, ...], y: Tensor) -> None:
        """Adds up what the branches of a reversible block give, as the block does."""
        streams[to] = streams[to] + y
        self.keep(name, streams[to])

    def _mix(
        self,
        body: Attention,
        name: str,
        q_BTHK: Tensor,
        k_BSGK: Tensor,
        v_BSGK: Tensor,
        metadata: AttentionMetadata,
        mask: AttentionMask,
        kernel: Kernel | None,
        *rest: Any,
    ) -> Tensor:
        """Computes the weights of one attention beside its own way to the output, from the same queries and keys."""
        if kernel is None:
            return self._attend_custom(body, name, q_BTHK, k_BSGK, v_BSGK, metadata)

        def run(q: Tensor, k: Tensor, v: Tensor, terms: AttentionArgs) -> Tensor:
            probs, rows = probabilities(q, k, terms, self.heads[name]), metadata.globals_
            if rows is not None and mask is rows.mask:
                # Their rows stand in the places of those without projections of their own.
                before_BTHS, probs_BNHS = self.found[name].transpose(1, 2), probs.transpose(1, 2)
                probs = put_global_rows(before_BTHS, probs_BNHS, rows).transpose(1, 2)
            self.found[name] = probs
            return kernel.run(q, k, v, terms)

        return Attention.mix(body, q_BTHK, k_BSGK, v_BSGK, metadata, mask, kernel._replace(run=run), *rest)

    def _attend_custom(
        self, body: Attention, name: str, q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """The same of a mixer with a way of its own."""
        made = ReplayLog()
        out = body.attend_custom(q_BTHK, k_BSGK, v_BSGK, dataclasses.replace(metadata, decisions=made))

        def again(values_BSGK: Tensor) -> Tensor:
            return body.attend_custom(
                q_BTHK, k_BSGK, values_BSGK, dataclasses.replace(metadata, decisions=made.replay())
            )

        # What is drawn once more must not change what is drawn next.
        with torch.random.fork_rng([q_BTHK.device] if q_BTHK.is_cuda else []):
            self.found[name] = effective(again, v_BSGK, self.heads[name])
        return out


def probabilities(q_BTHK: Tensor, k_BSGK: Tensor, terms: AttentionArgs, heads: Sequence[int]) -> Tensor:
    """Weights (B, chosen heads, T, S) as the mixer makes them, in promote(dtype, float32); some queries at a time."""
    batch, queries, all_heads, _ = q_BTHK.shape
    step = max(1, ROOM // max(1, batch * all_heads * k_BSGK.shape[1]))
    found: list[Tensor] = []
    with no_autocast(q_BTHK):
        for start in range(0, queries, step):
            rows = slice(start, min(start + step, queries))
            score = scores(q_BTHK[:, rows], k_BSGK, terms if step >= queries else some_queries(terms, rows))
            found.append(terms.mixer.weigh(score, terms.own)[:, list(heads)])
    return torch.cat(found, 2)


def some_queries(terms: AttentionArgs, rows: slice) -> AttentionArgs:
    """The same terms for some of the queries."""
    mask, added = terms.mask, terms.scores
    index = torch.arange(rows.start, rows.stop, device=mask.q.pos.device)[None]
    part = AttentionMask(
        mask.pattern, Tokens(*(gather_tokens(value, index) for value in mask.q)), mask.k, mask.valid_BS, heads=mask.heads, layer=mask.layer,
        shape="none" if mask.shape == "none" else "pattern",
    )  # fmt: skip
    if added is not None:
        table, side = added.table_BHTN, added.q_side_BTHE
        added = added._replace(
            table_BHTN=table if table is None or table.shape[2] == 1 else table[:, :, rows],
            q_side_BTHE=side if side is None else side[:, rows],
        )
    return terms._replace(mask=part, scores=added)


def effective(mix: Callable[[Tensor], Tensor], v_BSGK: Tensor, heads: Sequence[int]) -> Tensor:
    """Weights (B, chosen heads, T, S) of a mixer that makes no matrix: what it answers if values say whose they are.

    Any mixer is linear in its values, so values that are 1 in one place and 0 elsewhere read its weights out, as many
    keys at a time as a value has numbers.
    """
    batch, keys, groups, dim = v_BSGK.shape
    found: list[Tensor] = []
    for start in range(0, keys, dim):
        few = min(dim, keys - start)
        place = torch.arange(few, device=v_BSGK.device)
        values = v_BSGK.new_zeros(batch, keys, groups, dim)
        values[:, start + place, :, place] = 1
        found.append(mix(values)[:, :, list(heads), :few])
    return torch.cat(found, -1).transpose(1, 2)
