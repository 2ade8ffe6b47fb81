"""Continuous batching: whoever else is there, a request gets what `generate` gives it alone."""

import copy
import random

import pytest
import torch

import anyformer as af
from anyformer.generation.asking.options import Options
from anyformer.generation.asking.request import room
from anyformer.generation.batching import Batcher, Ticket
from anyformer.model.model import Model
from tests.contract.contracts import model_of, prefix_of
from tests.contract.draw import BASE, draw
from tests.generation import words
from tests.generation.talking import talking
from tests.tolerances import assert_close

MENU = (
    {}, {"temperature": 1.3}, {"temperature": 1.0, "top_k": 5, "top_p": 0.9}, {"repetition_penalty": 1.3},
    {"temperature": 0.8, "min_p": 0.05}, {"temperature": 1.1, "typical_p": 0.8, "frequency_penalty": 0.3},
)  # fmt: skip
PROMPT = (5, 6, 7, 8, 9, 10)


def small(changes: dict | None = None) -> Model:
    return model_of(af.spec(BASE, changes or {}))


def alone(model: Model, ids: list[int], **options) -> list[int]:
    """The new tokens of a request that is alone."""
    found = af.generate(model, torch.tensor([ids]), details=True, **options)
    begun = 1 if model.spec.topology == "encoder-decoder" else len(ids)
    return found.ids[0, begun : begun + found.lengths[0]].tolist()


def requests(model: Model, rng: random.Random, count: int) -> list[dict]:
    """Short prompts, some with equal beginnings, and answers that outgrow few pages."""
    spec = model.spec
    two = spec.topology == "encoder-decoder"
    least = 1 if two else max(1, prefix_of(spec))
    size, hard = room(model)
    found: list[dict] = []
    for i in range(count):
        ids = [rng.randrange(spec.input_vocab) for _ in range(max(least, rng.choice((1, 2, 3, 4, 7))))]
        if i % 3 == 2 and not two:
            ids = found[0]["input_ids"][: rng.randint(1, 9)] + ids
        new = rng.randint(1, 14)
        if hard and not two:
            new = min(new, size - len(ids) + 1)
        if two and prefix_of(spec):
            new = 1
        asked = {"input_ids": ids, "max_new_tokens": new, "stop": ()} | MENU[i % len(MENU)]
        found.append(asked | ({"seed": 100 + i} if "temperature" in asked else {}))
    return found


def serve(batcher: Batcher, asked: list[dict], rng: random.Random) -> list[Ticket]:
    """Submit requests at random times."""
    left, tickets = list(asked), []
    while left or not batcher.idle:
        while left and (rng.random() < 0.4 or batcher.idle):
            tickets.append(batcher.submit(**left.pop(0)))
        batcher.step()
        batcher.check()
    assert all(paper.free == paper.total for paper in batcher.pool.papers)
    return tickets


@pytest.mark.parametrize("seed", talking(range(120))[::3])
def test_batcher_of_a_random_spec_gives_each_request_the_tokens_it_gets_alone(seed):
    model, rng = model_of(draw(seed)), random.Random(seed)
    asked = requests(model, rng, 8)
    want = [alone(model, each["input_ids"], **{k: v for k, v in each.items() if k != "input_ids"}) for each in asked]
    batcher = Batcher(
        model, seats=4, length=40, pages=14, size=2, budget=rng.choice((4, 9, 30)), chunk=rng.choice((2, 5, 30))
    )
    tickets = serve(batcher, asked, rng)
    assert [ticket.answers[0].error for ticket in tickets] == [None] * len(asked)
    assert [ticket.answers[0].new for ticket in tickets] == want
    assert {ticket.answers[0].reason for ticket in tickets} == {"length"}


def test_batcher_with_few_pages_preempts_the_youngest_and_reads_it_again():
    model = small()
    asked = [{"input_ids": [1 + i, 2, 3], "max_new_tokens": 15, "temperature": 1.0, "seed": i} for i in range(4)]
    batcher = Batcher(model, seats=4, length=20, pages=12, size=2, budget=8)
    tickets = serve(batcher, asked, random.Random(0))
    assert batcher.stats.preemptions > 0
    assert [t.answers[0].new for t in tickets] == [
        alone(model, each.pop("input_ids"), **each) for each in ({**one} for one in asked)
    ]
    # The oldest is never the one that waits for others.
    assert batcher.stats.prefill_tokens + batcher.stats.shared_tokens > 4 * 3


