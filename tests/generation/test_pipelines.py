"""Pipelines give what transformers' give, in the same shapes, alone or in batches, and say what does not fit."""

import json
import warnings

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import anyformer as af
from anyformer.errors import InputError
from anyformer.generation.pipelines.rows import batches, padded
from tests.cli.small_run import small_run
from tests.generation import small_models as small

TEXTS = ["the cat sat on the mat .", "paris", "microsoft is bigly , the dogs sat", "a zebra is in france"]
PROMPTS = ["the cat", "the dog sat on the", "a", "and the cat sat"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def close(mine, theirs):
    """Equal, with numbers to 1e-6: theirs are rounded to fp32 in places."""
    if isinstance(theirs, dict):
        assert set(mine) == set(theirs)
        for name in theirs:
            close(mine[name], theirs[name])
    elif isinstance(theirs, list):
        assert isinstance(mine, list)
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            close(a, b)
    elif isinstance(theirs, str | int):
        assert mine == theirs
    else:
        assert mine == pytest.approx(float(theirs), rel=1e-6, abs=1e-6)


def plain(answer):
    """What json can hold."""
    return json.loads(json.dumps(answer))


@pytest.fixture(scope="module")
def words():
    return small.bert_words()


@pytest.fixture(scope="module")
def filler(words):
    theirs = small.masked_lm()
    pipe = af.pipeline("fill-mask", model=af.from_hf(theirs), tokenizer=words)
    return pipe, transformers.pipeline("fill-mask", model=theirs, tokenizer=words)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("the [MASK] sat.", {}),
        ("[MASK] is in france", {"top_k": 3}),
        ("the [MASK] sat on [MASK] mat", {"top_k": 2}),
        ("the [MASK] sat", {"targets": ["cat", "dog", "mat"]}),
        ("the [MASK] sat", {"targets": "cat", "top_k": 4}),
        (["the [MASK] sat on the mat , a big cat", "[MASK] sat"], {"top_k": 2}),
    ],
)
def test_fill_mask_equals_transformers(filler, text, options):
    mine, theirs = filler
    answer = mine(text, **options)
    close(answer, theirs(text, **options))
    assert plain(answer) == answer


def test_fill_mask_in_batches_equals_one_at_a_time(filler):
    mine, _ = filler
    texts = ["[MASK] sat", "the [MASK] sat on the big mat", "a [MASK] dog", "paris is in [MASK] , the cat is in paris"]
    alone = [mine(text) for text in texts]
    for size in (1, 2, 3, None):
        close(mine(texts, batch_size=size), alone)
    assert mine(texts[:1]) == alone[:1]
    assert mine([]) == []


