"""Actions that only read: generation in every way, traces, measurements, copies that are quantised, refused calls."""

import contextlib
import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import anyformer as af
from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import AnyformerError
from anyformer.evals.loglikelihood import LoglikelihoodModel
from anyformer.evals.quality import compare_ids
from anyformer.explain.prompt import trace_prompt
from anyformer.generation.engine import Engine
from anyformer.model.model import Model
from anyformer.model.quantize import quantize
from anyformer.parts.moe import MoE
from anyformer.specs.stacks import pattern_of
from anyformer.train.perplexity import evaluate, score_ids
from anyformer.verify.generation import MODES, equality
from anyformer.verify.packing import packing
from tests.contract.contracts import answers, keeps_a_cache, prefix_of
from tests.tolerances import TABLE, difference
from tests.walks.actions import action
from tests.walks.world import World, drawing, quiet, require, same

TIE = 1e-4
"""Logits that are nearer than this share of their range may change places in fp32, as sums have another order."""


def _tolerance(world: World) -> float:
    return TABLE["promise"].limit if world.dtype == torch.float64 else 100 * TABLE["single"].limit


def _near(world: World, what: str, a: Tensor, b: Tensor, again: Callable[[Model], Tensor] | None = None) -> None:
    """`again` is what the twin was asked, for another model: where rounding of scores may move the answer by more than
    the tolerance, it says by how much.
    """
    found, limit = difference(a, b), _tolerance(world)
    if found > limit and again is not None and world.dtype == torch.float32:
        limit += 2 * moved_by_rounded_scores(world.twin.model, again)
    require(found <= limit, "answer", f"{what} is {found:.3g} away from the twin's, and {limit:.3g} is rounding")


def moved_by_rounded_scores(model: Model, ask: Callable[[Model], Tensor], tries: int = 4) -> float:
    """How far an answer moves if the scores of attention are off by what fp32 rounds, all else being exact.

    A mixer that divides by a sum that may vanish makes much of it: clipped queries and keys can be orthogonal to the last
    bit, and whether their score is 0 or 1e-8 then depends on the order of a sum; normalised ReLU divides that by 1e-6.
    Kernels that compute a softmax at once don't come here, and need no such help.
    """
    exact = copy.deepcopy(model).double().eval()
    mixers = {type(layer.attention.mixer) for stack in model.spec.stacks for layer in stack.layers}
    generator = torch.Generator().manual_seed(0)

    def rounded(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def weigh(self: Any, scores: Tensor, own: Any) -> Tensor:
            noise = torch.randn(scores.shape, generator=generator, dtype=torch.float64).to(scores)
            greatest = scores.abs().nan_to_num(posinf=0.0).amax()
            return plain(self, scores + 4 * 2**-24 * greatest * noise, own)

        return weigh

    with torch.no_grad():
        wanted = ask(exact)
        with contextlib.ExitStack() as stack:
            for kind in mixers:
                stack.callback(setattr, kind, "weigh", kind.weigh)
                kind.weigh = rounded(kind.weigh)  # type: ignore[method-assign]
            return max(difference(ask(exact), wanted) for _ in range(tries))


def _expected(world: World, what: str, prompt_BT: Tensor, found_BN: Tensor) -> None:
    """Require the tokens that plain passes of the twin choose, up to a near-tie."""
    if not world.exact:
        return
    want_BN, ahead_BN = world.likeliest(prompt_BT, found_BN.shape[1])
    for row, (found, want) in enumerate(zip(found_BN.tolist(), want_BN.tolist(), strict=True)):
        first = next((i for i, (a, b) in enumerate(zip(found, want, strict=True)) if a != b), None)
        tied = first is not None and float(ahead_BN[row, first]) < TIE
        require(first is None or tied, "answer", f"{what} says {found} in row {row}, and the twin's passes {want}")


def _new(world: World, prompt_BT: Tensor, found: Tensor) -> Tensor:
    return found[:, 1:] if world.spec.topology == "encoder-decoder" else found[:, prompt_BT.shape[1] :]


def talks(world: World) -> bool:
    return world.talks


def _asked(world: World, new: int = 3) -> dict[str, Any]:
    return {"max_new_tokens": new, "stop": (), **world.declared}


@action(weight=3)
def read_plainly(world: World, rng: random.Random) -> None:
    """A pass, with labels or packed or recorded, in the mode that the model is in."""
    seed = rng.randrange(1000)
    inputs = world.inputs(seed, rows=rng.choice((1, 3)))
    labels = world.labels(seed, inputs) if world.scores and rng.random() < 0.5 else None
    modes: list[Callable[[], Any]] = [torch.no_grad, torch.enable_grad, torch.inference_mode]
    with rng.choice(modes)(), drawing(seed, world.device):
        world.read(world.model, inputs, labels=labels)


@action(weight=8, when=talks)
def generate_likeliest(world: World, rng: random.Random) -> None:
    """Greedy, by some means, against plain passes of the twin."""
    prompt = world.prompts(rng)
    means = rng.choice(({}, {}, {"use_cache": False}, {"lookup": True, "guesses": 2}, {"details": True}))
    with rng.choice((contextlib.nullcontext, torch.no_grad, torch.inference_mode))():
        found = af.generate(world.model, prompt, **_asked(world), **means)
    ids = found.ids if "details" in means else found
    _expected(world, f"generate with {means}", prompt, _new(world, prompt, ids))


@action(weight=6, when=talks)
def generate_drawn(world: World, rng: random.Random) -> None:
    """Samples: the same seed draws the same, and no generator is touched."""
    prompt = world.prompts(rng)
    options: dict[str, Any] = {"temperature": rng.choice((0.7, 1.3)), "seed": rng.choice((5, [1, 2]))}
    options |= rng.choice(
        ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.05}, {"typical_p": 0.9}, {"repetition_penalty": 1.2}, {"n": 2},
         {"presence_penalty": 0.3}, {"no_repeat_ngram_size": 2}, {"frequency_penalty": 0.2}, {"bad_words": [[3]]})
    )  # fmt: skip
    first, second = (af.generate(world.model, prompt, **_asked(world), **options) for _ in range(2))
    require(torch.equal(first, second), "answer", f"{options} drew other tokens the second time")


