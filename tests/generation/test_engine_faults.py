"""Bad requests, aborted ones and failing passes: the others go on, and nothing is lost."""

import copy
import random

import pytest
import torch

import anyformer as af
from anyformer.generation.engine import Engine
from anyformer.model.model import Model
from tests.contract.contracts import model_of
from tests.contract.draw import BASE
from tests.generation.test_engine import PROMPT, alone, small
from tests.generation.words import tokenizer

TINY = {
    "width": 8, "depth": 1, "attention": {"heads": 2, "kv_heads": 1, "head_dim": 4},
    "ffn": {"kind": "swiglu", "width": 8},
}  # fmt: skip
MENU = (
    {}, {}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.2, "top_p": 0.8}, {"stop": (3, 5)},
    {"repetition_penalty": 1.2}, {"temperature": 1.0, "n": 3}, {"logprobs": 2}, {"bad_words": [[i] for i in range(37)]},
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_engine_of_10000_random_requests_loses_nothing():
    rng = random.Random(0)
    model = model_of(af.spec(BASE, TINY))
    engine = Engine(
        model,
        max_num_seqs=160,
        max_model_len=24,
        num_blocks=330,
        block_size=2,
        max_num_batched_tokens=1200,
        prefill_chunk=8,
        watermark=0,
    )
    alive, expected, ended, refused, made = [], set(), {}, 0, 0
    while made < 10_000 or not engine.idle:
        for _ in range(min(rng.randint(0, 300), 10_000 - made)):
            made += 1
            ids = [7, 8, 9, 1, 2] * rng.randint(0, 1) + [rng.randrange(37) for _ in range(rng.randint(1, 5))]
            try:
                # One in six asks for more than there is room for.
                request = engine.add_request(ids, max_new_tokens=rng.choice((1, 2, 3, 5, 7, 40)), **rng.choice(MENU))
            except af.InputError:
                refused += 1
                continue
            alive.append(request)
            expected |= {(request.id, answer.index) for answer in request.sequences}
        for _ in range(min(rng.randint(0, 20), len(alive))):
            engine.abort(alive.pop(rng.randrange(len(alive))))
        for event in engine.step():
            assert (event.request, event.index) not in ended, "an answer goes on after its end"
            if event.finish_reason is not None:
                ended[event.request, event.index] = event.finish_reason
        if engine.stats.steps % 40 == 0:
            engine.check()
    engine.check()
    assert set(ended) == expected
    assert {*ended.values()} == {"length", "stop", "abort", "failed"}
    assert 1000 < refused < 2000
    pool = engine.pool
    assert len(pool.free_slots) == pool.max_num_seqs
    assert [manager.free for manager in pool.managers] == list(pool.totals)
    assert engine.stats.preemptions > 0
    assert engine.stats.cached_tokens > 0
    # It still serves.
    (request,) = engine.run([{"input_ids": PROMPT, "max_new_tokens": 5}])
    assert request.sequences[0].new == alone(model, list(PROMPT), max_new_tokens=5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, 99]}, "99 in row 0, column 1 is not an id below vocab = 37"),
        ({"input_ids": [1, -1]}, "-1 in row 0, column 1"),
        ({"input_ids": "text"}, "expected token ids"),
        ({"input_ids": [1.5]}, "input_ids"),
        ({"input_ids": [[1, 2], [3, 4]]}, "a request is one row"),
        ({"input_ids": [1] * 30}, "30 and 5 new tokens: 34 tokens, and the engine serves up to 20"),
        ({"input_ids": [1] * 12}, "take 8 blocks, and the engine has 7; make it with more num_blocks"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0, "temperature": 1.0}, "top_p"),
        ({"num_beams": 3}, "3 sequences at once, and the engine has 2; make it with a larger max_num_seqs"),
        ({"penalty_alpha": 0.5, "top_k": 4}, "4 sequences at once"),
        ({"num_beams": 2, "max_new_tokens": 9}, "take 12 blocks, and the engine has 7"),
        ({"stop": "x" * 10_000}, "10,000 characters"),
        ({"global_mask": [1, 0, 0]}, "no pattern of this model reads it"),
        ({"rope_length": 9}, "no position scheme of this model depends on the length"),
        ({"id": "taken"}, "'taken' is that of a request that has not ended"),
    ],
)
def test_engine_refuses_a_bad_request_and_keeps_serving_others(given, words):
    model = small()
    engine = Engine(model, max_num_seqs=2, max_model_len=20, num_blocks=7, block_size=2, tokenizer=tokenizer())
    request = engine.add_request([4, 5], max_new_tokens=5, id="taken")
    engine.step()
    with pytest.raises(af.InputError, match=words):
        engine.add_request(**({"input_ids": [1, 2, 3], "max_new_tokens": 5} | given))
    engine.check()
    events = list(engine)
    assert {event.request for event in events} == {"taken"}
    assert request.sequences[0].new == alone(model, [4, 5], max_new_tokens=5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"block_size": 0}, "block_size"),
        (
            {"max_num_batched_tokens": 0, "watermark": -1},
            "max_num_batched_tokens: at least 1, got 0; watermark: at least 0",
        ),
        ({"prefill_chunk": -1}, "prefill_chunk: at least 1"),
        ({"kv_cache_dtype": "int3"}, "'int3' is unknown"),
        ({"guesses": 0, "lookup": True}, "guesses: at least 1"),
        ({"lookup": True, "batch_invariant": True}, "batch_invariant: passes over proposals"),
        ({"max_model_len": -2}, "length"),
    ],
)
def test_engine_refuses_a_size_that_serves_nobody(given, words):
    with pytest.raises(af.InputError, match=words):
        Engine(small(), **given)