def test_fill_mask_target_that_is_no_token_stands_for_its_first_with_a_warning(filler):
    mine, _ = filler
    with pytest.warns(UserWarning, match="'dogs' is no token of the vocabulary; 'dog', its first one"):
        found = mine("the [MASK] sat", targets=["dogs"])
    assert [each["token_str"] for each in found] == ["dog"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("the cat sat", {}, r"input 0: has no mask; write \[MASK\]"),
        (["[MASK]", ""], {}, "input 1: is empty"),
        (5, {}, "expected a text or a list of them, got int"),
        (["[MASK]", 5], {}, "input 1: expected a text, got int"),
        ("[MASK]", {"top_k": 0}, "top_k: expected a whole number of at least 1"),
        ("[MASK]", {"targets": []}, "targets: is empty"),
        ("[MASK]", {"targets": [5]}, "targets: expected texts, got 5"),
        ("[MASK]", {"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ("[MASK]" + " cat" * 40, {}, "input 0: has 43 tokens, and this model has 32 positions"),
    ],
)
def test_fill_mask_of_bad_input_says_what_is_wrong(filler, text, options, message):
    with pytest.raises(InputError, match=message):
        filler[0](text, **options)


def test_fill_mask_of_a_long_text_cuts_it_if_asked(filler):
    mine, theirs = filler
    text = "the [MASK]" + " cat" * 40
    want = theirs(text, tokenizer_kwargs={"truncation": True, "max_length": 32})
    close(mine(text, truncation=True), want)


PROBLEMS = ["multi_label_classification", "regression"]


@pytest.fixture(scope="module", params=[(3, None), (1, None), *((3, problem) for problem in PROBLEMS)], ids=str)
def classifier(request, words):
    labels, problem = request.param
    theirs, ours = small.sequence_classifier(labels, problem_type=problem)
    mine = af.pipeline("sentiment-analysis", ours, words)
    return mine, transformers.pipeline("text-classification", model=theirs, tokenizer=words)


PAIR = {"text": "the cat sat", "text_pair": "a dog is big"}


@pytest.mark.parametrize(
    "inputs", [TEXTS[0], TEXTS, PAIR, [PAIR, {"text": "paris"}]], ids=["one", "list", "pair", "pairs"]
)
@pytest.mark.parametrize(
    "options", [{}, {"top_k": None}, {"top_k": 1}, {"top_k": 2}, {"function_to_apply": "none"}, {"function_to_apply": "sigmoid"}],
    ids=str,
)  # fmt: skip
def test_text_classification_equals_transformers(classifier, inputs, options):
    mine, theirs = classifier
    close(mine(inputs, **options), theirs(inputs, **options))


def test_text_classification_without_names_of_labels_numbers_them(words):
    _, ours = small.sequence_classifier(3, id2label={i: f"LABEL_{i}" for i in range(3)})
    assert ours.spec.head.names == ()
    found = af.pipeline("text-classification", ours, words)(TEXTS[0], top_k=None)
    assert sorted(each["label"] for each in found) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    with pytest.raises(InputError, match="labels: expected 3 names, one for each class of the head"):
        af.pipeline("text-classification", ours, words, labels=["a", "b"])
    with pytest.raises(InputError, match="function_to_apply: 'softmx' is unknown; did you mean 'softmax'"):
        af.pipeline("text-classification", ours, words)(TEXTS[0], function_to_apply="softmx")
    with pytest.raises(InputError, match=r"input 0: expected \{"):
        af.pipeline("text-classification", ours, words)({"text": "the cat", "pair": "x"})


def test_text_classification_of_pairs_and_numbers(words):
    spec = af.from_hf(small.masked_lm()).spec
    ours = small.shaken(af.build(spec.vary({"head": {"kind": "pair", "labels": 2}}), dtype=torch.float64)).eval()
    pipe = af.pipeline("text-classification", ours, words)
    others = [PAIR, {"text": "paris", "text_pair": "the cat sat on the mat"}]
    close(pipe(others), [pipe(each) for each in others])
    with pytest.raises(InputError, match="input 0: this model compares two texts"):
        pipe("the cat")
    ours = small.shaken(af.build(spec.vary({"head": {"kind": "regression"}}), dtype=torch.float64)).eval()
    ids = torch.tensor([words("the cat")["input_ids"]])
    want = ours(ids, token_types=torch.zeros_like(ids)).logits.item()
    close(af.pipeline("text-classification", ours, words)("the cat"), [{"label": "LABEL_0", "score": want}])


LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "MISC"]


@pytest.fixture(scope="module")
def tagger(words):
    theirs, ours = small.token_classifier(LABELS)
    mine = af.pipeline("ner", ours, words)
    return mine, transformers.pipeline("ner", model=theirs, tokenizer=words)


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
@pytest.mark.parametrize("ignored", [["O"], []], ids=["O", "all"])
def test_token_classification_equals_transformers(tagger, strategy, ignored):
    mine, theirs = tagger
    texts = [*TEXTS, "the microsofts , bigly sating dogsly cats in paris zebra."]
    options = {"aggregation_strategy": strategy, "ignore_labels": ignored}
    # Theirs takes these when it is made; it has no way to change them for one call and back.
    pipe = transformers.pipeline("ner", model=theirs.model, tokenizer=theirs.tokenizer, **options)
    for text in texts:
        close(mine(text, **options), pipe(text))
    close(mine(texts, batch_size=2, **options), [pipe(text) for text in texts])
    assert plain(mine(texts[0], **options)) == mine(texts[0], **options)


