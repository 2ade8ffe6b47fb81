"""The promises of every spec, each as one function that fails if a spec breaks it."""

import dataclasses
import functools
import tempfile
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer.model.model import Model
from anyformer.specs import ModelSpec
from anyformer.specs.parameters import silent, weights
from anyformer.specs.stacks import pattern_of
from tests.contract.feed import Document, alone, call, document, packed, padded
from tests.tolerances import TABLE, assert_close, difference

LENGTH = 21
"""Past every window and chunk that is drawn (at most 9), odd, and not a multiple of either."""


@torch.no_grad()
def randomise(model: Model, seed: int) -> Model:
    """Every parameter away from its start value: gains of 1 and biases of 0 hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        p.copy_(noise / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.6 + 0.4 * noise)
    return model


@functools.lru_cache(maxsize=4)
def model_of(spec: ModelSpec) -> Model:
    """A randomised fp64 model in eval mode."""
    return randomise(af.build(spec, dtype=torch.float64), 0).eval()


def length_of(spec: ModelSpec) -> int:
    return spec.embed.tokens() if spec.embed.kind == "patches" else LENGTH


def answers(out: af.model.model.Output) -> Tensor:
    return out.hidden if out.logits is None else out.logits


def round_trip(spec: ModelSpec) -> None:
    """Written as TOML and read back equal."""
    text = spec.to_toml()
    again = ModelSpec.from_toml(text)
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.to_toml() == text


def counts_agree(spec: ModelSpec) -> None:
    """Parameters, projection and feed-forward FLOPs and cache bytes, against the built model."""
    model, count = model_of(spec), spec.count()
    assert count.params == sum(p.numel() for p in model.parameters()) == sum(count.params_by_part.values())
    assert {n: w.shape for n, w in weights(spec).items()} == {n: tuple(p.shape) for n, p in model.named_parameters()}
    # A spec does not say how many tokens will be marked.
    doc = dataclasses.replace(document(spec, length_of(spec), 0), marks=None)
    # Without gradients: the two streams of a reversible stack then run as plain calls of its modules.
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        out = alone(model, doc)
    found = dict.fromkeys(("projections", "ffn", "embed", "head"), 0)
    for name, by_op in counter.get_flop_counts().items():
        part = part_of_flops(name)
        if part is not None:
            found[part] += sum(by_op.values())
    target = length_of(spec) if doc.target is None else len(doc.target)
    source = None if doc.target is None else len(doc.source)
    said = count.flops(target, source)
    # A head that compares rows is fed two of them.
    rows = 2 if spec.head.kind == "choice" else 1
    found = {part: flops / rows for part, flops in found.items()}
    assert found == {"projections": said.projections, "ffn": said.ffn, "embed": said.embed, "head": said.head}
    if keeps_a_cache(spec):
        cache = model.new_cache(1, target)
        alone(model, doc, cache=cache)
        assert cache.nbytes == count.kv_bytes(target, torch.float64, 1, source)
    assert answers(out).isfinite().all()


def keeps_a_cache(spec: ModelSpec) -> bool:
    """Whether a model can be fed piece by piece."""
    return spec.topology != "encoder" and not spec.head.pools


def prefix_of(spec: ModelSpec) -> int:
    """Tokens that see each other both ways."""
    stack = spec.stacks[-1]
    return max(pattern_of(stack, layer).prefix() or 0 for layer in stack.layers)


def part_of_flops(module: str) -> str | None:
    """Which of our counts a module's products belong to, by its path in the counter's report."""
    pieces = module.split(".")[1:]
    if pieces in (["embed"], ["decoder_embed"], ["encoder", "project"], ["decoder", "project"]):
        return "embed"
    if pieces == ["head"]:
        return "head"
    if pieces[-2:-1] == ["body"]:
        if pieces[-1].removeprefix("global_") in ("q", "k", "v", "o"):
            return "projections"
        return "ffn" if "ffn" in pieces else None
    return None


def builds_on_meta(spec: ModelSpec) -> None:
    """The same names and shapes, without allocating."""
    meta = af.build(spec, device="meta")
    assert all(p.is_meta for p in meta.parameters())
    assert all(b.is_meta for b in meta.buffers())
    assert set(meta.state_dict()) == set(model_of(spec).state_dict())


def causal(spec: ModelSpec) -> None:
    """Changing token t moves no logit before t, and does move those from t on."""
    if spec.topology == "encoder" or spec.head.pools:
        return
    model, doc = model_of(spec), document(spec, LENGTH, 1)
    before = answers(alone(model, doc))
    tokens = doc.source if doc.target is None else doc.target
    for t in {max(prefix_of(spec), t) for t in (1, len(tokens) // 2, len(tokens) - 1)}:
        changed = tokens.clone()
        changed[t] = changed[t] + 1 if tokens.is_floating_point() else (changed[t] + 7) % spec.vocab
        if doc.target is None:
            other = dataclasses.replace(doc, source=changed)
        else:
            other = dataclasses.replace(doc, target=changed)
        after = answers(alone(model, other))
        assert_close("causality", after[:, :t], before[:, :t])
        assert difference(after[:, t:], before[:, t:]) > TABLE["promise"].limit, f"token {t} changes nothing at all"


def cached(spec: ModelSpec) -> None:
    """Token by token == in chunks == whole, also where rows are padded differently and where the source is padded."""
    if not keeps_a_cache(spec):
        return
    model, doc = model_of(spec), document(spec, LENGTH, 2, target=17)
    # A length that is neither the source's, nor the target's, nor the cache's.
    declared = 30 if model.reads_length else None
    whole = answers(alone(model, doc, rope_length=declared))
    tokens = doc.source if doc.target is None else doc.target
    early = max(1, prefix_of(spec))
    for sizes in ([early] + [1] * (len(tokens) - early), [early, 4, 2], [len(tokens) - 3, 3]):
        sizes = [*sizes, len(tokens) - sum(sizes)] if sum(sizes) < len(tokens) else sizes
        cache = model.new_cache(1, len(tokens), rope_length=declared)
        assert_close("promise", torch.cat([step(model, doc, p[None], cache) for p in tokens.split(sizes)], 1), whole)
    # Two rows, one padded on the right and one on the left by more than any window: a cache remembers who is real.
    pad = 11
    rows, mask = both_ways(tokens, pad)
    types = None if doc.types is None or doc.target is not None else both_ways(doc.types, pad)[0]
    cache = model.new_cache(2, rows.shape[1], rope_length=declared)
    found = []
    first = max(13, pad + early)
    marks = None if doc.marks is None or doc.target is not None else both_ways(doc.marks, pad)[0]
    for piece in torch.arange(rows.shape[1]).split([first, 1, 1, rows.shape[1] - first - 2]):
        if doc.target is None:
            some = None if types is None else types[:, piece]
            stars = None if marks is None else marks[:, piece]
            out = call(
                model, rows[:, piece], attention_mask=mask[:, piece], token_types=some, global_mask=stars, cache=cache
            )
        else:
            source, source_mask = both_ways(doc.source, 5)
            kinds = None if doc.types is None else both_ways(doc.types, 5)[0]
            stars = None if doc.marks is None else both_ways(doc.marks, 5)[0]
            given = {"token_types": kinds, "global_mask": stars}
            source_side = {"input_ids": source, "attention_mask": source_mask} | {
                name: value for name, value in given.items() if value is not None
            }
            out = model(
                decoder_input_ids=rows[:, piece], decoder_attention_mask=mask[:, piece], cache=cache,
                **(source_side if cache.used == 0 else {}),
            )  # fmt: skip
        found.append(answers(out))
    both = torch.cat(found, 1)
    assert_close("promise", both[:1, : len(tokens)], whole)
    assert_close("promise", both[1:, pad:], whole)


def both_ways(tokens: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """The same tokens twice, padded on the right and on the left, and the mask of real ones."""
    junk = tokens.new_zeros(pad, *tokens.shape[1:])
    mask = torch.ones(2, len(tokens) + pad, dtype=torch.long)
    mask[0, len(tokens) :], mask[1, :pad] = 0, 0
    return torch.stack((torch.cat((tokens, junk)), torch.cat((junk, tokens)))), mask


def step(model: Model, doc: Document, piece: Tensor, cache: af.parts.static_cache.StaticKVCache) -> Tensor:
    """Feed the next tokens; the first call of an encoder-decoder feeds the source too."""
    used = cache.used
    if doc.target is None:
        types = None if doc.types is None else doc.types[None, used : used + piece.shape[1]]
        marks = None if doc.marks is None else doc.marks[None, used : used + piece.shape[1]]
        return answers(call(model, piece, token_types=types, global_mask=marks, cache=cache))
    if used == 0:
        given = {"token_types": doc.types, "global_mask": doc.marks}
        given = {name: value[None] for name, value in given.items() if value is not None}
        return answers(model(doc.source[None], decoder_input_ids=piece, cache=cache, **given))
    return answers(model(decoder_input_ids=piece, cache=cache))


def padded_and_packed(spec: ModelSpec) -> None:
    """Left-padded == right-padded == packed with other documents == alone, at real tokens."""
    if spec.embed.kind == "patches":
        return
    model, doc = model_of(spec), document(spec, LENGTH, 3)
    own = answers(alone(model, doc))
    for left, right in ((1, 0), (11, 0), (0, 5), (3, 2)):
        out, where = padded(model, doc, left, right)
        assert_close("promise", answers(out) if spec.head.pools else answers(out)[:, where], own)
    # A head that pools refuses packed rows, so there the states themselves are compared.
    headless = {"head": "none", "loss.z": 0.0, "loss.label_smoothing": 0.0}
    states = model_of(spec.vary(headless)) if spec.head.pools else model
    spec = states.spec
    docs = [document(spec, n, 10 + n, target=t) for n, t in ((6, 9), (LENGTH, 17), (1, 1), (13, 5))]
    if doc.target is not None:
        docs[1] = doc
    together, where = packed(states, docs)
    for each, place in zip(docs, where, strict=True):
        assert_close("promise", answers(together)[:, place], answers(alone(states, each)))


def teacher_forced(spec: ModelSpec) -> None:
    """Decoder inputs made from labels: padded == packed == alone, too."""
    if spec.topology != "encoder-decoder" or not spec.head.predicts_tokens:
        return
    model = model_of(spec)
    docs = [document(spec, n, 20 + n, target=t) for n, t in ((6, 9), (13, 5))]
    for d in docs:
        # Nothing is marked here: the calls below spell out all their arguments.
        d.marks = None
    alone_ = [model(d.source[None], labels=d.target[None]) for d in docs]
    row, ids = torch.cat([d.source for d in docs])[None], torch.tensor([[0] * 6 + [1] * 13])
    goal, goal_ids = torch.cat([d.target for d in docs])[None], torch.tensor([[0] * 9 + [1] * 5])
    together = model(row, segments=ids, labels=goal, decoder_segments=goal_ids)
    assert_close("promise", together.logits, torch.cat([o.logits for o in alone_], 1))
    assert_close("promise", together.loss * 14, alone_[0].loss * 9 + alone_[1].loss * 5)
    left = torch.cat((torch.full((3,), -100), docs[1].target))[None]
    mask = torch.tensor([[0] * 3 + [1] * 5])
    shifted = model(docs[1].source[None], labels=left, decoder_attention_mask=mask)
    assert_close("promise", shifted.logits[:, 3:], alone_[1].logits)


def gradients(spec: ModelSpec) -> None:
    """Every parameter gets a finite gradient that is not zero, except those that mathematics silences: they are zero.

    A ReLU can be dead for one set of weights, so a parameter has six chances to move.
    """
    model, quiet = model_of(spec), silent(spec)
    waiting = {name for name, _ in model.named_parameters()} - quiet.keys()
    try:
        for seed in range(6):
            randomise(model, seed)
            model.zero_grad()
            result = answers(alone(model, document(spec, length_of(spec), 4 + seed)))
            weigh = torch.randn(result.shape, generator=torch.Generator().manual_seed(seed), dtype=result.dtype)
            (result * weigh).sum().backward()
            missing = [name for name, p in model.named_parameters() if p.grad is None and name not in quiet]
            assert not missing, f"not reached by the backward pass: {missing}"
            reached = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            sizes = {name: float(grad.abs().max()) for name, grad in reached.items()}
            assert all(grad.isfinite().all() for grad in reached.values()), sizes
            loud = {name: size for name, size in sizes.items() if name in quiet and size > 1e-12}
            assert not loud, f"declared silent, but have a gradient: {loud}; reasons: {quiet}"
            waiting -= {name for name, size in sizes.items() if size > 1e-12}
            if not waiting:
                return
        raise AssertionError(f"no gradient for any of 6 sets of weights: {sorted(waiting)}")
    finally:
        randomise(model, 0).zero_grad(set_to_none=True)


def trains(spec: ModelSpec) -> None:
    """In train mode, dropout included: a finite loss and finite gradients; dropout changes it, eval mode does not."""
    if spec.head.kind == "none":
        return
    model, doc = model_of(spec), document(spec, length_of(spec), 5)
    labels = labels_for(spec, alone(model, doc).logits)
    still = [alone(model, doc, labels=labels).loss for _ in range(2)]
    assert torch.equal(*still)
    model.train()
    try:
        noisy = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            noisy.append(alone(model, doc, labels=labels).loss)
        noisy[0].backward()
    finally:
        model.eval()
    assert noisy[0].isfinite()
    quiet = silent(spec)
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert all(name in quiet if grad is None else grad.isfinite().all() for name, grad in grads.items())
    model.zero_grad(set_to_none=True)
    drops = any(
        p > 0
        for layer in (layer for stack in spec.stacks for layer in stack.layers)
        for p in (layer.attention.dropout, layer.block.dropout, layer.ffn.dropout, spec.embed.dropout)
    )
    assert torch.equal(*noisy) != drops


def saves_and_loads(spec: ModelSpec) -> None:
    """Written to a directory and read back: the same spec, the same answer to the bit."""
    model, doc = model_of(spec), document(spec, length_of(spec), 8)
    with tempfile.TemporaryDirectory() as folder:
        af.save(model, folder)
        again = af.load(folder, dtype=torch.float64).eval()
        assert af.spec(folder) == again.spec == spec
    assert_close("same", answers(alone(again, doc)), answers(alone(model, doc)))


def labels_for(spec: ModelSpec, logits: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(6)
    if spec.head.kind == "regression" or getattr(spec.head, "problem", None) in ("multi", "regression"):
        return torch.rand(logits.shape, generator=generator, dtype=logits.dtype)
    if spec.head.kind == "qa":
        return torch.randint(0, logits.shape[1], (logits.shape[0], 2), generator=generator)
    return torch.randint(0, logits.shape[-1], logits.shape[:-1], generator=generator)


ROWS = ("alone", "padded", "packed")
"""The ways in which tokens come: each of them is traced by itself."""


def compiles(spec: ModelSpec, rows: Sequence[str] = ROWS, *, labelled: bool = True) -> None:
    """One graph for forward and training, with the same answer."""
    model, doc = model_of(spec), document(spec, length_of(spec), 7)
    want = alone(model, doc)
    labels = labels_for(spec, want.logits) if labelled and want.logits is not None else None
    torch.compiler.reset()
    fast = torch.compile(model, fullgraph=True, backend="eager")
    # A reversible stack trains outside of compiled code.
    learns = not any(stack.reversible for stack in spec.stacks)
    with torch.set_grad_enabled(learns):
        found = alone(fast, doc, labels=labels)
        assert_close("formula", answers(found), answers(want))
        if learns:
            (answers(found).sum() if labels is None else found.loss).backward()
            model.zero_grad(set_to_none=True)
        if "padded" in rows and spec.embed.kind != "patches":
            assert_close("formula", answers(padded(fast, doc, 2, 1)[0]), answers(padded(model, doc, 2, 1)[0]))
        if "packed" in rows and spec.embed.kind != "patches" and not spec.head.pools:
            pair = [doc, document(spec, 5, 9)]
            assert_close("formula", answers(packed(fast, pair)[0]), answers(packed(model, pair)[0]))


CONTRACTS = (
    round_trip,
    counts_agree,
    builds_on_meta,
    causal,
    cached,
    padded_and_packed,
    gradients,
    trains,
    saves_and_loads,
)
"""What every spec is held to; `compiles` is slow and runs on every kind and on a sample."""