@action(weight=2, when=talks)
def generate_unseeded(world: World, rng: random.Random) -> None:
    """Without a seed torch's generator decides, and only it."""
    prompt, seed, found = world.prompts(rng), rng.randrange(1000), []
    for _ in range(2):
        with drawing(seed, world.device):
            found.append(af.generate(world.model, prompt, temperature=1.0, **_asked(world)))
    require(torch.equal(*found), "answer", "draws without a seed do not go by torch's generator")


@action(weight=4, when=talks)
def generate_by_search(world: World, rng: random.Random) -> None:
    prompt = world.prompts(rng)
    ways: list[dict[str, Any]] = [
        {"num_beams": 2}, {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"penalty_alpha": 0.5, "top_k": 3}, {"num_beams": 2, "use_cache": False},
    ]  # fmt: skip
    asked = rng.choice(ways)
    first, second = (af.generate(world.model, prompt, **_asked(world), **asked) for _ in range(2))
    require(torch.equal(first, second), "answer", f"{asked} found something else the second time")


@action(weight=4, when=talks)
def stream_and_leave(world: World, rng: random.Random) -> None:
    """A stream that is read to its end, closed early, dropped, broken off by an error, or never begun."""
    prompt, ending = world.prompts(rng), rng.choice(("end", "close", "drop", "error", "never"))
    stream = af.generate(world.model, prompt, stream=True, details=rng.random() < 0.3, **_asked(world, 4))
    if ending == "never":
        del stream
        return
    next(stream)
    if ending == "end":
        list(stream)
    elif ending == "close":
        stream.close()
    elif ending == "error":
        with contextlib.suppress(KeyError):
            stream.throw(KeyError("gone"))
    del stream


@action(weight=3, when=talks)
def stream_twice_at_once(world: World, rng: random.Random) -> None:
    """Two streams of one model, which end in any order: each says what it says alone, and the mode comes back."""
    prompts = [world.prompts(rng, rows=1) for _ in range(2)]
    streams = [af.generate(world.model, prompt, stream=True, **_asked(world, 4)) for prompt in prompts]
    said: list[list[Tensor]] = [[next(stream)] for stream in streams]
    order = [0, 0, 0, 1, 1, 1]
    rng.shuffle(order)
    for which in order:
        said[which].append(next(streams[which]))
        if len(said[which]) == 4:
            streams[which].close()
    for prompt, tokens in zip(prompts, said, strict=True):
        _expected(world, "a stream beside another", prompt, torch.stack(tokens, 1))


@action(weight=3, when=talks)
def generate_in_two_threads(world: World, rng: random.Random) -> None:
    """Two threads at once, in any mode."""
    prompts, found = [world.prompts(rng, rows=1) for _ in range(2)], [None, None]

    def work(i: int) -> None:
        found[i] = af.generate(world.model, prompts[i], **_asked(world))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for prompt, ids in zip(prompts, found, strict=True):
        require(ids is not None, "raised", "a thread that generates died")
        _expected(world, "a thread beside another", prompt, _new(world, prompt, ids))  # type: ignore[arg-type]


