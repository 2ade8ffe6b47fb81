"""The engine: whoever else is there, a request gets what `generate` gives it alone."""

import copy
import random

import pytest
import torch

import anyformer as af
from anyformer.generation.engine import Engine, Request
from anyformer.generation.params.generation_request import context_length
from anyformer.generation.params.sampling_params import SamplingParams
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
    size, hard = context_length(model)
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


def serve(engine: Engine, asked: list[dict], rng: random.Random) -> list[Request]:
    """Submit requests at random times."""
    left, added = list(asked), []
    while left or not engine.idle:
        while left and (rng.random() < 0.4 or engine.idle):
            added.append(engine.add_request(**left.pop(0)))
        engine.step()
        engine.check()
    assert all(manager.free == manager.total for manager in engine.pool.managers)
    return added


@pytest.mark.parametrize("seed", talking(range(120))[::3])
def test_engine_of_a_random_spec_gives_each_request_the_tokens_it_gets_alone(seed):
    model, rng = model_of(draw(seed)), random.Random(seed)
    asked = requests(model, rng, 8)
    want = [alone(model, each["input_ids"], **{k: v for k, v in each.items() if k != "input_ids"}) for each in asked]
    engine = Engine(
        model,
        max_num_seqs=4,
        max_model_len=40,
        num_blocks=14,
        block_size=2,
        max_num_batched_tokens=rng.choice((4, 9, 30)),
        prefill_chunk=rng.choice((2, 5, 30)),
    )
    added = serve(engine, asked, rng)
    assert [request.sequences[0].error for request in added] == [None] * len(asked)
    assert [request.sequences[0].new for request in added] == want
    assert {request.sequences[0].finish_reason for request in added} == {"length"}


def test_engine_with_few_pages_preempts_the_youngest_and_reads_it_again():
    model = small()
    asked = [{"input_ids": [1 + i, 2, 3], "max_new_tokens": 15, "temperature": 1.0, "seed": i} for i in range(4)]
    engine = Engine(model, max_num_seqs=4, max_model_len=20, num_blocks=12, block_size=2, max_num_batched_tokens=8)
    added = serve(engine, asked, random.Random(0))
    assert engine.stats.preemptions > 0
    assert [t.sequences[0].new for t in added] == [
        alone(model, each.pop("input_ids"), **each) for each in ({**one} for one in asked)
    ]
    # The oldest is never the one that waits for others.
    assert engine.stats.prefill_tokens + engine.stats.cached_tokens > 4 * 3


def test_engine_reads_equal_beginnings_once():
    model, ids = small(), list(range(1, 20))
    engine = Engine(model, max_num_seqs=1, max_model_len=40, block_size=4)
    first, second = engine.run([{"input_ids": ids, "max_new_tokens": 6}, {"input_ids": ids, "max_new_tokens": 6}])
    assert first.sequences[0].new == second.sequences[0].new == alone(model, ids, max_new_tokens=6)
    assert engine.stats.cached_tokens == 16
    assert engine.stats.prefill_tokens == 19 + 3
    apart = Engine(model, max_num_seqs=1, max_model_len=40, block_size=4, enable_prefix_caching=False)
    apart.run([{"input_ids": ids, "max_new_tokens": 6}] * 2)
    assert apart.stats.cached_tokens == 0
    assert apart.stats.prefill_tokens == 2 * 19


@pytest.mark.parametrize("seats", [8, 2])
def test_engine_gives_several_answers_from_one_reading_of_the_prompt(seats):
    model = small()
    given = {"max_new_tokens": 7, "temperature": 1.2, "seed": 5, "n": 4}
    want = af.generate(model, torch.tensor([PROMPT]), **given)[:, len(PROMPT) :].tolist()
    engine = Engine(model, max_num_seqs=seats, max_model_len=20, block_size=4, enable_prefix_caching=False)
    (request,) = engine.run([{"input_ids": PROMPT, **given}])
    assert [answer.new for answer in request.sequences] == want
    engine.check()
    if seats == 8:
        assert engine.stats.prefill_tokens == len(PROMPT)
        assert engine.stats.forked_tokens == 3 * len(PROMPT)


