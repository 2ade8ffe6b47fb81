"""Bad requests, cancelled ones and failing passes: the others go on, and nothing is lost."""

import copy
import random

import pytest
import torch

import anyformer as af
from anyformer.generation.batching import Batcher
from anyformer.model.model import Model
from tests.contract.contracts import model_of
from tests.contract.draw import BASE
from tests.generation.test_batching import PROMPT, alone, small
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


def test_batcher_of_10000_random_requests_loses_nothing():
    rng = random.Random(0)
    model = model_of(af.spec(BASE, TINY))
    batcher = Batcher(model, seats=160, length=24, pages=420, size=2, budget=1200, chunk=8, spare=0)
    alive, expected, ended, refused, made = [], set(), {}, 0, 0
    while made < 10_000 or not batcher.idle:
        for _ in range(min(rng.randint(0, 300), 10_000 - made)):
            made += 1
            ids = [7, 8, 9, 1, 2] * rng.randint(0, 1) + [rng.randrange(37) for _ in range(rng.randint(1, 5))]
            try:
                # One in six asks for more than there is room for.
                ticket = batcher.submit(ids, max_new_tokens=rng.choice((1, 2, 3, 5, 7, 40)), **rng.choice(MENU))
            except af.InputError:
                refused += 1
                continue
            alive.append(ticket)
            expected |= {(ticket.id, answer.number) for answer in ticket.answers}
        for _ in range(min(rng.randint(0, 20), len(alive))):
            batcher.cancel(alive.pop(rng.randrange(len(alive))))
        for event in batcher.step():
            assert (event.ticket, event.answer) not in ended, "an answer goes on after its end"
            if event.reason is not None:
                ended[event.ticket, event.answer] = event.reason
        if batcher.stats.steps % 40 == 0:
            batcher.check()
    batcher.check()
    assert set(ended) == expected
    assert {*ended.values()} == {"length", "stop", "cancelled", "failed"}
    assert 1000 < refused < 2000
    pool = batcher.pool
    assert len(pool.free_seats) == pool.seats
    assert [paper.free for paper in pool.papers] == list(pool.totals)
    assert batcher.stats.preemptions > 0
    assert batcher.stats.shared_tokens > 0
    # It still serves.
    (ticket,) = batcher.run([{"input_ids": PROMPT, "max_new_tokens": 5}])
    assert ticket.answers[0].new == alone(model, list(PROMPT), max_new_tokens=5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, 99]}, "99 in row 0, column 1 is not an id below vocab = 37"),
        ({"input_ids": [1, -1]}, "-1 in row 0, column 1"),
        ({"input_ids": "text"}, "expected token ids"),
        ({"input_ids": [1.5]}, "input_ids"),
        ({"input_ids": [[1, 2], [3, 4]]}, "a request is one row"),
        ({"input_ids": [1] * 30}, "30 and 5 new tokens: 34 tokens, and the batcher serves up to 20"),
        ({"input_ids": [1] * 12}, "take 8 pages, and the batcher has 7; make it with more pages"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0, "temperature": 1.0}, "top_p"),
        ({"num_beams": 2}, "a search is not served beside other requests"),
        ({"penalty_alpha": 0.5, "top_k": 4}, "a search is not served beside other requests"),
        ({"stop": "x" * 10_000}, "10,000 characters"),
        ({"global_mask": [1, 0, 0]}, "no pattern of this model reads it"),
        ({"rope_length": 9}, "no position scheme of this model depends on the length"),
        ({"id": "taken"}, "'taken' is that of a ticket that has not ended"),
    ],
)
def test_batcher_refuses_a_bad_request_and_keeps_serving_others(given, words):
    model = small()
    batcher = Batcher(model, seats=2, length=20, pages=7, size=2, tokenizer=tokenizer())
    ticket = batcher.submit([4, 5], max_new_tokens=5, id="taken")
    batcher.step()
    with pytest.raises(af.InputError, match=words):
        batcher.submit(**({"input_ids": [1, 2, 3], "max_new_tokens": 5} | given))
    batcher.check()
    events = list(batcher)
    assert {event.ticket for event in events} == {"taken"}
    assert ticket.answers[0].new == alone(model, [4, 5], max_new_tokens=5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seats": 0}, "seats"),
        ({"size": 0}, "size"),
        ({"budget": 0}, "budget: at least 1"),
        ({"chunk": -1}, "chunk: at least 1"),
        ({"storage": "int3"}, "'int3' is unknown"),
        ({"spare": -1}, "spare: at least 0"),
        ({"length": -2}, "length"),
    ],
)
def test_batcher_refuses_a_size_that_serves_nobody(given, words):
    with pytest.raises(af.InputError, match=words):
        Batcher(small(), **given)


