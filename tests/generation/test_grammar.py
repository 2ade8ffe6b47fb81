"""Grammars: what a description becomes, which tokens it allows, and what a hostile one costs."""

import json
import random
import re
import threading

import pytest
import tokenizers
from tokenizers import decoders, models

import anyformer as af
from anyformer.data.tokenizer import Tokenizer
from anyformer.generation.guided import fence as fences
from anyformer.generation.guided import vocabulary
from anyformer.generation.guided.compiled import CompiledGrammar, GrammarLimits, compile_grammar
from anyformer.generation.guided.fence import FENCE, Fence
from anyformer.generation.guided.grammar import Grammar, read_grammar
from anyformer.generation.guided.guide import Guide
from anyformer.generation.guided.vocabulary import token_bytes, vocabulary_of
from tests.generation.guiding import PIECES, allowed, mask_of, pieces, texts
from tests.generation.small_models import word_pieces as bert_words
from tests.generation.test_stream import KINDS
from tests.generation.words import tokenizer as byte_words

VOCAB = len(PIECES) + 1


def compiled(given: object, words: Tokenizer | None = None, **more) -> CompiledGrammar:
    words = pieces() if words is None else words
    return compile_grammar(given, words, more.pop("vocab", words.vocab), **more)


def test_description_becomes_a_frozen_grammar_by_its_kind():
    kinds = {
        Grammar("json_object"): {"json_object": True},
        Grammar("json_schema", '{"type": "object"}'): {"json_schema": {"type": "object"}},
        Grammar("json_schema", "true"): {"json_schema": "true"},
        Grammar("regex", "a+"): {"regex": "a+"},
        Grammar("lark", 'start: "::="'): {"grammar": 'start: "::="'},
        Grammar("gbnf", 'root ::= "a"'): {"grammar": 'root ::= "a"'},
    }
    assert {read_grammar(given) for given in kinds.values()} == {*kinds}
    assert all(read_grammar(given) == want and read_grammar(want) == want for want, given in kinds.items())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a+", "expected exactly one grammar, got str; give a dict with one of"),
        ({}, "expected exactly one grammar, got 0 keys"),
        ({"regex": "a", "grammar": "b"}, "expected exactly one grammar, got 2 keys"),
        ({"regexp": "a"}, "'regexp' is no kind of grammar; did you mean 'regex'"),
        ({"json_object": 1}, "json_object: expected True, got int"),
        ({"json_schema": 3}, "json_schema: a schema is an object, true or false, got int"),
        ({"json_schema": "[]"}, "json_schema: a schema is an object, true or false, got list"),
        ({"json_schema": "{"}, "json_schema: is no JSON: Expecting property name"),
        ({"json_schema": '{"const": NaN}'}, "json_schema: is no JSON: NaN is no number"),
        ({"json_schema": {"const": float("inf")}}, "json_schema: is no JSON: Out of range float"),
        ({"json_schema": {"const": {1, 2}}}, "json_schema: is no JSON: Object of type set"),
        ({"json_schema": "[" * 100_000}, "json_schema: is nested too deeply"),
        ({"regex": ""}, "regex: expected a text that is not blank"),
        ({"regex": b"a"}, "regex: expected a text that is not blank, got bytes"),
        ({"regex": "a\\"}, "regex: ends with a backslash"),
        ({"grammar": "\ud800"}, "lark: character 0 is half of a UTF-16 pair"),
        ({"regex": "a" * 70_000}, "regex: is 70,000 bytes long, and at most 65,536 are read"),
        ({"json_schema": {"enum": [f"e{i}" for i in range(50_000)]}}, "json_schema: is 488,900 bytes long"),
        ({"regex": "a("}, "regex: unclosed group"),
        ({"regex": "(?=a)"}, "regex: look-around"),
        ({"grammar": "start: foo"}, 'lark: line 1, column 8: unknown name: "foo"'),
        ({"grammar": '\n\nstart: "a" %'}, "lark: line 3, column 13: lexer error"),
        ({"grammar": "root ::= (foo"}, r"gbnf: Expected '\)'"),
        ({"grammar": 'toor ::= "a"'}, "gbnf: No 'root' rule found"),
        ({"grammar": "root ::= " + "(" * 20_000}, "gbnf: is nested too deeply"),
        ({"json_schema": {"type": "objct"}}, "json_schema: Invalid type: objct"),
        ({"json_schema": {"not": {}}}, 'json_schema: Unimplemented keys: \\["not"\\]'),
        ({"json_schema": False}, "json_schema: Unsatisfiable schema"),
        ({"json_schema": {"enum": []}}, "json_schema: Unsatisfiable schema"),
        ({"grammar": 'start: ""'}, "lark: allows nothing but the empty text"),
        ({"grammar": "start: A\nA: /a/ & /b/"}, "lark: no token of this vocabulary can begin"),
        ({"grammar": "start: start"}, "lark: no token of this vocabulary can begin"),
        ({"regex": "z+"}, "regex: no token of this vocabulary can begin a text that it allows"),
        ({"json_object": True}, "json_object: no token of this vocabulary can begin"),
    ],
)  # fmt: skip
def test_grammar_that_is_none_is_refused_with_its_reason(given, words):
    with pytest.raises(af.InputError, match=f"^guided: (?:{words})"):
        compiled(given)


