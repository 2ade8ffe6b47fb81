"""Guided decoding: every answer fits its grammar, however it is computed and whoever is beside it."""

import copy
import json
import random
import re

import pytest
import torch

import anyformer as af
from anyformer.generation.engine import Engine
from anyformer.generation.guided.compiled import compile_grammar
from anyformer.generation.params.sampling_params import SamplingParams
from anyformer.generation.text.detokenizer import Detokenizer
from anyformer.model.model import Model
from tests.contract.contracts import randomise
from tests.contract.draw import BASE
from tests.generation import words
from tests.generation.guiding import PIECES, allowed, fits, model, pieces, texts
from tests.generation.test_engine import alone, serve

PROMPT = (1, 2, 3)
LISTS = {"grammar": 'start: "a" ("-" item)*\nitem: "1" | "2" | "b" item'}
EXPRESSIONS = (
    "abc",
    "(ab|bc){1,2}",
    "[abc]{2}-[12]",
    "(a|ab)(c|bcc)?1",
    "(a1|1a) ?b",
    "[^b]{3}",
    "c{2,5}",
    "a|ab|abc|1-2",
)


def talker(seed: int = 0, eos: tuple[int, ...] = (0,)) -> Model:
    """A model of single bytes and a few words, with room for an answer in JSON."""
    spec = af.spec(BASE, {"vocab": 300, "ids.eos": list(eos), "context": 320})
    return randomise(af.build(spec, dtype=torch.float64), seed).eval()


def said(found, i: int = 0, tokenizer=None) -> str:
    """The new text of a row."""
    begun = found.ids.shape[1] - found.logprobs.shape[1]
    return (tokenizer or pieces()).decode(found.ids[i, begun : begun + found.lengths[i]].tolist())


def asked(guided: object, **more):
    return af.generate(model(), torch.tensor([PROMPT]), guided=guided, tokenizer=pieces(), details=True, **more)