def test_token_classification_of_a_tokenizer_without_marks_takes_blanks_and_warns(tmp_path):
    words = small.byte_words()
    model, _ = small_run(tmp_path, {"topology": "encoder", "vocab": len(words), "head": {"kind": "token", "labels": 3}})
    pipe = af.pipeline("token-classification", model, words)
    with pytest.warns(UserWarning, match="does not mark words"):
        found = pipe("the cat sat", aggregation_strategy="average")
    assert (found[0]["start"], found[-1]["end"]) == (0, 11)
    with pytest.raises(InputError, match="aggregation_strategy: 'averge' is unknown; did you mean 'average'"):
        pipe("the cat", aggregation_strategy="averge")


def test_token_classification_of_a_text_that_is_cut_labels_what_is_left(tagger):
    mine, theirs = tagger
    text = "the cat sat on mat " * 9
    with pytest.raises(InputError, match="truncation=True"):
        mine(text)
    found = mine(text, truncation=True, ignore_labels=[])
    assert [each["index"] for each in found] == list(range(1, 31))
    cut = " ".join(text.split()[:30])
    close(found, transformers.pipeline("ner", model=theirs.model, tokenizer=theirs.tokenizer, ignore_labels=[])(cut))


@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
@pytest.mark.parametrize("stride", [0, 5])
def test_token_classification_of_a_long_text_in_parts_equals_transformers(tagger, strategy, stride):
    mine, theirs = tagger
    words = small.bert_words()
    words.model_max_length = 32
    options = {"aggregation_strategy": strategy, "stride": stride, "ignore_labels": ["O"]}
    pipe = transformers.pipeline("ner", model=theirs.model, tokenizer=words, **options)
    texts = ["the microsofts , bigly sating dogs in paris . " * 8, TEXTS[0]]
    close(mine(texts, **options), [pipe(text) for text in texts])
    close(mine(texts[0], **options), pipe(texts[0]))


def test_token_classification_in_parts_says_what_does_not_go(tagger):
    with pytest.raises(InputError, match="stride: expected a whole number from 0 to 31, got 40"):
        tagger[0]("the cat", stride=40, aggregation_strategy="simple")
    with pytest.raises(InputError, match="stride: parts of a text are put together by aggregation_strategy"):
        tagger[0]("the cat", stride=4)


NLI = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}