@action(weight=3, when=talks)
def generate_in_every_way(world: World, rng: random.Random) -> None:
    """The library's own table of ways, some of it."""
    ways, heat = rng.sample(MODES, 2), rng.choice((0.0, 1.0))
    found = equality(world.model, prompts=2, length=max(4, world.prefix), new=3, seed=rng.randrange(99), modes=ways, temperatures=(heat,))  # fmt: skip
    require(found.passed, "answer", f"ways differ: {found.wrong}")


@action(weight=3, when=talks)
def serve_a_batch(world: World, rng: random.Random) -> None:
    """Requests that come and go, one of them given up."""
    prompts = [world.prompts(rng, rows=1) for _ in range(3)]
    length = max(prompt.shape[1] for prompt in prompts) + 4
    engine = Engine(world.model, max_num_seqs=2, max_model_len=length, block_size=4)
    asked = _asked(world)
    requests_ = [engine.add_request(prompt[0], **asked) for prompt in prompts[:2]]
    engine.step()
    stranger = engine.add_request(prompts[2][0], temperature=1.0, seed=1, **asked)
    engine.step()
    engine.abort(stranger)
    while not engine.idle:
        engine.step()
    engine.check()
    for prompt, request in zip(prompts[:2], requests_, strict=True):
        new = torch.tensor([request.sequences[0].new], device=world.device)
        _expected(world, "a engine", prompt, new)


@action(weight=2, when=lambda w: w.talks and w.spec.topology == "decoder")
def guess_by_a_draft(world: World, rng: random.Random) -> None:
    """A draft model with the same weights, or with others."""
    draft = world.copied() if rng.random() < 0.5 else af.build(world.spec, device=world.device, dtype=world.dtype, seed=3)  # fmt: skip
    prompt = world.prompts(rng)
    found = af.generate(world.model, prompt, draft=draft, guesses=2, **_asked(world))
    _expected(world, "generate with a draft", prompt, _new(world, prompt, found))


@action(weight=3, when=lambda w: w.talks and bool(w.former))
def generate_from_a_former_stage(world: World, rng: random.Random) -> None:
    """The model of a stage that is over has the same parameters, and is still a model."""
    model = rng.choice(world.former)
    asked = {"max_new_tokens": 2, "stop": (), **world.declared_for(model)}
    prompt = world.prompts(rng)
    if model.spec.topology == "decoder" and prefix_of(model.spec) > prompt.shape[1]:
        prompt = prompt.repeat(1, prefix_of(model.spec))[:, : prefix_of(model.spec)]
    af.generate(model, prompt, **asked)


@action(weight=4, when=lambda w: w.compiles and w.talks)
def generate_compiled(world: World, rng: random.Random) -> None:
    prompt = world.prompts(rng)
    found = af.generate(world.model, prompt, compile=world.settings.backend, **_asked(world))
    _expected(world, "compiled generation", prompt, _new(world, prompt, found))


@action(weight=3, when=lambda w: keeps_a_cache(w.spec) and w.spec.topology == "decoder" and w.spec.embed.kind == "tokens")  # fmt: skip
def feed_a_cache(world: World, rng: random.Random) -> None:
    """Piece by piece, against a plain pass of the twin."""
    ids = world.prompts(rng)
    ids = torch.cat((ids, ids), 1)[:, : max(6, world.prefix + 1)]
    cache = world.model.new_cache(len(ids), ids.shape[1], **world.declared)
    first = max(1, world.prefix)
    sizes = [first] + [1] * (ids.shape[1] - first)
    with quiet(world.model):
        parts = [answers(world.model(piece, cache=cache)) for piece in ids.split(sizes, 1)]
    if world.exact:
        with torch.no_grad(), quiet(world.twin.model):
            want = answers(world.twin.model(ids, **world.declared))
        _near(
            world, "what a cache gives", torch.cat(parts, 1), want, lambda model: answers(model(ids, **world.declared))
        )


@action(weight=4)
def trace(world: World, rng: random.Random) -> None:
    """Residuals, attention and logits by layer; its output is a plain pass in eval mode."""
    inputs = world.inputs(rng.randrange(1000))
    asked: dict[str, Any] = {"residuals": "all", "attention": rng.choice((None, "all"))}
    if world.spec.head.predicts_tokens and rng.random() < 0.5:
        asked["logits"] = "all"
    found = world.model.trace(**inputs, **world.declared, **asked)
    want = world.pass_of_twin(inputs)
    if world.exact:
        _near(
            world, "what a trace gives", answers(found.output), answers(want),
            lambda model: answers(world.read(model, inputs)),
        )  # fmt: skip