def test_batcher_reads_equal_beginnings_once():
    model, ids = small(), list(range(1, 20))
    batcher = Batcher(model, seats=1, length=40, size=4)
    first, second = batcher.run([{"input_ids": ids, "max_new_tokens": 6}, {"input_ids": ids, "max_new_tokens": 6}])
    assert first.answers[0].new == second.answers[0].new == alone(model, ids, max_new_tokens=6)
    assert batcher.stats.shared_tokens == 16
    assert batcher.stats.prefill_tokens == 19 + 3
    apart = Batcher(model, seats=1, length=40, size=4, share=False)
    apart.run([{"input_ids": ids, "max_new_tokens": 6}] * 2)
    assert apart.stats.shared_tokens == 0
    assert apart.stats.prefill_tokens == 2 * 19


@pytest.mark.parametrize("seats", [8, 2])
def test_batcher_gives_several_answers_from_one_reading_of_the_prompt(seats):
    model = small()
    given = {"max_new_tokens": 7, "temperature": 1.2, "seed": 5, "n": 4}
    want = af.generate(model, torch.tensor([PROMPT]), **given)[:, len(PROMPT) :].tolist()
    batcher = Batcher(model, seats=seats, length=20, size=4, share=False)
    (ticket,) = batcher.run([{"input_ids": PROMPT, **given}])
    assert [answer.new for answer in ticket.answers] == want
    batcher.check()
    if seats == 8:
        assert batcher.stats.prefill_tokens == len(PROMPT)
        assert batcher.stats.forked_tokens == 3 * len(PROMPT)


def test_batcher_tells_log_probabilities_as_generate_does():
    model = small()
    given = {"max_new_tokens": 4, "logprobs": 3, "prompt_logprobs": 2}
    want = af.generate(model, torch.tensor([PROMPT]), details=True, **given)
    batcher = Batcher(model, length=20, chunk=4, size=4)
    batcher.submit([3, 4, 5], max_new_tokens=9)
    ticket = batcher.submit(PROMPT, **given)
    mine = [event for event in batcher if event.ticket == ticket.id]
    assert [event.ids for event in mine] == [(i,) for i in want.ids[0, len(PROMPT) :].tolist()]
    assert_close("promise", torch.tensor([e.logprobs for e in mine])[:, 0], want.logprobs[0].to(torch.float32))
    top = [[each for each, _ in event.top[0]] for event in mine]
    assert top == want.top.ids[0].tolist()
    first, *rest = mine[0].prompt_logprobs
    assert first is None
    assert_close("promise", torch.tensor([value for value, _ in rest]), want.prompt_logprobs[0, 1:].to(torch.float32))
    assert [[each for each, _ in top] for _, top in rest] == want.prompt_top.ids[0, 1:].tolist()
    assert all(event.prompt_logprobs is None for event in mine[1:])


def test_batcher_reads_marks_of_a_prompt_in_chunks():
    model = small({"attention.pattern": "causal & (window(2) | global_tokens)"})
    marks = [1, 0, 0, 1, 0, 1]
    want = af.generate(model, torch.tensor([PROMPT]), global_mask=torch.tensor([marks]), max_new_tokens=6)
    plain = af.generate(model, torch.tensor([PROMPT]), max_new_tokens=6)
    batcher = Batcher(model, seats=3, length=30, size=4, chunk=5, budget=5)
    tickets = batcher.run(
        [
            {"input_ids": PROMPT, "max_new_tokens": 6},
            {"input_ids": PROMPT, "max_new_tokens": 6, "global_mask": marks},
        ]
    )
    assert [t.answers[0].tokens for t in tickets] == [plain[0].tolist(), want[0].tolist()]
    assert not torch.equal(plain, want)


def test_batcher_with_a_declared_length_rotates_as_generate_does():
    model = small({"position": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 4.0, "original": 8}}})
    assert model.reads_length
    asked = [{"input_ids": PROMPT[: 3 + i], "max_new_tokens": 5 + 2 * i} for i in range(3)]
    asked += [{"input_ids": PROMPT, "max_new_tokens": 5, "rope_length": 33}]
    batcher = Batcher(model, seats=4, length=40, size=2)
    found = [ticket.answers[0].new for ticket in batcher.run(asked)]
    assert found == [alone(model, list(each.pop("input_ids")), **each) for each in ({**one} for one in asked)]