@pytest.fixture(scope="module", params=[NLI, {0: "entailment", 1: "no"}, None], ids=["last", "first", "unnamed"])
def zero_shot(request):
    words = small.bert_words()
    words.model_max_length = 32
    theirs, ours = small.sequence_classifier(3, **({} if request.param is None else {"id2label": request.param}))
    theirs.config.label2id = {name: i for i, name in theirs.config.id2label.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error" if request.param is not None else "ignore")
        mine = af.pipeline("zero-shot-classification", ours, words)
    return mine, transformers.pipeline("zero-shot-classification", model=theirs, tokenizer=words)


@pytest.mark.parametrize("texts", [TEXTS[0], TEXTS, "the cat sat on mat " * 9], ids=["one", "list", "long"])
@pytest.mark.parametrize("labels", [["cat", "paris", "dog"], "cat, big mat ,paris", ["france"]], ids=str)
@pytest.mark.parametrize("options", [{}, {"multi_label": True}, {"hypothesis_template": "a {} is in ."}], ids=str)
def test_zero_shot_classification_equals_transformers(zero_shot, texts, labels, options):
    mine, theirs = zero_shot
    close(mine(texts, candidate_labels=labels, **options), theirs(texts, candidate_labels=labels, **options))


def test_zero_shot_classification_of_what_does_not_fit_says_so(words):
    _, ours = small.sequence_classifier(3)
    with pytest.warns(
        UserWarning, match="none of class 0, class 1, class 2 is called entailment; the last one is taken"
    ):
        pipe = af.pipeline("zero-shot-classification", ours, words)
    for labels, options, message in (
        ([], {}, "candidate_labels: expected texts, at least one"),
        (["a"], {"hypothesis_template": "none"}, r"hypothesis_template: has no \{\} where the label goes"),
    ):
        with pytest.raises(InputError, match=message):
            pipe("the cat", labels, **options)
    with pytest.raises(InputError, match="zero-shot-classification: needs a head that says whether one text follows"):
        af.pipeline("zero-shot-classification", small.token_classifier(LABELS)[1], words)


def answers_by_formula(theirs, words, question, context, *, top_k=1, doc_stride=None, max_answer_len=15,
                       max_seq_len=None, handle_impossible_answer=False, align_to_words=True):  # fmt: skip
    """What the pipeline of transformers 4 answers, written out; this release has none."""
    length = max_seq_len or min(words.model_max_length, 384)
    stride = min(length // 2, 128) if doc_stride is None else doc_stride
    read = words(
        question, context, truncation="only_second", max_length=length, stride=stride, return_overflowing_tokens=True,
        return_offsets_mapping=True, return_token_type_ids=True,
    )  # fmt: skip
    found, null = [], 1e6
    for part in range(len(read["input_ids"])):
        ids = torch.tensor(read["input_ids"][part])
        out = theirs(ids[None], token_type_ids=torch.tensor(read["token_type_ids"][part])[None])
        may = [
            text == 1 or i == words.cls_token_id for text, i in zip(read.sequence_ids(part), ids.tolist(), strict=True)
        ]
        probs = []
        for logits in (out.start_logits[0], out.end_logits[0]):
            kept = np.where(may, logits.detach().float().numpy(), -10000.0)
            kept = np.exp(kept - kept.max())
            probs.append(kept / kept.sum())
        start, end = probs
        null = min(null, float(start[0] * end[0]))
        start[0] = end[0] = 0
        table = np.tril(np.triu(np.outer(start, end)), max_answer_len - 1)
        count = top_k * 2 + 10 if align_to_words else top_k
        for place in np.argsort(-table.flatten(), kind="stable")[:count]:
            s, e = divmod(int(place), len(ids))
            if not (may[s] and may[e]):
                continue
            a, b = read["offset_mapping"][part][s][0], read["offset_mapping"][part][e][1]
            one, two = read.token_to_word(part, s), read.token_to_word(part, e)
            if align_to_words and one is not None and two is not None:
                a, b = read.word_to_chars(part, one, 1).start, read.word_to_chars(part, two, 1).end
            same = [each for each in found if each["answer"].lower() == context[a:b].lower()]
            if same:
                same[0]["score"] += float(table[s, e])
            else:
                found.append({"score": float(table[s, e]), "start": a, "end": b, "answer": context[a:b]})
    if handle_impossible_answer:
        found.append({"score": null, "start": 0, "end": 0, "answer": ""})
    found = sorted(found, key=lambda each: -each["score"])[:top_k]
    return found[0] if len(found) == 1 else found


CONTEXTS = ["the microsofts sat bigly in paris , france .", "The cat sat on the mat . " * 6 + "a zebra is in france"]


@pytest.fixture(scope="module")
def asker():
    words = small.bert_words()
    words.model_max_length = 32
    theirs, ours = small.answerer()
    return af.pipeline("question-answering", ours, words), theirs, words


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"max_answer_len": 2, "top_k": 2}, {"doc_stride": 3}, {"max_seq_len": 20, "top_k": 4},
                {"handle_impossible_answer": True, "top_k": 40}, {"align_to_words": False, "top_k": 3}],
    ids=str,
)  # fmt: skip
def test_question_answering_equals_its_formula(asker, options):
    mine, theirs, words = asker
    asked = [{"question": "is the cat in paris", "context": context} for context in CONTEXTS]
    want = [answers_by_formula(theirs, words, **one, **options) for one in asked]
    close(mine(asked, **options), want)
    close(mine(asked[1], batch_size=2, **options), want[1])
    close(mine(question=asked[0]["question"], context=CONTEXTS[0], **options), want[0])
    close(mine(question=[one["question"] for one in asked], context=CONTEXTS, **options), want)


