"""The same checkpoint in the public library and here, compared layer by layer.

Both sides compute in one dtype. In fp64, with the public class's own fp32 lifted, what is left is the order of sums:
a difference means another computation. In fp32 rounding grows with depth, and the limit is wider.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from anyformer.data.tokenizer import Tokenizer, source_ids
from anyformer.errors import CheckpointError, DataError, InputError
from anyformer.families.checkpoint import family_in
from anyformer.families.hf_bridge import library, public_class, to_hf
from anyformer.families.io import is_published, load
from anyformer.model.model import Model
from anyformer.specs.embed_head import PatchEmbed
from anyformer.verify.differences import difference, positions_for

LIMITS = {torch.float64: 1e-7, torch.float32: 1e-3}
"""The largest difference, max|a - b| / max|b|, that passes. A few classes keep tables of fp32: 3e-8 with Marian's sines."""
NARROW = (torch.float32, torch.bfloat16, torch.float16)
ROWS, LENGTH = 2, 128
LIFTED = "what the class computes in float32 whatever its weights are (norms, softmax, angles) is lifted to float64"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What both sides have at one place."""

    place: str
    theirs: str
    """The public class's name for it."""
    max: float
    """max|a - b| / max|b|, infinite if a number is not finite."""
    mean: float
    """mean|a - b| / mean|b|."""
    top1: float | None = None
    """Share of positions at which the largest logit is the same one."""
    same: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All places, for one input."""

    given: str
    tokens: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """What could not be compared, and why."""

    @property
    def first(self) -> Row | None:
        """The first place that differs, in the order of the forward pass."""
        return next((row for row in self.rows if not row.same), None)


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The answer: the same in every place, for every input, or not."""

    title: str
    reference: str
    dtype: str
    limit: float
    settings: tuple[str, ...]
    """What makes the reference compute otherwise than in a user's script."""
    comparisons: tuple[Comparison, ...]

    @property
    def same(self) -> bool:
        return all(found.first is None for found in self.comparisons)


def parity(
    folder: Path,
    *,
    against: Path | None = None,
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.float64,
    length: int | None = None,
    seed: int = 0,
    ignore_keys: Sequence[str] = (),
) -> Parity:
    """Compare the model in a folder with what the public library makes of the same folder, or of `against`.

    Weights of a folder in our own format are handed to the public class in memory. Both read rows of random ids, of
    `length` tokens (default: 128, or the context if that is shorter), and a text if there is one, by the model's own
    tokenizer. Keys of config.json in `ignore_keys` are taken as absent here; the public library reads them.
    """
    if dtype not in LIMITS:
        raise InputError(f"dtype: {dtype} is none of {', '.join(map(str, LIMITS))}")
    library()
    ours = load(folder, "cpu", dtype, ignore_keys=ignore_keys)
    reads = ours.spec.embed.reads
    if reads not in ("input_ids", "pixel_values") or ours.head is None:
        raise InputError(
            f"{folder}: reads {reads} and has a {ours.spec.head.kind!r} head; no public class is like that"
        )
    if text is not None and reads != "input_ids":
        raise InputError(f"{folder}: reads {reads}, so it can't be given a text")
    with quiet():
        theirs = public(folder if against is None else against, ours if against is None else None, dtype)
    room = positions_for(ours, length)
    size = length or min(LENGTH, ours.spec.context, ours.spec.context if room is None else room)
    generator = torch.Generator().manual_seed(seed)
    inputs = [("random ids" if reads == "input_ids" else "random images", _random(ours, size, generator))]
    if text is not None:
        if tokenizer is None:
            raise DataError("a text needs the model's tokenizer")
        inputs.append(("text", _encoded(ours, tokenizer, text, size)))
    comparisons = tuple(compare(ours, theirs, given, ids, dtype) for given, ids in inputs)
    reference = f"{type(theirs).__name__} of transformers {library().__version__}"
    return Parity(
        title=str(folder), reference=reference, dtype=str(dtype).removeprefix("torch."), limit=LIMITS[dtype],
        settings=(LIFTED,) if dtype == torch.float64 else (), comparisons=comparisons,
    )  # fmt: skip


def public(folder: Path, ours: Model | None, dtype: torch.dtype) -> Any:
    """The public class's model of a folder, as a user loads it; of our own format, from our model.

    No code of the folder ever runs, and nothing is set on what was loaded but one thing: the grouped product of experts
    has no fp64.
    """
    if not is_published(folder):
        with lifted(dtype):
            return _one_by_one(to_hf(load(folder, "cpu", dtype) if ours is None else ours).eval(), dtype)
    cls = public_class(family_in(folder).architectures[0])
    try:
        with lifted(dtype):
            made = cls.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True).eval()
        return _one_by_one(made, dtype)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{folder}: transformers can't load it: {first}") from error