SCHEMAS = (
    {"type": "object", "properties": {"a": {"enum": ["x", "yy", 3, None, True]}, "b": {"const": {"c": [1, "z"]}}}, "required": ["a", "b"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 120}, "minItems": 2, "maxItems": 4},
    {"type": "object", "properties": {"who": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "old": {"type": "boolean"}}, "required": ["name"], "additionalProperties": False}, "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "maxItems": 2}}, "required": ["who", "tags"], "additionalProperties": False},
    {"anyOf": [{"type": "number", "minimum": 0, "maximum": 9.5}, {"type": "null"}, {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}]},
    {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"], "additionalProperties": False},
)  # fmt: skip


@pytest.mark.parametrize("which", range(len(SCHEMAS)))
def test_every_answer_is_json_that_fits_its_schema(which):
    schema, seen = SCHEMAS[which], set()
    ids, ended = torch.tensor([words.tokenizer().encode("the cat")]), 0
    for seed in range(6):
        given = {"temperature": 1.0, "seed": seed, "n": 4, "max_new_tokens": 300, "details": True}
        found = af.generate(talker(seed), ids, tokenizer=words.tokenizer(), guided={"json_schema": schema}, **given)
        for i, reason in enumerate(found.reasons):
            text = said(found, i, words.tokenizer())
            seen.add(text)
            if reason == "stop":
                ended += 1
                assert fits(json.loads(text), schema), text
            else:
                assert found.lengths[i] == 300
    assert ended >= 20
    assert len(seen) > 6


def test_every_answer_is_a_json_object():
    ids, ended = torch.tensor([words.tokenizer().encode("the cat")]), 0
    for seed in range(4):
        given = {"temperature": 0.7, "seed": seed, "n": 4, "details": True, "max_new_tokens": 300}
        found = af.generate(talker(seed), ids, tokenizer=words.tokenizer(), guided={"json_object": True}, **given)
        for i, reason in enumerate(found.reasons):
            if reason == "stop":
                ended += 1
                assert isinstance(json.loads(said(found, i, words.tokenizer())), dict)
    assert ended > 2


@pytest.mark.parametrize("expression", [r"[a-f]{3}-\d{2,4}", "(yes|no)( (please|thanks))?!", r"\p{L}{2}é?[^a ]{1,3}", "(?i)the cat|x{4}"])  # fmt: skip
def test_every_answer_matches_its_expression(expression):
    ids = torch.tensor([words.tokenizer().encode("the cat")])
    python = expression.replace(r"\p{L}", r"[^\W\d_]")
    for seed in range(5):
        given = {"temperature": 1.5, "seed": seed, "n": 6, "details": True}
        found = af.generate(talker(seed), ids, tokenizer=words.tokenizer(), guided={"regex": expression}, **given)
        for i in range(6):
            assert re.fullmatch(python, said(found, i, words.tokenizer())), said(found, i, words.tokenizer())
            assert found.reasons[i] == "stop"


GRAMMARS = (
    ({"grammar": 'start: greeting ("-" /[12]/)?\ngreeting: "ab" | "c"{2}'}, "(ab|cc)(-[12])?"),
    ({"grammar": 'root ::= word ("-" [12])?\nword ::= "ab" | "c" "c"'}, "(ab|cc)(-[12])?"),
    ({"grammar": 'start: "a" inner "b"\ninner: "1" | "a" inner "b"'}, "a(1|a(1|a(1|a.*b)b)b)b"),
)


@pytest.mark.parametrize(("given", "expression"), GRAMMARS)
def test_every_answer_is_of_its_grammar(given, expression):
    found = asked(given, temperature=1.0, seed=1, n=20, max_new_tokens=40)
    for i, reason in enumerate(found.reasons):
        assert re.fullmatch(expression, said(found, i)) or reason == "length"
    assert found.reasons.count("stop") > 15


@torch.no_grad()
def likeliest(m: Model, ids: list[int], language: set[str], eos: tuple[int, ...]) -> list[int]:
    """Greedy decoding by the definition: of all tokens that lead to some text of the language, the likeliest."""
    new, text = list[int](), ""
    while some := sorted(allowed(language, text, eos)):
        if some == [*eos] and text in language:
            break
        logits_V = m(torch.tensor([[*ids, *new]])).logits[0, -1]
        new.append(max(some, key=lambda i: (float(logits_V[i]), -i)))
        if new[-1] in eos:
            break
        text += PIECES[new[-1] - 1]
    return new


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("eos", [(0,), ()])
def test_greedy_tokens_are_the_likeliest_of_those_that_lead_to_a_text(expression, eos):
    language = texts(expression)
    for seed in range(6):
        m = model(seed, eos)
        want = likeliest(m, [*PROMPT], language, eos)
        found = af.generate(
            m, torch.tensor([PROMPT]), guided={"regex": expression}, tokenizer=pieces(), details=True, max_new_tokens=20
        )
        assert found.ids[0, 3 : 3 + found.lengths[0]].tolist() == want
        assert found.reasons == ("stop",)


WAYS = (
    {}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.4, "top_k": 7, "top_p": 0.9, "seed": 4}, {"temperature": 0.8, "min_p": 0.05, "seed": 5},
    {"temperature": 1.0, "typical_p": 0.8, "seed": 6}, {"repetition_penalty": 1.4}, {"temperature": 1.0, "seed": 7, "n": 3, "frequency_penalty": 0.5},
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("more", [{}, {"use_cache": False}, {"lookup": True}, {"stop": "c1"}])
def test_grammar_that_allows_everything_changes_no_token(way, more):
    want = asked(None, max_new_tokens=15, logprobs=2, **way, **more)
    found = asked({"regex": r"(.|\n)*"}, max_new_tokens=15, logprobs=2, **way, **more)
    assert torch.equal(found.ids, want.ids)
    assert (found.reasons, found.lengths, found.met) == (want.reasons, want.lengths, want.met)
    assert torch.equal(found.logprobs, want.logprobs)
    assert torch.equal(found.top.logprobs, want.top.logprobs)


def test_log_probabilities_of_a_guided_answer_are_the_models_own():
    found = asked({"regex": "(ab|c){3}1"}, logprobs=3)
    with torch.no_grad():
        own = model()(found.ids[:, :-1]).logits[0].log_softmax(-1)[2:]
    new = found.ids[0, 3:]
    assert torch.allclose(found.logprobs[0], own.gather(-1, new[:, None])[:, 0])
    assert torch.equal(found.top.ids[0], own.topk(3).indices)


@pytest.mark.parametrize("guided", [{"regex": "(ab|c){3}[12]{2}"}, LISTS])
@pytest.mark.parametrize("way", [{}, {"temperature": 1.2, "seed": 9}, {"temperature": 1.0, "seed": [8], "n": 3}])
def test_guided_tokens_are_the_same_by_whatever_means(guided, way):
    given = {"max_new_tokens": 12, **way}
    want = asked(guided, **given)
    for more in (
        {"use_cache": False},
        {"lookup": True, "guesses": 3},
        {"draft": model(1), "guesses": 2},
        {"draft": model()},
    ):
        found = asked(guided, **given, **more)
        assert torch.equal(found.ids, want.ids)
        assert found.reasons == want.reasons
    options = {"guided": guided, "tokenizer": pieces(), **given}
    steps = list(af.generate(model(), torch.tensor([PROMPT]), stream=True, **options))
    assert torch.equal(torch.stack(steps, 1), want.ids[:, 3:])
    detailed = list(af.generate(model(), torch.tensor([PROMPT]), stream=True, details=True, **options))
    assert torch.equal(torch.stack([step.ids_B for step in detailed], 1), want.ids[:, 3:])
    assert [bool(x) for x in detailed[-1].finished_B] == [reason == "stop" for reason in want.reasons]


def test_guided_tokens_through_torch_compile_are_the_same():
    torch._dynamo.reset()
    given = {"temperature": 1.2, "seed": 9, "max_new_tokens": 6}
    assert torch.equal(asked(LISTS, compile="eager", **given).ids, asked(LISTS, **given).ids)


def test_guided_rows_of_a_batch_are_those_alone():
    ids = torch.tensor([PROMPT, (4, 5, 6), (7, 8, 9)])
    given = {"guided": LISTS, "tokenizer": pieces(), "temperature": 1.3, "max_new_tokens": 14, "details": True}
    together = af.generate(model(), ids, seed=[3, 4, 5], **given)
    for i, row in enumerate(ids):
        one = af.generate(model(), row[None], seed=[3 + i], **given)
        length = one.lengths[0]
        assert (length, one.reasons[0]) == (together.lengths[i], together.reasons[i])
        assert torch.equal(one.ids[0, : 3 + length], together.ids[i, : 3 + length])


MIX = (
    {}, {"guided": {"regex": "(ab|c){2,6}[12]"}}, {"temperature": 1.1}, {"guided": LISTS, "temperature": 1.3}, {"temperature": 0.9, "top_p": 0.9},
    {"guided": {"regex": "[abc12 -]{4,9}"}, "temperature": 1.0, "top_k": 9}, {"repetition_penalty": 1.2},
    {"guided": {"regex": "(a|b|c)+-1"}, "temperature": 0.7, "n": 2}, {"guided": {"regex": r"(.|\n)*"}, "temperature": 1.2},
)  # fmt: skip


def mixed(rng: random.Random, count: int = 18) -> list[dict]:
    found = []
    for i in range(count):
        prompt = [rng.randrange(1, 19) for _ in range(rng.choice((1, 3, 6)))]
        if i % 3 == 2:
            prompt = found[0]["input_ids"] + prompt
        one = {"input_ids": prompt, "max_new_tokens": rng.randint(2, 13)} | MIX[i % len(MIX)]
        found.append(one | ({"seed": 50 + i} if "temperature" in one else {}))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"num_blocks": 16, "watermark": 0}, {"batch_invariant": True}, {"enable_prefix_caching": False, "max_num_seqs": 2},
        {"lookup": True, "guesses": 3}, {"draft": None, "guesses": 2}, {"max_num_batched_tokens": 5, "prefill_chunk": 3},
    ],
    ids=["plain", "preempted", "invariant", "uncached", "lookup", "draft", "chunked"],
)  # fmt: skip
def test_engine_gives_guided_and_other_requests_what_each_gets_alone(settings):
    rng = random.Random(len(settings))
    todo = mixed(rng)
    more = settings | ({"draft": model(1)} if "draft" in settings else {})
    engine = Engine(model(), **{"max_num_seqs": 4, "max_model_len": 40, "block_size": 2, "tokenizer": pieces()} | more)
    added = serve(engine, todo, rng)
    engine.check()
    if "num_blocks" in settings:
        assert engine.stats.preemptions > 0
    if "guesses" in settings:
        assert engine.stats.accepted_tokens > 0
    for one, request in zip(todo, added, strict=True):
        options = {k: v for k, v in one.items() if k != "input_ids"}
        want = af.generate(model(), torch.tensor([one["input_ids"]]), tokenizer=pieces(), details=True, **options)
        begun = len(one["input_ids"])
        rows = [row[begun : begun + n].tolist() for row, n in zip(want.ids, want.lengths, strict=True)]
        assert [each.new for each in request.sequences] == rows
        assert tuple(each.finish_reason for each in request.sequences) == want.reasons