def test_question_answering_cuts_questions_and_says_what_does_not_fit(asker, words):
    mine, theirs, its = asker
    close(
        mine(question="is the cat in paris", context=CONTEXTS[0], max_question_len=3),
        answers_by_formula(theirs, its, "is the cat", CONTEXTS[0]),
    )
    for inputs, options, message in (
        (None, {}, "question-answering: give"),
        (["the cat"], {}, "input 0: expected"),
        ({"question": " ", "context": "the"}, {}, "input 0: is empty"),
        (None, {"question": ["a", "b"], "context": ["c"]}, "context: 1 for 2 questions"),
        (None, {"question": "a", "context": "c", "doc_stride": 99}, "doc_stride: expected a whole number"),
        (None, {"question": "a", "context": "c", "top_k": 0}, "top_k: expected a whole number"),
        (None, {"question": "the " * 40, "context": "c"}, "are too short"),
    ):
        with pytest.raises(InputError, match=message):
            mine(inputs, **options)
    with pytest.raises(InputError, match="question-answering: needs a head that finds where an answer starts"):
        af.pipeline("question-answering", small.sequence_classifier(3)[1], words)


def test_pipelines_of_an_encoder_decoder_read_the_source_twice(tmp_path):
    """T5 and BART classify by their decoder at the end of the text; a public pipeline can be asked the same."""
    words = small.byte_words()
    inner = tokenizers.Tokenizer.from_str(words.backend_tokenizer.to_str())
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    config = small.t5(words).config
    config.id2label, config.pad_token_id = NLI, 1
    config.label2id = {name: i for i, name in NLI.items()}
    theirs = small.shaken(transformers.T5ForSequenceClassification(config).double()).eval()
    place = small.folder_of(theirs, words, tmp_path)
    for task, given in (
        ("text-classification", {"top_k": None}),
        ("zero-shot-classification", {"candidate_labels": "a,b"}),
    ):
        pipe = transformers.pipeline(task, model=theirs, tokenizer=words)
        mine = af.pipeline(task, place, dtype=torch.float64)
        close(mine(PROMPTS, **given), [pipe(text, **given) for text in PROMPTS])


def test_feature_extraction_equals_transformers(words):
    theirs = small.masked_lm()
    mine = af.pipeline("feature-extraction", model=af.from_hf(theirs), tokenizer=words)
    other = transformers.pipeline("feature-extraction", model=theirs.bert, tokenizer=words)
    close(mine(TEXTS[0]), other(TEXTS[0]))
    close(mine(TEXTS, batch_size=3), [other(text) for text in TEXTS])
    found = mine(TEXTS[1], return_tensors=True)
    assert (found.shape, found.dtype) == ((1, 3, 16), torch.float64)


def test_feature_extraction_past_a_head_that_pools_and_of_an_encoder_decoder(words):
    theirs, ours = small.sequence_classifier(3)
    other = transformers.pipeline("feature-extraction", model=theirs.bert, tokenizer=words)
    close(af.pipeline("feature-extraction", ours, words)(TEXTS[0]), other(TEXTS[0]))
    # The model itself still has its head.
    assert ours(torch.tensor([[2, 5, 3]])).logits.shape == (1, 3)
    bytes_ = small.byte_words()
    both = small.t5(bytes_)
    states = both.encoder(torch.tensor([bytes_("the cat")["input_ids"]])).last_hidden_state.tolist()
    close(af.pipeline("feature-extraction", af.from_hf(both), bytes_)("the cat"), states)


@pytest.fixture(scope="module")
def teller(tmp_path_factory):
    words = small.byte_words("<|im_start|>", "<|im_end|>")
    words.chat_template = CHATML
    theirs = small.llama(words, max_position_embeddings=80)
    place = small.folder_of(theirs, words, tmp_path_factory.mktemp("llama"))
    mine = af.pipeline("text-generation", str(place), dtype=torch.float64)
    return mine, transformers.pipeline("text-generation", model=theirs, tokenizer=words)


@pytest.mark.parametrize("inputs", [PROMPTS[0], PROMPTS], ids=["one", "list"])
@pytest.mark.parametrize(
    "options", [{}, {"return_full_text": False}, {"return_tensors": True}, {"repetition_penalty": 1.3}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}],
    ids=str,
)  # fmt: skip
def test_text_generation_equals_transformers(teller, inputs, options):
    mine, theirs = teller
    found = mine(inputs, max_new_tokens=12, **options)
    want = theirs(inputs, max_new_tokens=12, do_sample=False, **options)
    assert found == want