def test_engine_of_a_prefix_lm_refuses_a_prompt_shorter_than_the_prefix():
    engine = Engine(small({"attention.pattern": "causal | prefix(6)"}), max_model_len=30)
    with pytest.raises(af.InputError, match=r"the first 6 tokens of this prefix-LM .* but the prompt has 3"):
        engine.add_request([1, 2, 3], max_new_tokens=4)


def broken(model: Model, token: int) -> Model:
    """A model for which one token is not a number."""
    table = next(p for name, p in model.named_parameters() if name.startswith("embed"))
    with torch.no_grad():
        table[token] = float("nan")
    return model


def test_engine_ends_a_request_whose_logits_are_no_numbers_and_no_other():
    model = small({"head.tied": False})
    want = alone(model, [4, 5], max_new_tokens=6)
    engine = Engine(broken(model, 30), max_num_seqs=4, max_model_len=20)
    good, bad, also = engine.run(
        [
            {"input_ids": [4, 5], "max_new_tokens": 6},
            {"input_ids": [4, 30], "max_new_tokens": 6},
            {"input_ids": [4, 6], "max_new_tokens": 6, "bad_words": [[i] for i in range(37)]},
        ]
    )
    assert good.sequences[0].new == want
    assert bad.sequences[0].finish_reason == also.sequences[0].finish_reason == "failed"
    assert "NaN" in str(bad.sequences[0].error)
    assert "the samplers rule out every token" in str(also.sequences[0].error)
    engine.check()


@pytest.mark.parametrize("changes", [{}, {"attention.pattern": "window(5)"}, {"attention.softcap": 5.0}])
@pytest.mark.parametrize("chunk", [2, 30])
def test_engine_lets_nobody_see_what_is_no_number(changes, chunk):
    model = small({"head.tied": False} | changes)
    rng = random.Random(1)
    asked = [[rng.randrange(1, 30) for _ in range(n)] for n in (3, 9, 4, 14, 2, 7, 5, 11)]
    want = [alone(model, ids, max_new_tokens=6, bad_words=[[30]]) for ids in asked]
    engine = Engine(
        broken(model, 30),
        max_num_seqs=4,
        max_model_len=40,
        num_blocks=30,
        block_size=2,
        prefill_chunk=chunk,
        max_num_batched_tokens=40,
    )
    given = []
    for i, ids in enumerate(asked):
        given += [{"input_ids": ids, "max_new_tokens": 6, "bad_words": [[30]]}]
        given += [{"input_ids": [*ids[: i + 1], 30, *ids], "max_new_tokens": 6, "n": 1 + i % 2, "temperature": 1.0}]
    added = engine.run(given)
    assert [request.sequences[0].new for request in added[::2]] == want
    assert {answer.finish_reason for request in added[1::2] for answer in request.sequences} == {"failed"}
    engine.check()
    assert all(tensor.isfinite().all() for layer in engine.pool.layers for stream in layer for tensor in stream)


def failing(engine: Engine, monkeypatch, token: int, error: BaseException) -> None:
    """Let every pass fail in which a row has this token."""
    for name in ("forward", "decode"):
        whole = getattr(engine.runner, name)

        def run(cached, *given, whole=whole, **more):
            if any(token in each.tokens for each in engine.scheduler.running if each.allocation in cached):
                raise error
            return whole(cached, *given, **more)

        monkeypatch.setattr(engine.runner, name, run)


def test_engine_after_a_failing_pass_serves_the_rows_that_were_not_to_blame(monkeypatch):
    model = small()
    engine = Engine(model, max_num_seqs=4, max_model_len=20, block_size=2)
    failing(engine, monkeypatch, 36, RuntimeError("out of memory"))
    asked = [
        {"input_ids": [i, i + 1, last], "max_new_tokens": 6, "bad_words": [[36]]}
        for i, last in ((1, 2), (3, 36), (5, 6))
    ]
    added = [engine.add_request(**each) for each in asked]
    twins = engine.add_request([36, 1, 1], max_new_tokens=3, n=3, temperature=1.0)
    events = []
    while not engine.idle:
        events += engine.step()
        engine.check()
    assert [request.sequences[0].finish_reason for request in added] == ["length", "failed", "length"]
    assert [str(answer.error) for answer in twins.sequences] == ["out of memory"] * 3
    for request, each in zip(added, asked, strict=True):
        if request.sequences[0].finish_reason == "length":
            assert request.sequences[0].new == alone(model, each.pop("input_ids"), **each)
    assert sum(event.finish_reason is not None for event in events) == 6
    assert engine.stats.retries == 4
    assert len(engine.pool.free_slots) == 4