def test_batcher_of_a_prefix_lm_refuses_a_prompt_shorter_than_the_prefix():
    batcher = Batcher(small({"attention.pattern": "causal | prefix(6)"}), length=30)
    with pytest.raises(af.InputError, match=r"the first 6 tokens of this prefix-LM .* but the prompt has 3"):
        batcher.submit([1, 2, 3], max_new_tokens=4)


def broken(model: Model, token: int) -> Model:
    """A model for which one token is not a number."""
    table = next(p for name, p in model.named_parameters() if name.startswith("embed"))
    with torch.no_grad():
        table[token] = float("nan")
    return model


def test_batcher_ends_a_request_whose_logits_are_no_numbers_and_no_other():
    model = small({"head.tied": False})
    want = alone(model, [4, 5], max_new_tokens=6)
    batcher = Batcher(broken(model, 30), seats=4, length=20)
    good, bad, also = batcher.run(
        [
            {"input_ids": [4, 5], "max_new_tokens": 6},
            {"input_ids": [4, 30], "max_new_tokens": 6},
            {"input_ids": [4, 6], "max_new_tokens": 6, "bad_words": [[i] for i in range(37)]},
        ]
    )
    assert good.answers[0].new == want
    assert bad.answers[0].reason == also.answers[0].reason == "failed"
    assert "NaN" in str(bad.answers[0].error)
    assert "the samplers rule out every token" in str(also.answers[0].error)
    batcher.check()


@pytest.mark.parametrize("changes", [{}, {"attention.pattern": "window(5)"}, {"attention.softcap": 5.0}])
@pytest.mark.parametrize("chunk", [2, 30])
def test_batcher_lets_nobody_see_what_is_no_number(changes, chunk):
    model = small({"head.tied": False} | changes)
    rng = random.Random(1)
    asked = [[rng.randrange(1, 30) for _ in range(n)] for n in (3, 9, 4, 14, 2, 7, 5, 11)]
    want = [alone(model, ids, max_new_tokens=6, bad_words=[[30]]) for ids in asked]
    batcher = Batcher(broken(model, 30), seats=4, length=40, pages=30, size=2, chunk=chunk, budget=40)
    given = []
    for i, ids in enumerate(asked):
        given += [{"input_ids": ids, "max_new_tokens": 6, "bad_words": [[30]]}]
        given += [{"input_ids": [*ids[: i + 1], 30, *ids], "max_new_tokens": 6, "n": 1 + i % 2, "temperature": 1.0}]
    tickets = batcher.run(given)
    assert [ticket.answers[0].new for ticket in tickets[::2]] == want
    assert {answer.reason for ticket in tickets[1::2] for answer in ticket.answers} == {"failed"}
    batcher.check()
    assert all(tensor.isfinite().all() for layer in batcher.pool.layers for stream in layer for tensor in stream)


def failing(batcher: Batcher, monkeypatch, token: int, error: BaseException) -> None:
    """Let every pass fail in which a row has this token."""
    whole = batcher._run

    def run(rows):
        if any(token in answer.tokens for answer, _ in rows):
            raise error
        return whole(rows)

    monkeypatch.setattr(batcher, "_run", run)


def test_batcher_after_a_failing_pass_serves_the_rows_that_were_not_to_blame(monkeypatch):
    model = small()
    batcher = Batcher(model, seats=4, length=20, size=2)
    failing(batcher, monkeypatch, 36, RuntimeError("out of memory"))
    asked = [
        {"input_ids": [i, i + 1, last], "max_new_tokens": 6, "bad_words": [[36]]}
        for i, last in ((1, 2), (3, 36), (5, 6))
    ]
    tickets = [batcher.submit(**each) for each in asked]
    twins = batcher.submit([36, 1, 1], max_new_tokens=3, n=3, temperature=1.0)
    events = []
    while not batcher.idle:
        events += batcher.step()
        batcher.check()
    assert [ticket.answers[0].reason for ticket in tickets] == ["length", "failed", "length"]
    assert [str(answer.error) for answer in twins.answers] == ["out of memory"] * 3
    for ticket, each in zip(tickets, asked, strict=True):
        if ticket.answers[0].reason == "length":
            assert ticket.answers[0].new == alone(model, each.pop("input_ids"), **each)
    assert sum(event.reason is not None for event in events) == 6
    assert batcher.stats.retries == 4
    assert len(batcher.pool.free_seats) == 4