def test_rows_beside_a_guided_one_get_the_same_numbers():
    others = [{"input_ids": [5, 6, 7 + i], "max_new_tokens": 9, "logprobs": 3} for i in range(3)]
    guided = {"input_ids": [5, 6, 7], "max_new_tokens": 9, "guided": LISTS}
    plain, beside = (
        Engine(model(), max_model_len=40, tokenizer=pieces()).run([{**one} for one in some])
        for some in (others, [guided, *others])
    )
    for a, b in zip(plain, beside[1:], strict=True):
        assert a.sequences[0].tokens == b.sequences[0].tokens
        assert torch.allclose(torch.tensor(a.sequences[0].logprobs), torch.tensor(b.sequences[0].logprobs))


def test_guided_row_whose_pass_failed_begins_again_with_the_same_answer(monkeypatch):
    engine = Engine(model(), max_model_len=40, tokenizer=pieces())
    want = alone(model(), [*PROMPT], guided={"regex": "(ab|c){4}12"}, tokenizer=pieces(), temperature=1.0, seed=2)
    request = engine.add_request(PROMPT, guided={"regex": "(ab|c){4}12"}, temperature=1.0, seed=2)
    other = engine.add_request((4, 5), max_new_tokens=12)
    for _ in range(3):
        engine.step()
    decode, failures = engine.runner.decode, [RuntimeError("once"), RuntimeError("twice")]

    def fails(*given):
        if failures:
            raise failures.pop()
        return decode(*given)

    with monkeypatch.context() as patched:
        patched.setattr(engine.runner, "decode", fails)
        engine.step()
        failures.clear()
        while not engine.idle:
            engine.step()
            engine.check()
    assert engine.stats.retries > 0
    assert request.sequences[0].new == want
    assert other.sequences[0].new == alone(model(), [4, 5], max_new_tokens=12)