def test_engine_tells_log_probabilities_as_generate_does():
    model = small()
    given = {"max_new_tokens": 4, "logprobs": 3, "prompt_logprobs": 2}
    want = af.generate(model, torch.tensor([PROMPT]), details=True, **given)
    engine = Engine(model, max_model_len=20, prefill_chunk=4, block_size=4)
    engine.add_request([3, 4, 5], max_new_tokens=9)
    request = engine.add_request(PROMPT, **given)
    mine = [event for event in engine if event.request == request.id]
    assert [event.ids for event in mine] == [(i,) for i in want.ids[0, len(PROMPT) :].tolist()]
    assert_close("promise", torch.tensor([e.logprobs for e in mine])[:, 0], want.logprobs[0].to(torch.float32))
    top = [[each for each, _ in event.top[0]] for event in mine]
    assert top == want.top.ids[0].tolist()
    first, *rest = mine[0].prompt_logprobs
    assert first is None
    assert_close("promise", torch.tensor([value for value, _ in rest]), want.prompt_logprobs[0, 1:].to(torch.float32))
    assert [[each for each, _ in top] for _, top in rest] == want.prompt_top.ids[0, 1:].tolist()
    assert all(event.prompt_logprobs is None for event in mine[1:])


def test_engine_reads_marks_of_a_prompt_in_chunks():
    model = small({"attention.pattern": "causal & (window(2) | global_tokens)"})
    marks = [1, 0, 0, 1, 0, 1]
    want = af.generate(model, torch.tensor([PROMPT]), global_mask=torch.tensor([marks]), max_new_tokens=6)
    plain = af.generate(model, torch.tensor([PROMPT]), max_new_tokens=6)
    engine = Engine(model, max_num_seqs=3, max_model_len=30, block_size=4, prefill_chunk=5, max_num_batched_tokens=5)
    added = engine.run(
        [
            {"input_ids": PROMPT, "max_new_tokens": 6},
            {"input_ids": PROMPT, "max_new_tokens": 6, "global_mask": marks},
        ]
    )
    assert [t.sequences[0].tokens for t in added] == [plain[0].tolist(), want[0].tolist()]
    assert not torch.equal(plain, want)


def test_engine_with_a_declared_length_rotates_as_generate_does():
    model = small({"position": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 4.0, "original": 8}}})
    assert model.reads_length
    asked = [{"input_ids": PROMPT[: 3 + i], "max_new_tokens": 5 + 2 * i} for i in range(3)]
    asked += [{"input_ids": PROMPT, "max_new_tokens": 5, "rope_length": 33}]
    engine = Engine(model, max_num_seqs=4, max_model_len=40, block_size=2)
    found = [request.sequences[0].new for request in engine.run(asked)]
    assert found == [alone(model, list(each.pop("input_ids")), **each) for each in ({**one} for one in asked)]


def test_engine_ends_answers_at_stop_ids_strings_and_choices():
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
    engine = Engine(model, max_model_len=60, tokenizer=tokenizer)
    added = engine.run([{"input_ids": ids, **({} if "choices" in o else {"max_new_tokens": 12}), **o} for o in asked])
    for request, options in zip(added, asked, strict=True):
        more = {} if "choices" in options else {"max_new_tokens": 12}
        want = af.generate(model, torch.tensor([ids]), tokenizer=tokenizer, details=True, **more, **options)
        assert request.sequences[0].new == want.ids[0, len(ids) : len(ids) + want.lengths[0]].tolist()
        assert request.sequences[0].finish_reason == want.reasons[0] == "stop"


def test_engine_reads_no_more_than_its_budget_in_a_step(monkeypatch):
    engine = Engine(small(), max_num_seqs=6, max_model_len=60, max_num_batched_tokens=12, prefill_chunk=8, block_size=4)
    read: list[int] = []
    forward, decode = engine.runner.forward, engine.runner.decode
    monkeypatch.setattr(
        engine.runner, "forward", lambda some, ids, **more: (read.extend(map(len, ids)), forward(some, ids, **more))[1]
    )
    monkeypatch.setattr(engine.runner, "decode", lambda some, ids: (read.extend([1] * len(ids)), decode(some, ids))[1])
    for i in range(9):
        engine.add_request(list(range(1, 4 + 3 * i)), max_new_tokens=9)
    while not engine.idle:
        read.clear()
        engine.step()
        assert sum(read) <= 12
        assert max(read, default=0) <= 8
    assert engine.stats.finished == 9