def test_batcher_that_is_interrupted_in_a_pass_goes_on_afterwards(monkeypatch):
    model = small()
    batcher = Batcher(model, seats=4, length=20, size=2)
    tickets = [batcher.submit([i, 2], max_new_tokens=6) for i in (1, 3)]
    batcher.step()
    with monkeypatch.context() as patch:
        failing(batcher, patch, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            batcher.step()
    batcher.check()
    for _ in batcher:
        pass
    assert [ticket.answers[0].new for ticket in tickets] == [alone(model, [i, 2], max_new_tokens=6) for i in (1, 3)]


@pytest.mark.parametrize("call", range(1, 6))
def test_batcher_that_is_interrupted_after_a_pass_goes_on_afterwards(call, monkeypatch):
    model = small()
    batcher = Batcher(model, seats=3, length=20, size=2, chunk=3, budget=6)
    asked = [{"max_new_tokens": 4}, {"max_new_tokens": 3, "temperature": 1.0, "seed": 5}]
    tickets = [batcher.submit(PROMPT[:n], **each) for n, each in zip((2, 5), asked, strict=True)]
    tickets.append(batcher.submit(PROMPT, max_new_tokens=4, temperature=1.0, seed=7, n=2))
    whole, calls = batcher.chooser._choose, iter(range(1, 100))

    def choose(logits_BV, answers):
        if next(calls) == call:
            raise KeyboardInterrupt
        return whole(logits_BV, answers)

    monkeypatch.setattr(batcher.chooser, "_choose", choose)
    with pytest.raises(KeyboardInterrupt):
        list(batcher)
    batcher.check()
    list(batcher)
    batcher.check()
    assert len(batcher.pool.free_seats) == 3
    assert [tickets[0].answers[0].new, tickets[1].answers[0].new] == [
        alone(model, list(PROMPT[:n]), **each) for n, each in zip((2, 5), asked, strict=True)
    ]
    many = af.generate(model, torch.tensor([PROMPT]), max_new_tokens=4, temperature=1.0, seed=7, n=2, stop=())
    assert [answer.new for answer in tickets[2].answers] == many[:, len(PROMPT) :].tolist()


def test_batcher_cancels_whoever_runs_waits_or_stands_behind_another():
    model = small()
    batcher = Batcher(model, seats=1, length=30, chunk=2, budget=2)
    first = batcher.submit([1, 2], max_new_tokens=9)
    many = batcher.submit(PROMPT, max_new_tokens=9, temperature=1.0, n=3)
    last = batcher.submit([3, 4], max_new_tokens=4)
    batcher.step()
    assert batcher.cancel(first)
    assert batcher.cancel(many.id)
    assert not batcher.cancel(many)
    assert not batcher.cancel("nobody")
    batcher.check()
    assert not batcher.idle
    events = list(batcher)
    assert [(e.ticket, e.answer) for e in events if e.reason == "cancelled"] == [
        (first.id, 0), (many.id, 0), (many.id, 1), (many.id, 2),
    ]  # fmt: skip
    assert last.answers[0].new == alone(model, [3, 4], max_new_tokens=4)
    assert len(first.answers[0].new) == 1


def test_batcher_gives_a_model_its_mode_back():
    model = copy.deepcopy(small()).train()
    Batcher(model, length=20).run([{"input_ids": PROMPT, "max_new_tokens": 2}])
    assert all(module.training for module in model.modules())


def test_batcher_of_a_model_that_has_changed_keeps_nothing_of_the_old_one():
    model = copy.deepcopy(small())
    prompt, asked = [7, 8, 9, 1, 2, 3, 4, 5], {"max_new_tokens": 5, "stop": ()}
    batcher = Batcher(model, length=20, size=2)

    def answered():
        return batcher.run([{"input_ids": prompt, **asked}])[0].answers[0].new

    first = answered()
    assert answered() == first
    assert batcher.stats.shared_tokens
    for assign in (False, True):
        other = {name: tensor.flip(0).clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(other, assign=assign)
        assert answered() == alone(model, prompt, **asked)
        batcher.check()


def test_batcher_run_with_a_refused_request_serves_none():
    batcher = Batcher(small(), length=20)
    with pytest.raises(af.InputError, match="is not an id below vocab"):
        batcher.run([{"input_ids": PROMPT, "max_new_tokens": 2}, {"input_ids": [99]}])
    assert {event.reason for event in batcher} == {"cancelled"}
    batcher.check()