def test_guided_row_that_was_interrupted_goes_on_with_the_same_answer(monkeypatch):
    given = {"guided": {"regex": "(ab|c){4}12"}, "temperature": 1.0, "seed": 2}
    want = alone(model(), [*PROMPT], tokenizer=pieces(), **given)
    engine = Engine(model(), max_model_len=40, tokenizer=pieces())
    request = engine.add_request(PROMPT, **given)
    engine.step()
    guide = request.sequences[0].guide
    consume, left = guide._grammar.mask, [KeyboardInterrupt()]

    def interrupted(matcher):
        if left:
            raise left.pop()
        return consume(matcher)

    monkeypatch.setattr(guide._grammar, "mask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    while not engine.idle:
        engine.step()
    engine.check()
    assert request.sequences[0].new == want


def test_engine_serves_guided_and_other_requests_one_after_the_other():
    engine = Engine(model(), max_num_seqs=2, max_model_len=40, tokenizer=pieces())
    free = alone(model(), [*PROMPT], max_new_tokens=8)
    guided = alone(model(), [*PROMPT], guided=LISTS, tokenizer=pieces(), max_new_tokens=8)
    for i in range(3):
        (one,) = engine.run([{"input_ids": PROMPT, "max_new_tokens": 8, "guided": LISTS}])
        assert one.sequences[0].new == guided
        stopped = engine.add_request(PROMPT, guided={"regex": "a{30}"})
        for _ in range(1 + i):
            engine.step()
        assert engine.abort(stopped)
        (one,) = engine.run([{"input_ids": PROMPT, "max_new_tokens": 8}])
        assert one.sequences[0].new == free
        assert stopped.sequences[0].finish_reason == "abort"
        engine.check()
    assert all(manager.free == manager.total for manager in engine.pool.managers)


def test_grammar_compiled_before_serves_any_number_of_requests():
    grammar = compile_grammar({"regex": "(ab|c){3}1"}, pieces(), model().spec.vocab)
    want = alone(model(), [*PROMPT], guided={"regex": "(ab|c){3}1"}, tokenizer=pieces())
    engine = Engine(model(), max_model_len=40, tokenizer=pieces())
    for request in engine.run([{"input_ids": PROMPT, "guided": grammar}] * 3):
        assert request.sequences[0].new == want
    assert alone(model(), [*PROMPT], guided=grammar) == want
    assert alone(model(), [*PROMPT], guided=grammar, tokenizer=pieces()) == want
    one = engine.add_request(PROMPT, SamplingParams(guided=grammar))
    assert [output.finish_reason for output in engine][-1] == "stop"
    assert one.sequences[0].new == want


def test_grammar_compiled_for_other_tokens_is_refused():
    grammar = compile_grammar({"regex": "ab"}, pieces(), model().spec.vocab + 1)
    with pytest.raises(af.InputError, match=r"guided: CompiledGrammar\(regex, vocab=20\) was compiled for another"):
        asked(grammar)
    other = compile_grammar({"regex": "[!-~]+"}, words.tokenizer(), model().spec.vocab)
    with pytest.raises(af.InputError, match="was compiled for another vocabulary"):
        asked(other)


def test_answer_ends_where_nothing_can_follow_and_at_stop_ids_only_where_it_may():
    for eos in ((0,), ()):
        found = af.generate(
            model(0, eos), torch.tensor([PROMPT]), guided={"regex": "abc"}, tokenizer=pieces(), details=True
        )
        assert (said(found), found.reasons) == ("abc", ("stop",))
        assert 0 not in found.ids[0, 3:].tolist()
    for given in ({"ignore_eos": True}, {"stop": ()}):
        found = asked({"regex": "c+"}, max_new_tokens=9, **given)
        assert (found.lengths, found.reasons) == ((9,), ("length",))
    # Token 3 says "c", and ends answers here: it comes only where the text may end.
    found = [asked({"regex": "(ab?c?1?)+"}, stop=(3,), temperature=1.0, seed=i, max_new_tokens=30) for i in range(20)]
    for one in found:
        new = one.ids[0, 3 : 3 + one.lengths[0]].tolist()
        if one.reasons == ("stop",):
            assert new.index(3) == len(new) - 1
            new.pop()
        text = pieces().decode(new)
        assert 3 not in new
        assert re.fullmatch("(ab?c?1?)+", text) or one.reasons == ("length",)
    assert sum(one.reasons == ("stop",) for one in found) > 10


def test_answer_that_is_cut_by_its_length_is_the_beginning_of_a_text():
    found = asked({"regex": "(ab-){9}"}, max_new_tokens=4)
    assert found.reasons == ("length",)
    assert "ab-ab-ab-ab-ab-ab-".startswith(said(found))
    # One that is complete with its very last token has ended by itself.
    length = asked({"regex": "abc"}).lengths[0]
    assert asked({"regex": "abc"}, max_new_tokens=length).reasons == ("stop",)


def test_stop_text_ends_a_guided_answer():
    found = asked({"regex": "(ab|c|1){12}"}, stop="c1", temperature=1.0, seed=3, n=8)
    assert "c1" in found.met
    for i, met in enumerate(found.met):
        assert ("c1" in said(found, i)) == (met == "c1")


def test_grammar_that_no_token_can_go_on_with_fails_alone():
    # No token says "z" or newline.
    dead = {"regex": "ab?(\n|z)"}
    with pytest.raises(af.InputError, match=r"row 0: guided: regex: after . tokens none of this vocabulary goes on"):
        asked(dead)
    engine = Engine(model(), max_model_len=40, tokenizer=pieces())
    failed = engine.add_request(PROMPT, guided=dead)
    other = engine.add_request(PROMPT, max_new_tokens=6)
    outputs = list(engine)
    engine.check()
    assert failed.sequences[0].finish_reason == "failed"
    assert [isinstance(each.error, af.InputError) for each in outputs if each.error is not None] == [True]
    assert other.sequences[0].new == alone(model(), [*PROMPT], max_new_tokens=6)


def test_samplers_that_bar_what_a_grammar_demands_fail_with_words():
    with pytest.raises(af.InputError, match="the samplers rule out every token"):
        asked({"regex": "1"}, bad_words=[[4]])


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"num_beams": 2}, "num_beams"), ({"penalty_alpha": 0.5, "top_k": 3}, "penalty_alpha"), ({"choices": ["a"]}, "choices"), ({"first": [1]}, "first"),
        ({"forced_bos_token_id": 1}, "forced_bos_token_id"), ({"forced_eos_token_id": 1, "max_new_tokens": 3}, "forced_eos_token_id"), ({"min_new_tokens": 2}, "min_new_tokens"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_with_a_grammar_are_refused(more, name):
    with pytest.raises(af.InputError, match=f"guided: {name} does not go together with a grammar"):
        asked({"regex": "a+"}, **more)


def test_all_that_is_wrong_beside_a_grammar_is_said_at_once():
    with pytest.raises(af.InputError) as found:
        asked({"regex": "a("}, num_beams=2, top_p=7, ignore_eos="yes")
    message = str(found.value)
    for words_ in (
        "regex: unclosed group",
        "num_beams does not go",
        "top_p: 7",
        "ignore_eos: expected True or False, got 'yes'",
    ):
        assert words_ in message
    with pytest.raises(af.InputError, match="guided: is about text; give the model's tokenizer as tokenizer="):
        af.generate(model(), torch.tensor([PROMPT]), guided={"regex": "a"})
    with pytest.raises(af.InputError, match="guided: expected exactly one grammar"):
        Engine(model(), max_model_len=20, tokenizer=pieces()).add_request(PROMPT, guided="a+")


def test_guided_answer_of_an_encoder_decoder_fits_too():
    spec = af.spec(BASE, {"vocab": 19, "topology": "encoder-decoder", "ids": {"start": 1, "eos": [0]}, "context": 48})
    m = randomise(af.build(spec, dtype=torch.float64), 0).eval()
    options = {"guided": {"regex": "(ab|c){3}-[12]"}, "temperature": 1.2, "seed": 1}
    found = af.generate(m, torch.tensor([PROMPT]), n=5, details=True, tokenizer=pieces(), **options)
    for i in range(5):
        assert re.fullmatch("(ab|c){3}-[12]", said(found, i))
    (request,) = Engine(m, max_model_len=40, tokenizer=pieces()).run([{"input_ids": PROMPT, **options}])
    assert request.sequences[0].new == found.ids[0, 1 : 1 + found.lengths[0]].tolist()


def test_pipeline_passes_a_grammar_on():
    pipe = af.pipeline("text-generation", model=talker(), tokenizer=words.tokenizer())
    given = {"guided": {"regex": "[a-d]{2}-[0-9]{1,3}"}, "do_sample": True, "seed": 3}
    found = pipe(["the cat", "yes"], return_full_text=False, **given)
    for (answer,) in found:
        assert re.fullmatch("[a-d]{2}-[0-9]{1,3}", answer["generated_text"])
    pieces_ = list(pipe("the cat", stream=True, **given))
    assert "".join(pieces_) == found[0][0]["generated_text"]


def test_text_behind_a_prompt_fits_for_a_tokenizer_with_blanks_in_its_tokens():
    tokenizer = words.tokenizer()
    ids = tokenizer.encode("the cat")
    found = af.generate(
        talker(), torch.tensor([ids]), guided={"regex": " ?sat on( the mat)?[.]"}, tokenizer=tokenizer, details=True
    )
    text = Detokenizer(tokenizer, ids)
    whole = text.push(*found.ids[0, len(ids) :].tolist()) + text.end()
    assert re.fullmatch(" ?sat on( the mat)?[.]", whole)


def test_ignore_eos_ends_no_row_but_other_stops_do():
    ids = torch.tensor([PROMPT])
    free = af.generate(model(0, ()), ids, max_new_tokens=10)[0, 3:].tolist()
    eos = (free[2],)
    given = {"max_new_tokens": 10, "details": True, "tokenizer": pieces()}
    first = free.index(eos[0]) + 1
    assert af.generate(model(0, eos), ids, **given).lengths == (first,)
    assert af.generate(model(0, eos), ids, ignore_eos=False, **given).lengths == (first,)
    ignored = af.generate(model(0, eos), ids, ignore_eos=True, **given)
    assert ignored.ids[0, 3:].tolist() == free
    assert ignored.reasons == ("length",)
    later = free[first:]
    other = next(token for token in later if token not in free[:first])
    assert af.generate(model(0, eos), ids, ignore_eos=True, stop=(other,), **given).lengths == (free.index(other) + 1,)
    assert af.generate(model(0, eos), ids, ignore_eos=True, stop=eos, **given).lengths == (first,)
    text = PIECES[other - 1]
    ended = af.generate(model(0, eos), ids, ignore_eos=True, stop=[text], **given)
    assert ended.met == (text,)
    engine = Engine(model(0, eos), max_model_len=40)
    assert engine.run([{"input_ids": PROMPT, "max_new_tokens": 10, "ignore_eos": True}])[0].sequences[0].new == free


def test_pipeline_that_ignores_eos_goes_on_behind_it():
    tokenizer = words.tokenizer()
    ids = tokenizer.encode("the cat")
    free = af.generate(talker(0, ()), torch.tensor([ids]), max_new_tokens=8)[0, len(ids) :].tolist()
    pipe = af.pipeline("text-generation", model=talker(0, (free[3],)), tokenizer=tokenizer)
    given = {"max_new_tokens": 8, "return_tensors": True}
    assert pipe("the cat", **given)[0]["generated_token_ids"] == [*ids, *free[: free.index(free[3]) + 1]]
    assert pipe("the cat", ignore_eos=True, **given)[0]["generated_token_ids"] == [*ids, *free]


@pytest.mark.cuda
def test_engine_on_cuda_serves_guided_requests_beside_steps_in_flight():
    m = copy.deepcopy(model()).float().cuda()
    todo = mixed(random.Random(5))
    engine = Engine(m, max_num_seqs=6, max_model_len=40, tokenizer=pieces())
    free = engine.add_request(PROMPT, max_new_tokens=30, stop=())
    for _ in range(6):
        engine.step()
    added = serve(engine, todo, random.Random(6))
    assert free.sequences[0].new == alone(m, [*PROMPT], max_new_tokens=30, stop=())
    for one, request in zip(todo, added, strict=True):
        options = {k: v for k, v in one.items() if k != "input_ids"}
        found = af.generate(m, torch.tensor([one["input_ids"]]), tokenizer=pieces(), details=True, **options)
        begun = len(one["input_ids"])
        rows = [row[begun : begun + n].tolist() for row, n in zip(found.ids, found.lengths, strict=True)]
        assert [each.new for each in request.sequences] == rows
        if "regex" in one.get("guided", ()) and found.reasons[0] == "stop":
            assert re.fullmatch(one["guided"]["regex"], said(found))