def test_text_generation_in_batches_equals_one_at_a_time(teller):
    mine, _ = teller
    long = " the cat sat on the mat, and the dog sat on the cat." * 2
    prompts = [*PROMPTS, long]
    for options in ({}, {"temperature": 1.5, "seed": 3, "num_return_sequences": 2}):
        whole = mine(prompts, **options)
        # The long prompt leaves less room than the others have, and each seed goes with its prompt.
        for size in (1, 2):
            assert mine(prompts, batch_size=size, **options) == whole
    alone = [mine(prompt)[0] for prompt in prompts]
    assert [answer[0] for answer in mine(prompts)] == alone
    drawn = mine(prompts[0], temperature=1.5, seed=3)[0]
    assert drawn == mine(prompts, temperature=1.5, seed=3)[0][0] != alone[0]
    count = mine.source.tokenizer.encode(long)
    assert len(mine(long, return_tensors=True)[0]["generated_token_ids"]) <= 80 > len(count)


def test_text_generation_streamed_equals_at_once(teller):
    mine, _ = teller
    for options in ({}, {"temperature": 1.2, "seed": 5}, {"stop": "e", "temperature": 1.2, "seed": 5}):
        pieces = list(mine(PROMPTS[1], max_new_tokens=24, stream=True, **options))
        whole = mine(PROMPTS[1], max_new_tokens=24, return_full_text=False, **options)[0]["generated_text"]
        assert "".join(pieces) == whole
        assert len(pieces) > 1 or "stop" in options
        assert "stop" not in options or "e" not in whole


def test_text_generation_stops_at_ids_of_the_generation_config(tmp_path):
    words = small.byte_words()
    theirs = small.llama(words)
    place = small.folder_of(theirs, words, tmp_path)
    first = af.pipeline("text-generation", place)("the cat", max_new_tokens=5, return_tensors=True)
    ids = first[0]["generated_token_ids"]
    begun = len(words("the cat")["input_ids"])
    (place / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, ids[begun + 2]]}))
    found = af.pipeline("text-generation", place)("the cat", max_new_tokens=5, return_tensors=True)
    assert found[0]["generated_token_ids"] == ids[: ids.index(ids[begun + 2], begun) + 1]
    kept = af.pipeline("text-generation", place)("the cat", max_new_tokens=5, return_tensors=True, stop=())
    assert kept == first


@pytest.mark.parametrize("full", [True, False])
def test_text_generation_of_a_chat_equals_transformers(teller, full):
    mine, theirs = teller
    chat = [{"role": "system", "content": "the"}, {"role": "user", "content": "the cat?"}]
    going = [*chat, {"role": "assistant", "content": "the dog"}]
    options = {"max_new_tokens": 9, "return_full_text": full}
    for inputs in (chat, going, [chat, going]):
        assert mine(inputs, **options) == theirs(inputs, do_sample=False, **options)
    assert mine(going, continue_final_message=False, **options) == theirs(
        going, continue_final_message=False, do_sample=False, **options
    )
    text = "".join(mine(chat, max_new_tokens=9, stream=True))
    assert text == mine(chat, max_new_tokens=9, return_full_text=False)[0]["generated_text"]


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("", {}, "input 0: is empty"),
        (["the", " \n"], {}, "input 1: is empty"),
        (PROMPTS, {"stream": True}, "one prompt at a time is streamed"),
        ("the", {"stream": True, "num_beams": 2}, "stream"),
        ("the", {"temperature": -1.0}, "temperature: -1.0"),
        ("the", {"num_return_sequences": 0}, "n: 0 is not at least 1"),
        ("the", {"seed": [1, 2]}, "seed: expected one whole number"),
        ("the", {"seed": "x"}, "seed: expected one whole number"),
        ([{"role": "user", "content": 3}], {}, r"messages\[0\]: content: expected a text"),
        ("the", {"max_new_tokens": -1}, "max_new_tokens: -1 is not at least 1"),
    ],
)
def test_text_generation_of_bad_input_says_what_is_wrong(teller, inputs, options, message):
    with pytest.raises(InputError, match=message):
        teller[0](inputs, **options)