def test_engine_of_int8_keeps_its_books():
    engine = Engine(small(), max_num_seqs=3, max_model_len=30, num_blocks=20, block_size=2, kv_cache_dtype="int8")
    added = engine.run([{"input_ids": PROMPT[:n], "max_new_tokens": 12} for n in range(1, 7)])
    assert [len(request.sequences[0].new) for request in added] == [12] * 6
    engine.check()


def test_engine_takes_options_as_an_object_or_by_name():
    engine = Engine(small(), max_model_len=20)
    one = engine.add_request(PROMPT, SamplingParams(max_new_tokens=3))
    other = engine.add_request(torch.tensor(PROMPT), max_new_tokens=3, id="mine")
    events = list(engine)
    assert {event.request for event in events} == {one.id, "mine"}
    assert one.sequences[0].new == other.sequences[0].new
    with pytest.raises(TypeError, match="leave out top_k"):
        engine.add_request(PROMPT, SamplingParams(max_new_tokens=3), top_k=3)
    with pytest.raises(TypeError, match="'max_tokens' is called 'max_new_tokens'"):
        engine.add_request(PROMPT, max_tokens=3)


def test_engine_with_same_shapes_gives_the_same_bits_in_any_company():
    seed = talking(range(40), "decoder")[1]
    # A copy: the model itself is kept for other tests.
    model = copy.deepcopy(model_of(draw(seed))).float()
    generator = torch.Generator().manual_seed(seed)
    sizes = [7, 12, 9, 19, 8]
    prompts = [torch.randint(0, model.spec.input_vocab, (n,), generator=generator).tolist() for n in sizes]
    asked = {"max_new_tokens": 6, "stop": (), "logprobs": 0}

    def answers(groups: list[list[int]]) -> dict[int, list[float]]:
        engine = Engine(
            model, max_num_seqs=4, max_model_len=40, prefill_chunk=16, max_num_batched_tokens=20, batch_invariant=True
        )
        found = {}
        for group in groups:
            added = engine.run([{"input_ids": prompts[i], **asked} for i in group])
            found |= {i: request.sequences[0].logprobs for i, request in zip(group, added, strict=True)}
        engine.check()
        return found

    alone, together = answers([[i] for i in range(5)]), answers([[4, 2, 0, 1, 3]])
    assert alone == together


SEARCHES = ({"num_beams": 3}, {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.7, "n": 2}, {"penalty_alpha": 0.6, "top_k": 3})  # fmt: skip


@pytest.mark.parametrize("seed", talking(range(60))[::4])
@pytest.mark.parametrize("num_blocks", [None, 34])
def test_engine_serves_searches_beside_other_requests_as_generate_does(seed, num_blocks):
    spec = draw(seed)
    model, rng = model_of(spec), random.Random(seed)
    asked = [each | ({"max_new_tokens": 5} if i % 2 else {}) for i, each in enumerate(requests(model, rng, 6))]
    for i, search in enumerate(SEARCHES):
        asked[2 * i] = {"input_ids": asked[2 * i]["input_ids"], "max_new_tokens": min(4, asked[2 * i]["max_new_tokens"])} | search  # fmt: skip
    size, hard = context_length(model)
    if hard and spec.topology == "decoder":
        asked = [each for each in asked if len(each["input_ids"]) + each["max_new_tokens"] <= size]
    if spec.topology == "encoder-decoder" and prefix_of(spec):
        asked = [each for each in asked if each["max_new_tokens"] == 1 and "penalty_alpha" not in each]
    engine = Engine(model, max_num_seqs=6, max_model_len=26, num_blocks=num_blocks, block_size=2, watermark=0)
    added = serve(engine, asked, rng)
    for each, one in zip(added, asked, strict=True):
        ids = torch.tensor([one["input_ids"]])
        want = af.generate(model, ids, details=True, **{k: v for k, v in one.items() if k != "input_ids"})
        begun = 1 if spec.topology == "encoder-decoder" else ids.shape[1]
        new = [row[begun : begun + n].tolist() for row, n in zip(want.ids, want.lengths, strict=True)]
        assert [sequence.new for sequence in each.sequences] == new
        assert [sequence.finish_reason for sequence in each.sequences] == list(want.reasons)