def _one_by_one(theirs: Any, dtype: torch.dtype) -> Any:
    """A public model whose experts are computed one after the other, if that must be."""
    if dtype == torch.float64:
        theirs.config._experts_implementation = "eager"
    return theirs


def compare(ours: Model, theirs: Any, given: str, inputs: dict[str, Tensor], dtype: torch.dtype) -> Comparison:
    """Run both on the same input, and look at every place."""
    limit, notes = LIMITS[dtype], list[str]()
    known = inspect.signature(theirs.forward).parameters
    more = {"output_hidden_states": True} | ({"use_cache": False} if "use_cache" in known else {})
    blocks = [(stack.name, *theirs_of(theirs, stack.name, len(stack.blocks))) for stack in ours.spec.stacks]
    with torch.no_grad():
        with watched([(name, getattr(ours, name).blocks) for name, _, _ in blocks]) as mine:
            answer = ours(**inputs)
        with watched([(name, layers) for name, _, layers in blocks if layers is not None]) as seen, lifted(dtype):
            reference = theirs(**inputs, **more)
    rows: list[Row] = []
    for stack, prefix, layers in blocks:
        if layers is None:
            notes.append(f"{stack}: the public class has no list of its layers to look into")
            continue
        for place, a in mine[stack].items():
            b, where = seen[stack].get(place), "" if place == "embedding" else f".{place.split()[1]}"
            if b is not None and b.dim() == 3 and b.shape[0] == a.shape[0] and b.shape[1] > a.shape[1]:
                # Some classes fill a row up to whole windows or blocks.
                b = b[:, : a.shape[1]]
            elif b is not None and b.shape != a.shape and b.dim() == 3:
                # Some classes have tokens before rows.
                b = b.transpose(0, 1)
            if b is None or b.shape != a.shape:
                notes.append(f"{stack} {place}: the public class gives no residual of shape {tuple(a.shape)} there")
            else:
                rows.append(_row(f"{stack} {place}", prefix + where, a, b, limit))
    if answer.logits is None:
        raise TypeError("a model with a head gave no logits")
    # Whether the last hidden state is normed differs between public classes, so the nearest one counts.
    states = [each for name in ("decoder_hidden_states", "hidden_states") for each in (reference.get(name) or ())[-2:]]
    alike = [state for state in states if state.shape == answer.hidden.shape]
    hidden = min(alike, key=lambda state: difference(answer.hidden, state), default=None)
    if hidden is None:
        notes.append("final hidden: the public class gives none of the same shape")
    else:
        rows.append(_row("final hidden", "hidden_states[-1]", answer.hidden, hidden, limit))
    top1 = float((answer.logits.argmax(-1) == reference.logits.argmax(-1)).double().mean())
    rows.append(_row("logits", "logits", answer.logits, reference.logits, limit, top1))
    tokens = sum(given.shape[0] * given.shape[1] if given.dim() == 2 else len(given) for given in inputs.values())
    return Comparison(given=given, tokens=tokens, rows=tuple(rows), notes=tuple(notes))


def theirs_of(model: Any, stack: str, depth: int) -> tuple[str, Any]:
    """Name and modules of the layers of one stack of a public class; None for the modules if it has no such list.

    It is the largest list of so many modules that is in no other list; with two stacks, the one below that name. Where
    layers stand in groups (ALBERT), it is a list of those lists.
    """
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outer = {n: m for n, m in lists.items() if not any(n.startswith(f"{other}.") for other in lists)}
    grouped = {n: [each for name, m in lists.items() if name.startswith(f"{n}.") for each in m] for n in outer}
    fitting = {n: m if len(m) == depth else nn.ModuleList(grouped[n]) for n, m in outer.items()}
    fitting = {n: m for n, m in fitting.items() if len(m) == depth}
    named = {n: m for n, m in fitting.items() if stack in n.split(".")}
    sizes = {n: sum(p.numel() for p in m.parameters()) for n, m in (named or fitting).items()}
    best = max(sizes, key=lambda name: sizes[name], default="")
    return best, fitting.get(best)