def test_text_generation_of_an_unknown_option_names_the_nearest(teller):
    with pytest.raises(
        TypeError, match=r"pipeline\('text-generation'\)\(\.\.\.\): 'temprature' is unknown; did you mean 'temperature'"
    ):
        teller[0]("the", temprature=1.0)
    with pytest.raises(TypeError, match="'max_length' is called 'max_new_tokens' here"):
        teller[0]("the", max_length=5)


def test_text_generation_without_a_template_refuses_a_chat(tmp_path):
    small_run(tmp_path)
    with pytest.raises(InputError, match="is a chat, and this model has no chat template"):
        af.pipeline("text-generation", tmp_path)([{"role": "user", "content": "hi"}])


def test_text_generation_that_fills_all_positions_says_so(tmp_path):
    small_run(tmp_path, {"context": 16, "position": {"kind": "learned"}})
    pipe = af.pipeline("text-generation", tmp_path)
    assert len(pipe("the cat", return_tensors=True)[0]["generated_token_ids"]) <= 16
    with pytest.raises(InputError, match="fills the 16 that this model has positions for"):
        pipe("zebra " * 9)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    words = small.byte_words()
    theirs = small.t5(words)
    theirs.config.task_specific_params = {
        "translation_en_to_de": {"prefix": "the "}, "summarization": {"prefix": "a "},
    }  # fmt: skip
    return theirs, words, small.folder_of(theirs, words, tmp_path_factory.mktemp("t5"))


@pytest.mark.parametrize(
    ("task", "key", "prefix"),
    [
        ("translation", "translation_text", ""), ("translation_en_to_de", "translation_text", "the "),
        ("summarization", "summary_text", "a "), ("text2text-generation", "generated_text", ""),
    ],
)  # fmt: skip
def test_answers_of_an_encoder_decoder_equal_transformers_generate(translator, task, key, prefix):
    theirs, words, place = translator
    mine = af.pipeline(task, place, dtype=torch.float64)
    for options in ({}, {"num_beams": 3}):
        want = []
        for text in PROMPTS:
            ids = words(prefix + text, return_tensors="pt").input_ids
            made = theirs.generate(ids, max_new_tokens=10, do_sample=False, **options)
            want.append({key: words.decode(made[0], skip_special_tokens=True)})
        assert mine(PROMPTS, max_new_tokens=10, **options) == want
        assert mine(PROMPTS[0], max_new_tokens=10, **options) == want[:1]
    assert "".join(mine(PROMPTS[1], max_new_tokens=10, stream=True)) == mine(PROMPTS[1], max_new_tokens=10)[0][key]
    assert mine("cat", prefix="the ", max_new_tokens=4) == mine("the cat", prefix="", max_new_tokens=4)
    two = mine(PROMPTS[:2], max_new_tokens=4, num_beams=2, num_return_sequences=2)
    assert [len(answers) for answers in two] == [2, 2]


def test_pipeline_with_an_unknown_task_names_the_nearest():
    with pytest.raises(InputError, match="task: 'text-generaton' is unknown; did you mean 'text-generation'"):
        af.pipeline("text-generaton", "somewhere")
    with pytest.raises(InputError, match="task: None is unknown"):
        af.pipeline(None)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("fill-mask", {}, "fill-mask: needs an encoder that predicts masked tokens, and this model is a decoder"),
        ("fill-mask", {"topology": "encoder"}, r"the tokenizer has no mask token \(such as \[MASK\] or <mask>\)"),
        ("text-classification", {}, "needs a head that answers for a whole text .*this model's is 'lm'"),
        ("ner", {}, "needs a head that answers for each token .*this model's is 'lm'"),
        ("translation", {}, "translation: needs an encoder-decoder, and this model is a decoder"),
        ("text-generation", {"topology": "encoder"}, "an encoder reads a text at once and continues none"),
        ("text-generation", {"topology": "encoder-decoder", "ids": {"start": 0}}, "use text2text-generation"),
        (
            "token-classification",
            {"topology": "encoder-decoder", "ids": {"start": 0}, "head": {"kind": "token", "labels": 3}},
            "token-classification: the head of an encoder-decoder answers for the tokens of its decoder",
        ),
        ("summarization", {"topology": "encoder"}, "an encoder reads a text at once"),
        ("text-generation", {"head": {"kind": "none"}}, "a 'none' head predicts no tokens"),
    ],
)
def test_pipeline_whose_task_does_not_fit_the_model_says_why(tmp_path, task, changes, message):
    small_run(tmp_path, changes)
    with pytest.raises(InputError, match=message):
        af.pipeline(task, tmp_path)