def test_engine_that_is_interrupted_in_a_pass_goes_on_afterwards(monkeypatch):
    model = small()
    engine = Engine(model, max_num_seqs=4, max_model_len=20, block_size=2)
    added = [engine.add_request([i, 2], max_new_tokens=6) for i in (1, 3)]
    engine.step()
    with monkeypatch.context() as patch:
        failing(engine, patch, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    engine.check()
    for _ in engine:
        pass
    assert [request.sequences[0].new for request in added] == [alone(model, [i, 2], max_new_tokens=6) for i in (1, 3)]


@pytest.mark.parametrize("call", range(1, 6))
def test_engine_that_is_interrupted_after_a_pass_goes_on_afterwards(call, monkeypatch):
    model = small()
    engine = Engine(model, max_num_seqs=3, max_model_len=20, block_size=2, prefill_chunk=3, max_num_batched_tokens=6)
    asked = [{"max_new_tokens": 4}, {"max_new_tokens": 3, "temperature": 1.0, "seed": 5}]
    added = [engine.add_request(PROMPT[:n], **each) for n, each in zip((2, 5), asked, strict=True)]
    added.append(engine.add_request(PROMPT, max_new_tokens=4, temperature=1.0, seed=7, n=2))
    whole, calls = engine.sampler._sample, iter(range(1, 100))

    def choose(logits_BV, answers):
        if next(calls) == call:
            raise KeyboardInterrupt
        return whole(logits_BV, answers)

    monkeypatch.setattr(engine.sampler, "_sample", choose)
    with pytest.raises(KeyboardInterrupt):
        list(engine)
    engine.check()
    list(engine)
    engine.check()
    assert len(engine.pool.free_slots) == 3
    assert [added[0].sequences[0].new, added[1].sequences[0].new] == [
        alone(model, list(PROMPT[:n]), **each) for n, each in zip((2, 5), asked, strict=True)
    ]
    many = af.generate(model, torch.tensor([PROMPT]), max_new_tokens=4, temperature=1.0, seed=7, n=2, stop=())
    assert [answer.new for answer in added[2].sequences] == many[:, len(PROMPT) :].tolist()


def test_engine_aborts_whoever_runs_waits_or_stands_behind_another():
    model = small()
    engine = Engine(model, max_num_seqs=1, max_model_len=30, prefill_chunk=2, max_num_batched_tokens=2)
    first = engine.add_request([1, 2], max_new_tokens=9)
    many = engine.add_request(PROMPT, max_new_tokens=9, temperature=1.0, n=3)
    last = engine.add_request([3, 4], max_new_tokens=4)
    engine.step()
    assert engine.abort(first)
    assert engine.abort(many.id)
    assert not engine.abort(many)
    assert not engine.abort("nobody")
    engine.check()
    assert not engine.idle
    events = list(engine)
    assert [(e.request, e.index) for e in events if e.finish_reason == "abort"] == [
        (first.id, 0), (many.id, 0), (many.id, 1), (many.id, 2),
    ]  # fmt: skip
    assert last.sequences[0].new == alone(model, [3, 4], max_new_tokens=4)
    assert len(first.sequences[0].new) == 1


def test_engine_gives_a_model_its_mode_back():
    model = copy.deepcopy(small()).train()
    Engine(model, max_model_len=20).run([{"input_ids": PROMPT, "max_new_tokens": 2}])
    assert all(module.training for module in model.modules())


def test_engine_of_a_model_that_has_changed_keeps_nothing_of_the_old_one():
    model = copy.deepcopy(small())
    prompt, asked = [7, 8, 9, 1, 2, 3, 4, 5], {"max_new_tokens": 5, "stop": ()}
    engine = Engine(model, max_model_len=20, block_size=2)

    def answered():
        return engine.run([{"input_ids": prompt, **asked}])[0].sequences[0].new

    first = answered()
    assert answered() == first
    assert engine.stats.cached_tokens
    for assign in (False, True):
        other = {name: tensor.flip(0).clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(other, assign=assign)
        assert answered() == alone(model, prompt, **asked)
        engine.check()


def test_engine_run_with_a_refused_request_serves_none():
    engine = Engine(small(), max_model_len=20)
    with pytest.raises(af.InputError, match="is not an id below vocab"):
        engine.run([{"input_ids": PROMPT, "max_new_tokens": 2}, {"input_ids": [99]}])
    assert {event.finish_reason for event in engine} == {"abort"}
    engine.check()