def walk(guide: Guide, steps: int = 20) -> None:
    """Say anything that is allowed."""
    rng, new, done = random.Random(0), list[int](), False
    while not done and len(new) < steps:
        new.append(rng.choice(sorted(mask_of(guide, new, 300) - {0})))
        done = guide.advance(new)


STACKED = "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(4000)) + '\na4000: "a"'
NESTED: dict = {"type": "string", "maxLength": 2}
for _ in range(100):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    "given",
    [
        {"regex": "(a+)+$"},
        {"regex": "(a{1,10000}){1,10000}"},
        {"regex": "(.*a.{20000}|.*b.{20000})"},
        {"regex": "(" * 20_000 + "a" + ")" * 20_000},
        {"regex": "[^a]*b?" * 5000},
        {"regex": "|".join(f"a{i}" for i in range(9000))},
        {"json_schema": {"enum": [f"e{i}" for i in range(5500)]}},
        {"json_schema": {"enum": [f"e{i}" for i in range(50_000)]}},
        {"json_schema": {"type": "array", "minItems": 10**8}},
        {"json_schema": {"type": "string", "minLength": 10**8}},
        {"json_schema": {"type": "integer", "multipleOf": 123456789}},
        {"json_schema": {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(40)]}},
        {"json_schema": {"anyOf": [{"type": "object", "properties": {"a": {"const": i}}} for i in range(1000)]}},
        {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
        {"json_schema": NESTED},
        {"json_schema": '{"items":' * 5000 + "true" + "}" * 5000},
        {"grammar": STACKED},
        {"grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000},
        {"grammar": "start: A0\n" + "\n".join(f"A{i}: A{i + 1} A{i + 1}" for i in range(60)) + '\nA60: "x"'},
        {"grammar": "start: A\nA: " + " & ".join(f"/(.|\\n)*{chr(97 + i % 26)}{i}(.|\\n)*/" for i in range(1000))},
        {"grammar": "\n".join(f"r{i} ::= r{i + 1}" for i in range(3000, 0, -1)) + '\nr3001 ::= "a"\nroot ::= r1'},
    ],
    ids=lambda given: json.dumps(given)[:40],
)  # fmt: skip
def test_hostile_grammar_is_compiled_or_refused_and_the_next_one_is_served(given):
    refused = ""
    try:
        walk(Guide(compiled(given, byte_words(), vocab=300, limits=GrammarLimits(seconds=0.25)), (0,)))
    except af.InputError as error:
        refused = str(error)
    assert re.fullmatch("|guided: .{,600}", refused)
    assert mask_of(Guide(compiled({"regex": "ab"}), ()), []) == {1, PIECES.index("ab") + 1}


@pytest.mark.parametrize("place", ["http://localhost:9/x", "https://example.com/a.json", "file:///etc/passwd"])
def test_schema_that_refers_to_another_place_is_refused_and_nothing_is_fetched(place):
    with pytest.raises(af.InputError, match=r"guided: json_schema: Resource .* does not fetch resources"):
        compiled({"json_schema": {"$ref": place}})


def test_grammar_that_takes_too_long_is_refused_by_the_limit_that_was_given():
    slow = {"json_schema": {"type": "integer", "multipleOf": 123456789}}
    with pytest.raises(af.InputError, match=r"guided: json_schema: takes more than 0\.05 seconds to compile"):
        compiled(slow, limits=GrammarLimits(seconds=0.05))
    with pytest.raises(af.InputError, match="guided: lark: nests too deeply, or takes too much memory"):
        compiled({"grammar": STACKED})
    with pytest.raises(af.InputError, match="is 4 bytes long, and at most 3 are read"):
        compiled({"regex": "abab"}, limits=GrammarLimits(source_bytes=3))
    with pytest.raises(af.InputError, match="too big"):
        compiled({"regex": "(a|b|c1){40}"}, limits=GrammarLimits(initial_lexer_fuel=10))


def test_fence_that_gets_no_time_to_compute_gives_up_by_the_clock(monkeypatch):
    monkeypatch.setattr(fences, "PATIENCE", 0.3)
    own = Fence()
    slow = {"json_schema": {"type": "integer", "multipleOf": 123456789}}
    with pytest.raises(af.InputError, match=r"takes more than 0\.3 seconds on the clock to compile"):
        compiled(slow, fence=own, limits=GrammarLimits(seconds=3600.0))
    assert own._child._process is None