@action(weight=2, when=lambda w: w.talks and w.spec.topology == "decoder")
def measure_perplexity(world: World, rng: random.Random) -> None:
    """Against the twin's plain passes."""
    length = max(8, world.prefix + 3)
    documents = [
        [rng.randrange(min(world.spec.vocab, world.spec.input_vocab)) for _ in range(length)] for _ in range(2)
    ]
    found = score_ids(world.model, documents)
    if not world.exact or world.model.reads_length or found.context < length - 1:
        return
    ids = torch.tensor(documents, device=world.device)
    skipped = max(1, world.prefix)
    if any(pattern_of(stack, layer).needs_length for stack in world.spec.stacks for layer in stack.layers):
        return
    with torch.no_grad(), quiet(world.twin.model):
        logs = world.twin.model(ids[:, :-1]).logits.double().log_softmax(-1)
    nats = -logs.gather(-1, ids[:, 1:, None])[..., 0][:, skipped - 1 :].sum()
    _near(world, "the perplexity", torch.tensor(found.nats, dtype=torch.float64), nats.cpu())


class _Feed:
    """One batch of a held-out part."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def swept(self, few: int = 0) -> int:
        return self.batch.units

    def sweep(self, readers: int, few: int = 0) -> list[Any]:
        return [self.batch]


@action(weight=2, when=lambda w: w.scores)
def look_at_held_out(world: World, rng: random.Random) -> None:
    """As a run does between its steps."""
    batch = world.batch(rng.randrange(1000))
    feed: Any = _Feed(batch)
    found = evaluate(world.model, feed, world.live.learner.objective, precision=world.live.learner.precision)
    inputs = {name: torch.from_numpy(array).to(world.device) for name, array in batch.inputs.items()}
    if world.spec.loss.label_smoothing or world.model.reads_length:
        return
    terms = world.pass_of_twin(inputs).losses
    want = terms.get("cross_entropy", terms.get("squared_error"))
    if want is not None and world.exact:
        _near(world, "the held-out loss", torch.tensor(found.loss, dtype=torch.float64), want.detach().cpu())


@action(weight=3, when=lambda w: not any(isinstance(module, MoE) for module in w.model.modules()))
def quantise_a_copy(world: World, rng: random.Random) -> None:
    """Eight bits, which read, speak and are compared; the model that was copied knows nothing of it."""
    made = quantize(copy.deepcopy(world.model).to(torch.float32), "int8")
    inputs = {name: t.float() if t.is_floating_point() else t for name, t in world.inputs(1).items()}
    with torch.no_grad():
        require(answers(world.read(made, inputs)).isfinite().all(), "answer", "a quantised model answers NaN")
    if world.talks:
        af.generate(made, world.prompts(rng), **_asked(world))
    if world.talks and world.spec.topology == "decoder" and world.dtype == torch.float32:
        compare_ids(world.model, made, [[1] * max(6, world.prefix + 3)])
    if rng.random() < 0.5:
        world.keep("a quantised copy", made)


@action(weight=2)
def use_the_mean(world: World, rng: random.Random) -> None:
    """The averaged weights for a while, and something read with them."""
    means = {name: t.clone() for name, t in world.twin.ema.means.items()}
    prompt, inputs = (world.prompts(rng) if world.talks else None), world.inputs(2)
    broken = rng.random() < 0.3
    with contextlib.suppress(KeyError), world.live.ema.used(world.model) as model:
        wrong = [n for n, p in model.named_parameters() if not same(p.detach().to(means[n].dtype), means[n].to(p.dtype).to(means[n].dtype))]  # fmt: skip
        require(not wrong, "values", f"the averaged weights are not in use: {wrong[:3]}")
        if prompt is not None:
            af.generate(model, prompt, **_asked(world))
        else:
            model.trace(**inputs, **world.declared, residuals="all")
        if broken:
            raise KeyError("somebody stopped")


@action(weight=3)
def use_the_mean_beside(world: World, rng: random.Random) -> None:
    """What generates with the mean says what the mean says, and afterwards the model what it said."""
    if not world.talks:
        return
    prompt = world.prompts(rng)
    first = af.generate(world.model, prompt, **_asked(world))
    with world.live.ema.used(world.model), world.twin.ema.used(world.twin.model):
        found = af.generate(world.model, prompt, **_asked(world))
        _expected(world, "generate with the mean", prompt, _new(world, prompt, found))
    again = af.generate(world.model, prompt, **_asked(world))
    require(torch.equal(first, again), "answer", "after the mean was used the model says something else")


def _packs(world: World) -> bool:
    spec = world.spec
    return world.dtype == torch.float64 and spec.embed.reads in ("input_ids", "values") and not spec.head.pools and world.device.type == "cpu"  # fmt: skip


@action(weight=1, when=_packs)
def verify_packing(world: World, rng: random.Random) -> None:
    found = packing(world.model, documents=2, length=6, seed=rng.randrange(99))
    require(found.passed, "answer", f"packed rows differ: {found}")


def _words() -> Tokenizer:
    """A tokenizer of as many words as the smallest vocabulary has ids."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    inner = tokenizers.Tokenizer(models.WordLevel({f"w{i}": i for i in range(37)}, unk_token="w3"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    inner.decoder = decoders.Fuse()  # type: ignore[assignment]
    return Tokenizer(inner)