def test_batcher_ends_answers_at_stop_ids_strings_and_choices():
    model, tokenizer = words.model(), words.tokenizer()
    ids = tokenizer.encode("no thanks")
    free = alone(model, ids, max_new_tokens=12, stop=())
    text = tokenizer.decode(free)
    asked = [
        {"stop": (free[3],)},
        {"stop": text[len(text) // 3 : len(text) // 3 + 2]},
        {"choices": ["no thanks", "yes"]},
        {"temperature": 2.0, "seed": 4, "choices": ["no thanks", "yes"]},
    ]
    batcher = Batcher(model, length=60, tokenizer=tokenizer)
    tickets = batcher.run(
        [{"input_ids": ids, **({} if "choices" in o else {"max_new_tokens": 12}), **o} for o in asked]
    )
    for ticket, options in zip(tickets, asked, strict=True):
        more = {} if "choices" in options else {"max_new_tokens": 12}
        want = af.generate(model, torch.tensor([ids]), tokenizer=tokenizer, details=True, **more, **options)
        assert ticket.answers[0].new == want.ids[0, len(ids) : len(ids) + want.lengths[0]].tolist()
        assert ticket.answers[0].reason == want.reasons[0] == "stop"


def test_batcher_reads_no_more_than_its_budget_in_a_step(monkeypatch):
    batcher = Batcher(small(), seats=6, length=60, budget=12, chunk=8, size=4)
    read: list[int] = []
    whole = batcher._run
    monkeypatch.setattr(batcher, "_run", lambda rows: (read.extend(n for _, n in rows), whole(rows))[1])
    for i in range(9):
        batcher.submit(list(range(1, 4 + 3 * i)), max_new_tokens=9)
    while not batcher.idle:
        read.clear()
        batcher.step()
        assert sum(read) <= 12
        assert max(read, default=0) <= 8
    assert batcher.stats.finished == 9


def test_batcher_of_int8_keeps_its_books():
    batcher = Batcher(small(), seats=3, length=30, pages=20, size=2, storage="int8")
    tickets = batcher.run([{"input_ids": PROMPT[:n], "max_new_tokens": 12} for n in range(1, 7)])
    assert [len(ticket.answers[0].new) for ticket in tickets] == [12] * 6
    batcher.check()


def test_batcher_takes_options_as_an_object_or_by_name():
    batcher = Batcher(small(), length=20)
    one = batcher.submit(PROMPT, Options(max_new_tokens=3))
    other = batcher.submit(torch.tensor(PROMPT), max_new_tokens=3, id="mine")
    events = list(batcher)
    assert {event.ticket for event in events} == {one.id, "mine"}
    assert one.answers[0].new == other.answers[0].new
    with pytest.raises(TypeError, match="leave out top_k"):
        batcher.submit(PROMPT, Options(max_new_tokens=3), top_k=3)
    with pytest.raises(TypeError, match="'max_tokens' is called 'max_new_tokens'"):
        batcher.submit(PROMPT, max_tokens=3)


def test_batcher_with_same_shapes_gives_the_same_bits_in_any_company():
    seed = talking(range(40), "decoder")[1]
    # A copy: the model itself is kept for other tests.
    model = copy.deepcopy(model_of(draw(seed))).float()
    generator = torch.Generator().manual_seed(seed)
    sizes = [7, 12, 9, 19, 8]
    prompts = [torch.randint(0, model.spec.input_vocab, (n,), generator=generator).tolist() for n in sizes]
    asked = {"max_new_tokens": 6, "stop": (), "logprobs": 0}

    def answers(groups: list[list[int]]) -> dict[int, list[float]]:
        batcher = Batcher(model, seats=4, length=40, chunk=16, budget=20, same_shapes=True)
        found = {}
        for group in groups:
            tickets = batcher.run([{"input_ids": prompts[i], **asked} for i in group])
            found |= {i: ticket.answers[0].logprobs for i, ticket in zip(group, tickets, strict=True)}
        batcher.check()
        return found

    alone, together = answers([[i] for i in range(5)]), answers([[4, 2, 0, 1, 3]])
    assert alone == together