def test_fence_whose_process_died_starts_another_one():
    own = Fence()
    try:
        assert compiled({"regex": "a"}, fence=own)
        process = own._child._process
        process.kill()
        process.wait()
        assert compiled({"regex": "b"}, fence=own)
        assert own._child._process is not process
    finally:
        own.close()
    assert own._child._process is None


def test_fence_that_is_interrupted_gives_no_stale_answer(monkeypatch):
    own = Fence()
    try:
        assert compiled({"regex": "a"}, fence=own)
        process = own._child._process

        class Interrupted:
            closed = True

            def readline(self):
                raise KeyboardInterrupt

        with monkeypatch.context() as patched, process.stdout:
            patched.setattr(process, "stdout", Interrupted())
            with pytest.raises(KeyboardInterrupt):
                compiled({"regex": "b"}, fence=own)
        assert own._child._process is None
        assert process.poll() is not None
        assert mask_of(Guide(compiled({"regex": "c"}, fence=own), ()), []) == {3}
    finally:
        own.close()


def test_grammars_compile_in_several_threads_at_once():
    found: dict[str, CompiledGrammar] = {}
    words = Tokenizer(tokenizers.Tokenizer.from_str(pieces().inner.to_str()))

    def work(letter: str) -> None:
        found[letter] = compile_grammar({"regex": f"{letter}+"}, words, VOCAB)

    threads = [threading.Thread(target=work, args=(letter,)) for letter in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({id(each.vocabulary) for each in found.values()}) == 1
    for letter, each in found.items():
        assert PIECES.index(letter) + 1 in mask_of(Guide(each, ()), [])


def test_vocabulary_is_made_once_for_each_size_and_forgotten_with_its_tokenizer():
    words = Tokenizer(tokenizers.Tokenizer.from_str(pieces().inner.to_str()))
    before = len(vocabulary._made)
    assert vocabulary_of(words, VOCAB) is vocabulary_of(words, VOCAB)
    assert vocabulary_of(words, VOCAB) is not vocabulary_of(words, VOCAB + 3)
    assert len(vocabulary._made) == before + 1
    del words
    assert len(vocabulary._made) == before


def test_guided_without_the_package_names_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(vocabulary, "installed", missing)
    with pytest.raises(af.CapabilityError, match=r"llguidance: pip install 'anyformer\[guided\]'"):
        compiled({"regex": "a"})


LANGUAGES = ("abc", "a+", "(ab|bc)*", "a?b?c?", "[abc]{2}-[12]", "(a|ab)(c|bcc)?", "1(-2)*", "abc|ab-12|a", "(a1|1a) ?b", "[^b]{3}", "c{2,5}", "(1-2 ?)+", ".*b", "(a|b)*c12?")  # fmt: skip
"""Expressions of which every text of up to six letters is looked at: their masks are held against those within four."""


@pytest.mark.parametrize("expression", LANGUAGES)
@pytest.mark.parametrize("stop", [(0,), (), (1, 8)])
def test_mask_is_that_of_all_texts_one_by_one(expression, stop):
    language, grammar = texts(expression), compiled({"regex": expression})
    for seed in range(12):
        rng, guide, new, said = random.Random(seed), Guide(grammar, stop), list[int](), ""
        # What needs more than six letters can't be found among those texts.
        while len(said) <= 3:
            found = mask_of(guide, new)
            assert {i for i in found - {*stop} if len(said + PIECES[i - 1]) <= 4} == {
                i for i in allowed(language, said, stop) - {*stop} if len(said + PIECES[i - 1]) <= 4
            }
            assert {*stop} & found == ({*stop} if said in language else set())
            going = sorted(found - {*stop})
            if not going:
                break
            new.append(rng.choice(going))
            said += PIECES[new[-1] - 1]
            if not allowed(language, said, stop) and said not in language and len(said) <= 4:
                with pytest.raises(af.InputError, match="none of this vocabulary goes on"):
                    guide.advance(new)
                break
            if guide.advance(new):
                assert said in language
                break


def test_guide_that_takes_too_long_for_a_token_gives_up():
    guide = Guide(compiled({"regex": "a+"}, limits=GrammarLimits(step_seconds=0.0)), (0,))
    with pytest.raises(af.InputError, match=r"guided: regex: token 1 took .* s of a processor, more than 0; make it"):
        guide.advance([1])


def test_guide_after_an_interrupted_step_reads_its_tokens_again():
    grammar = compiled({"regex": "(ab|c)+1"})
    new = [1, 2, 3]
    guide, other = Guide(grammar, (0,)), Guide(grammar, (0,))
    for i in range(1, 4):
        assert not other.advance(new[:i])
    guide.advance(new[:1])
    guide._read = None
    assert mask_of(guide, new) == mask_of(other, new)
    assert guide.fitting([3, 4, 3]) == [3, 4]
    assert mask_of(guide, new[:1]) == {2, PIECES.index("bc") + 1}


def suffixes() -> Tokenizer:
    """A tokenizer whose tokens end a word with </w>."""
    words = ["<unk>", "the</w>", "th", "e</w>", "e", "cat</w>", "c", "at", "at</w>", "1</w>", "1"]
    inner = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>"))
    inner.decoder = decoders.BPEDecoder()
    return Tokenizer(inner)


def bert() -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(bert_words()))