@action(weight=2, when=lambda w: w.spec.embed.kind == "tokens" and w.spec.vocab >= 37)
def use_a_pipeline(world: World, rng: random.Random) -> None:
    """The task that its head is for, and its features."""
    text, words = " ".join(f"w{rng.randrange(4, 37)}" for _ in range(max(5, world.prefix))), _words()
    spec, tasks = world.spec, ["feature-extraction"]
    if world.talks:
        tasks += ["text-generation" if spec.topology == "decoder" else "text2text-generation"]
    elif spec.head.kind == "sequence":
        tasks += ["text-classification"]
    elif spec.head.kind == "token":
        tasks += ["token-classification"]
    task = rng.choice(tasks)
    try:
        pipe = af.pipeline(task, model=world.model, tokenizer=words)
    except AnyformerError:
        # Some heads and topologies have no such task.
        return
    given = {"max_new_tokens": 2} if "generation" in task else {}
    pipe([text, text[: len(text) // 2] if not world.prefix else text], **given)


@action(weight=1, when=lambda w: w.talks and w.spec.vocab >= 37 and not w.prefix)
def explain_a_prompt(world: World, rng: random.Random) -> None:
    words = _words()
    trace_prompt(world.model, words, "w5 w6 w7", name="walked")
    if world.spec.topology == "decoder":
        LoglikelihoodModel(world.model, words).loglikelihood([("w5 w6", " w7 w8")])


@action(weight=1)
def build_again(world: World, rng: random.Random) -> None:
    """Fresh models of the same spec: seeds decide, generators don't."""
    seed = rng.randrange(99)
    first, second = (af.build(world.spec, dtype=world.dtype, seed=seed) for _ in range(2))
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        require(same(a.detach(), b.detach()), "answer", f"{name}: the same seed gives other weights")
    af.build(world.spec, device="meta")
    repr(world.model)
    world.spec.count()
    require(world.model.state_dict().keys() == first.state_dict().keys(), "objects", "other names in the state dict")


@action(weight=2)
def ask_what_is_refused(world: World, rng: random.Random) -> None:
    """Calls that raise leave everything as it was."""
    model, inputs = world.model, world.inputs(3)
    state = dict(model.state_dict())
    state.pop(next(iter(state)))
    calls: list[Callable[[], Any]] = [
        lambda: model(**inputs, position_ids=None),
        lambda: model.trace(**inputs, residuals=["nothing.of.this.name"]),
        lambda: model.load_state_dict({"no.such.weight": torch.zeros(1)}, strict=True),
        lambda: af.save(model, world.folder / "five", format="onnx"),
        lambda: world.read(model, inputs, labels=torch.zeros(1, 1, 1, 1)),
    ]
    if world.talks:
        far = torch.full((1, 3), max(world.spec.vocab, world.spec.input_vocab) + 5, device=world.device)
        calls += [
            lambda: af.generate(model, far, max_new_tokens=2),
            lambda: af.generate(model, world.prompts(rng), temperature=-1.0),
            lambda: af.generate(model, world.prompts(rng), max_tokens=3),
            lambda: next(iter(af.generate(model, world.prompts(rng), stream=True, num_beams=2))),
        ]
    for refused in rng.sample(calls, 3):
        try:
            # A pass that drops may have drawn before it is refused.
            with drawing(0, world.device):
                refused()
        except (AnyformerError, TypeError, ValueError, RuntimeError, KeyError, IndexError):
            continue