def test_pipeline_takes_tokenizers_of_every_kind_and_leaves_them_as_they_are(tmp_path):
    # A bos that is an eos too is no part of a prompt: a tokenizer of another library does not know of it.
    model, own = small_run(tmp_path, {"ids": {"bos": 0, "eos": [0]}})
    inner = tokenizers.Tokenizer.from_str(own.to_json())
    inner.enable_truncation(3)
    public = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(own.to_json()))
    before = public.backend_tokenizer.to_str()
    kinds = (own, inner, str(tmp_path), tmp_path / "tokenizer.json", public)
    found = [af.pipeline("text-generation", model, kind)("the cat sat on", max_new_tokens=5) for kind in kinds]
    assert found == found[:1] * len(kinds)
    assert found[0] == af.pipeline("text-generation", tmp_path)("the cat sat on", max_new_tokens=5)
    assert inner.truncation["max_length"] == 3
    assert not public.backend_tokenizer.encode_special_tokens
    assert public.backend_tokenizer.to_str() == before


def test_pipeline_without_what_it_needs_says_so(tmp_path):
    model, own = small_run(tmp_path / "a")
    with pytest.raises(InputError, match="tokenizer: a model has none of its own"):
        af.pipeline("text-generation", model)
    with pytest.raises(InputError, match="tokenizer: expected a path, a tokenizer"):
        af.pipeline("text-generation", model, 5)
    with pytest.raises(InputError, match="model: expected a folder, a name on the hub or a model, got nothing"):
        af.pipeline("text-generation", tokenizer=own)
    with pytest.raises(InputError, match="there is no such directory"):
        af.pipeline("text-generation", tmp_path / "b")
    with pytest.raises(InputError, match="device: 'tpu9' is none"):
        af.pipeline("text-generation", model, own, device="tpu9")
    few = af.build(model.spec.vary({"vocab": 200}))
    with pytest.raises(InputError, match=r"tokenizer: has \d+ tokens, and the model 200"):
        af.pipeline("text-generation", few, own)


def test_pipeline_on_a_given_device_and_dtype(tmp_path):
    model, own = small_run(tmp_path)
    assert (
        next(af.pipeline("text-generation", tmp_path, dtype=torch.float64).source.model.parameters()).dtype
        == torch.float64
    )
    assert af.pipeline("text-generation", model, own, device=-1).source.device == torch.device("cpu")
    public = small.llama(small.byte_words())
    found = af.pipeline("text-generation", public, small.byte_words())("the", max_new_tokens=4)
    assert found == af.pipeline("text-generation", af.from_hf(public), small.byte_words())("the", max_new_tokens=4)


def test_features_of_a_text_beyond_the_context_warn(tmp_path):
    small_run(tmp_path, {"context": 16, "topology": "encoder"})
    pipe = af.pipeline("feature-extraction", tmp_path)
    with pytest.warns(UserWarning, match="more than the 16 that this model is made for; truncation=True cuts it"):
        assert len(pipe("zebra " * 9)[0]) > 16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pipe("zebra " * 9, truncation=True)[0]) == 16


def test_batches_are_of_like_length_and_hold_everything_once():
    found = list(batches([3, 9, 1, 9, 4], 2))
    assert found == [[1, 3], [4, 0], [2]]
    ids, mask = padded([[5], [6, 7]], 0)
    assert (ids, mask) == ([[5, 0], [6, 7]], [[1, 0], [1, 1]])
    ids, mask = padded([[5], [6, 7]], 9, left=True)
    assert (ids, mask) == ([[9, 5], [6, 7]], [[0, 1], [1, 1]])