def undecoded() -> Tokenizer:
    """A tokenizer without a decoder, which puts a blank between all tokens."""
    return Tokenizer(tokenizers.Tokenizer(models.WordLevel({"the": 0, "cat": 1, "s": 2}, unk_token="s")))


EVERY = [*KINDS, *(pytest.param(make, id=make.__name__) for make in (suffixes, bert, undecoded, pieces, byte_words))]


@pytest.mark.parametrize("make", EVERY)
def test_bytes_of_tokens_add_up_to_the_text_between_others(make):
    words, rng = make(), random.Random(3)
    plain = [i for i in range(words.vocab) if i not in words.specials.values()]
    found = token_bytes(words, words.vocab + 5)
    assert found[words.vocab :] == [b""] * 5
    assert token_bytes(words, 3) == found[:3]
    whole, checked = [i for i in plain if found[i][:1].isalnum() and found[i].isascii()] or plain, 0
    for _ in range(200):
        # The text between two tokens is that of three less that of the first and the last.
        first, last = rng.choice(whole), rng.choice(whole)
        middle = [rng.choice(plain) for _ in range(rng.randint(1, 8))]
        said = b"".join(found[i] for i in [first, *middle, last])
        try:
            text = said.decode()
        except UnicodeDecodeError:
            continue
        checked += 1
        # Some decoders drop one blank at either end of a whole text.
        assert words.decode([first, *middle, last]).strip(" ").replace("##", "") == text.strip(" ").replace("##", ""), (
            middle
        )
    assert checked > 20


def test_model_with_more_or_fewer_tokens_than_its_tokenizer_is_never_led_beyond_them():
    for vocab in (5, 8, VOCAB, VOCAB + 40):
        guide = Guide(compiled({"regex": "(.|\\n)*"}, vocab=vocab), ())
        assert mask_of(guide, [], vocab) == {i for i in range(1, min(vocab, VOCAB))}
    with pytest.raises(af.InputError, match="no token of this vocabulary can begin"):
        compiled({"regex": "12"}, vocab=4)


def test_lark_grammar_names_special_tokens_and_ids():
    words = Tokenizer(tokenizers.Tokenizer.from_str(pieces().inner.to_str()))
    words.inner.add_special_tokens(["<tool>"])
    words = Tokenizer(words.inner)
    tool = words.specials["<tool>"]
    for name in ("<tool>", f"<[{tool}]>"):
        guide = Guide(compiled({"grammar": f'start: {name} "a"'}, words), (0,))
        assert mask_of(guide, [], words.vocab) == {tool}
        assert not guide.advance([tool])
        assert mask_of(guide, [tool], words.vocab) == {1}
        assert guide.advance([tool, 1])
    free = Guide(compiled({"regex": "(.|\\n)*"}, words), ())
    assert mask_of(free, [], words.vocab) == {*range(1, VOCAB)}


def test_options_in_a_lark_grammar_leave_the_spelling_to_the_model():
    for text in ('%llguidance {"no_forcing": false}\nstart: "abc"', '%llguidance {}\nstart: "abc"', 'start: "abc"'):
        guide = Guide(compiled({"grammar": text}), ())
        assert mask_of(guide, []) == {1, PIECES.index("ab") + 1, PIECES.index("abc") + 1}


def test_json_has_no_endless_space():
    words = byte_words()
    guide = Guide(compiled({"json_object": True}, words, vocab=300), (0,))
    new = words.encode("{")
    blank = words.encode(" ")[0]
    assert blank in mask_of(guide, new, 300)
    assert blank not in mask_of(guide, [*new, blank], 300)
    own = {"type": "object", "x-guidance": {"whitespace_flexible": False, "whitespace_pattern": None}}
    assert blank not in mask_of(Guide(compiled({"json_schema": own}, words, vocab=300), (0,)), new, 300)


def test_message_of_a_refusal_is_short():
    with pytest.raises(af.InputError) as found:
        compiled({"regex": "x" * 3000 + "("})
    assert len(str(found.value)) < 500
    assert re.fullmatch(r"guided: regex: [^\n]*", str(found.value))


def test_fence_of_all_grammars_is_one_process():
    compiled({"regex": "a"})
    process = FENCE._child._process
    compiled({"regex": "b"})
    assert FENCE._child._process is process