@pytest.mark.parametrize(
    "way", [{"lookup": True, "guesses": 3}, {"draft": None, "guesses": 2}], ids=["lookup", "draft"]
)
@pytest.mark.parametrize("seed", talking(range(40), "decoder")[::4])
def test_engine_with_proposals_gives_each_request_the_tokens_it_gets_alone(seed, way):
    model, rng = model_of(draw(seed)), random.Random(seed)
    given = way | ({"draft": model} if "draft" in way else {})
    asked = requests(model, rng, 5)
    want = [alone(model, each["input_ids"], **{k: v for k, v in each.items() if k != "input_ids"}) for each in asked]
    engine = Engine(model, max_num_seqs=3, max_model_len=40, block_size=4, **given)
    assert [each.sequences[0].new for each in serve(engine, asked, rng)] == want
    assert engine.stats.accepted_tokens <= engine.stats.proposed_tokens


@pytest.mark.parametrize("slots", [8, 12])
def test_engine_with_slots_for_few_beams_preempts_younger_searches_and_gives_each_its_answer(slots):
    model = small()
    asked = [{"input_ids": [i, 2, 3, 4], "max_new_tokens": 5, "num_beams": 4} for i in range(1, 6)]
    asked += [{"input_ids": PROMPT, "max_new_tokens": 6}]
    engine = Engine(model, max_num_seqs=slots, max_model_len=20, block_size=2)
    added = serve(engine, [{**each} for each in asked], random.Random(0))
    assert [each.sequences[0].new for each in added] == [
        alone(model, list(one.pop("input_ids")), **one) for one in asked
    ]


def test_engine_reads_the_prompt_of_a_contrastive_search_at_once():
    model, ids = small(), [1 + i % 30 for i in range(17)]
    given = {"max_new_tokens": 5, "penalty_alpha": 0.6, "top_k": 4}
    for chunk in (4, 16):
        (found,) = Engine(model, max_model_len=40, prefill_chunk=chunk).run([{"input_ids": ids, **given}])
        assert found.sequences[0].new == alone(model, ids, **given)


@pytest.mark.parametrize("search", [{"num_beams": 3}, {"penalty_alpha": 0.6, "top_k": 3}])
def test_engine_gives_a_search_as_many_tokens_as_it_has_room_for(search):
    engine = Engine(small(), max_model_len=18, block_size=4)
    (found,) = engine.run([{"input_ids": PROMPT, "stop": (), **search}])
    assert len(found.sequences[0].new) == 18 - len(PROMPT) + ("num_beams" in search)
    engine.check()


@pytest.mark.parametrize("way", [{"lookup": True}, {"draft": None}], ids=["lookup", "draft"])
def test_engine_with_proposals_and_few_blocks_serves_several_answers_of_one_prompt(way):
    model, ids = small(), [5, 6, 5, 6, 5, 6, 5, 6, 5]
    given = {"max_new_tokens": 8, "temperature": 0.7, "seed": 3, "n": 3}
    want = af.generate(model, torch.tensor([ids]), **given)[:, len(ids) :].tolist()
    engine = Engine(
        model, max_num_seqs=4, max_model_len=20, num_blocks=14, block_size=2, prefill_chunk=8, guesses=3,
        **(way | ({"draft": model} if "draft" in way else {})),
    )  # fmt: skip
    (found,) = engine.run([{"input_ids": ids, **given}])
    assert [each.new for each in found.sequences] == want
    engine.check()


def test_engine_run_keeps_the_events_of_requests_that_came_before_it():
    engine = Engine(small(), max_model_len=20)
    first = engine.add_request(PROMPT, max_new_tokens=2, id=1)
    second = engine.add_request(PROMPT, max_new_tokens=2)
    engine.run([{"input_ids": [1, 2], "max_new_tokens": 6}])
    told = [event.request for event in engine]
    assert told.count(first.id) == told.count(second.id) == 2