@contextmanager
def watched(stacks: list[tuple[str, Any]]) -> Iterator[dict[str, dict[str, Tensor]]]:
    """What goes into the first block of each stack, and what comes out of every block, by place."""
    seen: dict[str, dict[str, Tensor]] = {name: {} for name, _ in stacks}

    def before(stack: str, _: nn.Module, args: Any, named: dict[str, Any]) -> None:
        after(stack, "embedding", _, args, args[0] if args else list(named.values()))

    calls = dict.fromkeys(seen, 0)

    def after(stack: str, place: str, _: nn.Module, args: Any, output: Any) -> None:
        tensor = _residual(output)
        if not place:
            # Layers may share a block, which is called for each.
            place, calls[stack] = f"layer {calls[stack]}", calls[stack] + 1
        if tensor is not None:
            seen[stack].setdefault(place, tensor.detach().clone())

    with ExitStack() as handles:
        for name, blocks in stacks:
            handles.enter_context(blocks[0].register_forward_pre_hook(partial(before, name), with_kwargs=True))
            for block in blocks:
                handles.enter_context(block.register_forward_hook(partial(after, name, "")))
        yield seen


def _residual(found: Any) -> Tensor | None:
    """The first tensor: classes answer with the residual alone, or with it before other things. Two of the same shape
    are the streams of a reversible stack, which come in any order.
    """
    if isinstance(found, Tensor):
        return found
    tensors = [item for item in found if isinstance(item, Tensor)] if isinstance(found, tuple | list) else []
    if len(tensors) > 1 and tensors[0].shape == tensors[1].shape:
        return torch.cat((tensors[0] + tensors[1], (tensors[0] - tensors[1]).abs()), -1)
    return tensors[0] if tensors else None


def _row(place: str, theirs: str, a: Tensor, b: Tensor, limit: float, top1: float | None = None) -> Row:
    largest = difference(a, b)
    gap, scale = (a.double() - b.double()).abs().mean(), b.double().abs().mean().clamp(min=1e-300)
    mean = float(gap / scale) if largest < float("inf") else largest
    return Row(place=place, theirs=theirs, max=largest, mean=mean, top1=top1, same=largest <= limit)


def _random(model: Model, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Ids without padding, which some classes treat by its id; a target is a little shorter than its source."""
    spec = model.spec
    if isinstance(spec.embed, PatchEmbed):
        shape = (ROWS, spec.embed.channels, spec.embed.image, spec.embed.image)
        like = next(model.parameters())
        return {"pixel_values": torch.randn(shape, generator=generator, dtype=torch.float64).to(like.dtype)}

    def draw(tokens: int, vocab: int, pad: int | None) -> Tensor:
        ids = torch.tensor([i for i in range(vocab) if i != pad])
        return ids[torch.randint(len(ids), (ROWS, tokens), generator=generator)]

    found = {"input_ids": draw(length, spec.input_vocab, spec.input_pad)}
    if spec.topology == "encoder-decoder":
        found["decoder_input_ids"] = draw(max(1, length - 4), spec.vocab, spec.ids.pad)
    return found


def _encoded(model: Model, tokenizer: Tokenizer, text: str, length: int) -> dict[str, Tensor]:
    """The beginning of a text; an encoder-decoder is asked to repeat it."""
    if model.spec.source_vocab is not None:
        raise InputError(
            "text: the source of this model has a vocabulary of its own, so one text can't be source and target; leave it "
            "out: random ids of both are compared"
        )
    ids = source_ids(tokenizer, text)[:length]
    if not ids:
        raise DataError("the text has no tokens")
    if max(ids) >= model.spec.vocab:
        raise InputError(f"the tokenizer gives the id {max(ids)}, but vocab is {model.spec.vocab}; is it this model's?")
    found = {"input_ids": torch.tensor([ids])}
    if model.spec.topology == "encoder-decoder":
        start = model.spec.ids.start
        found["decoder_input_ids"] = torch.tensor([[ids[0] if start is None else start, *ids[:-1]]])
    return found


class Lift(TorchFunctionMode):
    """Whatever code asks to be narrower is fp64 instead: public classes keep norms, angles and softmax in fp32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            return args[0].double()
        return func(*map(_lift, args), **{name: _lift(value) for name, value in (kwargs or {}).items()})


def _lift(value: Any) -> Any:
    # A tensor must not be compared with a dtype by ==.
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


@contextmanager
def lifted(dtype: torch.dtype) -> Iterator[None]:
    """Everything in fp64, numbers that a class makes from whole ones too, if that is the dtype; else as it is."""
    if dtype != torch.float64:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Lift():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the public library's bars and remarks on standard error."""
    logging = library().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
