"""LoglikelihoodModel against a computation token by token, and the harness's adapter against them."""

import importlib.util
import json
import logging
import math
import shutil
from itertools import product
from types import SimpleNamespace

import pytest
import torch

import anyformer as af
from anyformer.data.tokenizer import train_bpe
from anyformer.errors import CapabilityError, InputError
from anyformer.evals import lm_eval as adapter
from anyformer.evals.lm_eval import answers, generation_options, lm_eval_model, open_model
from anyformer.evals.loglikelihood import LoglikelihoodModel, cut_at, full_windows
from tests.cli.small_run import TEXT, small_run
from tests.contract.contracts import model_of
from tests.contract.draw import BASE
from tests.data.test_tokenizer import STORIES, needs_stories
from tests.tolerances import TABLE

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed: pip install 'anyformer[harness]'"
)
NEAR = TABLE["single"].limit
PAIRS = [
    ("the cat", " sat on"), ("the cat sat on ", "the mat, and the dog"), ("", "the dog sat"), ("and the dog", " x"),
    ("the cat sat on the mat, and the dog sat on the cat", "."),
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    small_run(folder, {"ids": {"bos": 0, "eos": [1]}})
    return folder


@pytest.fixture(scope="module")
def asked(run):
    return open_model(str(run))


def by_hand(asked, before, after):
    """The logarithm of p of each token after all before it, one pass for each."""
    total, greedy = 0.0, True
    for i, token in enumerate(after):
        ids = (before + after[:i])[-asked.room :]
        logits = asked.model(torch.tensor([ids])).logits[0, -1].detach()
        total += float(logits.log_softmax(-1)[token])
        greedy &= int(logits.argmax()) == token
    return total, greedy


def test_likelihoods_in_batches_are_those_of_token_by_token(asked):
    found = asked.loglikelihood(PAIRS)
    for (context, continuation), (nats, greedy) in zip(PAIRS, found, strict=True):
        before, after = asked.split(context, continuation)
        want = by_hand(asked, before, after)
        assert nats == pytest.approx(want[0], rel=NEAR)
        assert greedy == want[1]
    alone = [asked.loglikelihood([pair])[0][0] for pair in PAIRS]
    assert [nats for nats, _ in found] == pytest.approx(alone, rel=NEAR)


def test_likelihoods_know_which_one_token_greedy_decoding_takes(asked):
    texts = {i: asked.words.decode([i]) for i in range(2, asked.words.vocab)}
    single = [i for i, text in texts.items() if asked.split("the cat", text)[1] == [i]]
    found = asked.loglikelihood([("the cat", texts[i]) for i in single])
    logits = asked.model(torch.tensor([[0, *asked.words.encode("the cat")]])).logits[0, -1]
    assert [i for i, (_, greedy) in zip(single, found, strict=True) if greedy] == [int(logits.argmax())]


def test_split_moves_blanks_to_the_continuation_and_begins_with_bos(asked):
    assert asked.split("the cat ", "sat") == asked.split("the cat", " sat")
    before, after = asked.split("the cat", " sat")
    assert before == [0, *asked.words.encode("the cat")]
    assert before[1:] + after == asked.words.encode("the cat sat")
    assert asked.split("", "the")[0] == [0]


def test_likelihoods_of_a_long_context_lose_its_beginning(asked):
    before, after = asked.split(TEXT * 3, " sat")
    assert len(before) > asked.room
    assert asked.loglikelihood([(TEXT * 3, " sat")])[0][0] == pytest.approx(by_hand(asked, before, after)[0], rel=NEAR)
    with pytest.raises(InputError, match=r"pair 0: its continuation has .* tokens, and 64 are read at once"):
        asked.loglikelihood([("the", TEXT * 3)])
    with pytest.raises(InputError, match="pair 0: the continuation '' has no tokens"):
        asked.loglikelihood([("the", "")])


@pytest.mark.parametrize(("tokens", "room"), [(11, 4), (5, 4), (4, 4), (2, 4), (9, 4), (1, 4)])
def test_full_windows_predict_each_token_once_and_read_all_that_fits(tokens, room):
    windows = list(full_windows(tokens, room))
    assert [t for w in windows for t in range(w.first, w.end)] == list(range(1, tokens))
    for window in windows:
        assert window.end - window.start - 1 == min(room, tokens - 1)


def test_rolling_sums_over_windows(asked):
    text = TEXT * 2
    ids = [0, *asked.words.encode(text)]
    assert len(ids) > asked.room + 1
    total = 0.0
    for window in full_windows(len(ids), asked.room):
        logs = asked.model(torch.tensor([ids[window.start : window.end - 1]])).logits[0].detach().log_softmax(-1)
        total += sum(float(logs[t - 1 - window.start, ids[t]]) for t in range(window.first, window.end))
    assert asked.loglikelihood_rolling([text, "the"])[0] == pytest.approx(total, rel=NEAR)


def test_going_on_in_a_batch_is_going_on_alone_up_to_a_stop(asked):
    contexts = ["the", "the cat sat on the mat", "dog", TEXT]
    free = [asked.generate_until([context], until=[], new=8)[0] for context in contexts]
    assert asked.generate_until(contexts, until=[], new=8) == free
    stop = free[0][2:4]
    assert asked.generate_until(contexts, until=[stop], new=8) == [cut_at(text, [stop]) for text in free]
    with pytest.raises(InputError, match="64 new tokens leave no room for a context"):
        asked.generate_until(["the"], until=[], new=64)


def test_cut_at_ends_before_the_first_of_several():
    assert cut_at("one two three", ["three", "two"]) == "one "
    assert cut_at("one", ["", "x"]) == "one"


def test_continuations_of_a_model_that_can_begin_with_nothing_are_refused_and_so_are_prefix_lms():
    words = train_bpe([TEXT], 280)
    bare = LoglikelihoodModel(model_of(af.spec(BASE, {"vocab": words.vocab})), words)
    with pytest.raises(InputError, match="neither bos nor eos"):
        bare.loglikelihood([("", "the")])
    prefix = af.spec(BASE, {"vocab": words.vocab, "attention.pattern": "causal | prefix(5)"})
    with pytest.raises(InputError, match="the first 5 tokens of this prefix-LM see each other both ways"):
        LoglikelihoodModel(model_of(prefix), words)


def test_wanted_of_a_task_is_read_in_our_words():
    assert generation_options({"until": "\n", "max_gen_toks": 9, "temperature": 0.0}, 64) == {"until": ["\n"], "new": 9}
    drawn = generation_options({"do_sample": True, "temperature": 0.7}, 1024)
    assert drawn == {"until": [], "new": 256, "do_sample": True, "temperature": 0.7}
    assert generation_options({}, 64)["new"] == 32
    with pytest.warns(UserWarning, match="a task asks for 100 new tokens; this model has room for 64, so 32 are made"):
        generation_options({"max_gen_toks": 100}, 64)
    with pytest.raises(InputError, match="untl is not known here; did you mean 'until'"):
        generation_options({"untl": []}, 64)


ALIASES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@needs_harness
@pytest.mark.filterwarnings("ignore")
def test_wanted_number_of_tokens_is_the_one_that_the_harness_takes():
    from lm_eval.models.utils import normalize_gen_kwargs

    for said in product((None, 5, 7), repeat=4):
        given = {
            name: None if value is None else value + i
            for i, (name, value) in enumerate(zip(ALIASES, said, strict=True))
        }
        for wanted in (given, {name: value for name, value in given.items() if value is not None}):
            assert generation_options(wanted, 1024)["new"] == normalize_gen_kwargs(dict(wanted))["max_gen_toks"], wanted


DRAWING = {
    "min_new_tokens": 2, "no_repeat_ngram_size": 2, "typical_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.5,
    "repetition_penalty": 1.3, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "logit_bias": {5: 2.0},
}  # fmt: skip
SEARCHING = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}


@pytest.mark.parametrize("wanted", [
    *({"do_sample": True, "temperature": 0.8, "seed": 3, name: value} for name, value in DRAWING.items()), SEARCHING,
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, {"penalty_alpha": 0.6, "top_k": 4},
    {"do_sample": False, "no_repeat_ngram_size": 2},
], ids=str)  # fmt: skip
def test_wanted_options_that_generate_has_reach_it(asked, wanted):
    context = "the cat sat on the mat"
    made = answers(asked, [(context, wanted | {"max_gen_toks": 12, "until": []})])
    assert made == asked.generate_until([context], until=[], new=12, **wanted)
    read = generation_options(wanted, 64)
    # What is not drawn needs no word about it.
    assert {name: read.get(name, False) for name in wanted} == wanted


def test_answers_group_requests_that_are_asked_in_one_way(asked):
    ways = [{"until": ["."], "max_gen_toks": 4}, {"until": [], "max_gen_toks": 6}]
    requests = [("the", ways[0]), ("dog", ways[1]), ("the cat", ways[0])]
    want = [asked.generate_until([text], until=way["until"], new=way["max_gen_toks"])[0] for text, way in requests]
    assert answers(asked, requests) == want


def test_harness_arguments_that_are_wrong_are_all_named(run):
    with pytest.raises(InputError, match=r"pth is no argument.*did you mean 'path'.*path is missing.*dtype: 'f32'"):
        open_model("", pth=str(run), dtype="f32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_harness_without_a_cuda_device_is_on_the_cpu_and_says_so(run):
    with pytest.warns(UserWarning, match="on the CPU and not on cuda:0"):
        assert open_model(str(run), device="cuda:0").device.type == "cpu"


class Base:
    """As much of the harness's class as an adapter needs."""

    def __init__(self):
        self.kept = []
        self.cache_hook = SimpleNamespace(add_partial=lambda *given: self.kept.append(given))


@pytest.fixture
def stand_in(monkeypatch):
    names = {}

    def register(name):
        return lambda made: names.setdefault(name, made)

    modules = {
        "lm_eval.api.model": SimpleNamespace(LM=Base), "lm_eval.models": None,
        "lm_eval.api.registry": SimpleNamespace(register_model=register),
    }  # fmt: skip
    monkeypatch.setattr(adapter, "installed", lambda name: modules[name])
    adapter.lm_eval_class.cache_clear()
    yield names
    adapter.lm_eval_class.cache_clear()


def test_harness_model_answers_the_three_kinds_of_requests(run, asked, stand_in):
    model = lm_eval_model(str(run), batch_size=1, device="cpu")
    assert isinstance(model, stand_in["anyformer"])

    def requests(*given):
        return [SimpleNamespace(args=args) for args in given]

    assert model.loglikelihood(requests(*PAIRS)) == asked.loglikelihood(PAIRS)
    assert model.loglikelihood_rolling(requests((TEXT,))) == asked.loglikelihood_rolling([TEXT])
    way = {"until": ["."], "max_gen_toks": 4}
    assert model.generate_until(requests(("the", way))) == answers(asked, [("the", way)])
    assert [model.loglikelihood([]), model.loglikelihood_rolling([]), model.generate_until([])] == [[], [], []]
    assert [what for what, *_ in model.kept] == ["loglikelihood"] * 5 + ["loglikelihood_rolling", "generate_until"]


def test_harness_that_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(adapter, "installed", missing)
    adapter.lm_eval_class.cache_clear()
    with pytest.raises(CapabilityError, match="pip install lm-eval"):
        adapter.lm_eval_class()


@needs_stories
def test_a_published_model_goes_on_as_is_known():
    known = json.loads((STORIES / "greedy.json").read_text(encoding="utf-8"))["text"]
    asked = open_model(str(STORIES))
    # Its tokenizer files add no bos, so what it is known to say after one needs it spelled out.
    begin, rest = f"<s>{known[:40]}", known[40:120]
    assert asked.loglikelihood([(begin, rest)])[0][1]
    assert not asked.loglikelihood([(begin, rest[::-1])])[0][1]
    said = asked.generate_until([begin], until=[], new=60)[0]
    assert known[40:].lstrip().startswith(said.lstrip()[:60])


# Asked for warnings as errors, the harness and what it imports would fail by themselves.
theirs = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    from tests.evals.lm_eval_peer import write_tasks

    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def offline(monkeypatch, tmp_path_factory):
    """No network, and a cache of its own."""
    import datasets

    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def check_same(found):
    """Equal figures, equal answers, and every log-likelihood."""
    assert found.furthest <= TABLE["harness"].limit
    assert all(theirs == ours for theirs, ours in found.greedy)
    assert all(theirs == ours for theirs, ours in found.answers)
    for name, (theirs, ours) in found.figures.items():
        if "rolling" in name:
            # Made of the log-likelihoods, perplexities by an exponential: in logs they are as near as those.
            assert abs(math.log(ours) - math.log(theirs)) <= TABLE["harness"].limit, name
        else:
            assert ours == theirs, name


KINDS = (
    "byte-level BPE", "byte-level BPE, bos", "sentencepiece BPE", "sentencepiece BPE, bos", "Unigram", "Unigram, bos",
    "Unigram, bos and eos", "WordPiece", "WordPiece, bos", "WordPiece, bos and eos", "no names",
)  # fmt: skip


@needs_harness
@theirs
@pytest.mark.parametrize("name", KINDS)
def test_harness_of_a_published_folder_has_the_figures_of_the_harness_itself(tmp_path, tasks, offline, name):
    from tests.evals.lm_eval_peer import compare, kinds, write_model

    assert set(kinds()) == set(KINDS)
    check_same(compare(write_model(tmp_path / "model", *kinds()[name]), tasks))


@needs_harness
@needs_stories
@theirs
@pytest.mark.parametrize("settings", [
    {}, {"tokenizer_class": "LlamaTokenizer"}, None,
], ids=["bos and eos named", "a class", "as it is"])  # fmt: skip
def test_harness_of_a_real_checkpoint_has_the_figures_of_the_harness_itself(tmp_path, tasks, offline, settings):
    from tests.evals.lm_eval_peer import compare

    folder = tmp_path / "stories"
    folder.mkdir()
    for file in STORIES.iterdir():
        shutil.copyfile(file, folder / file.name)
    if settings is not None:
        named = {"bos_token": "<s>", "eos_token": "</s>"} | settings
        (folder / "tokenizer_config.json").write_text(json.dumps(named))
    check_same(compare(folder, tasks, prefix=1 if settings is None else None))


@needs_stories
def test_continuations_of_files_that_name_no_first_token_say_what_to_give():
    bare = open_model(str(STORIES))
    with pytest.raises(InputError, match=r"its tokenizer files name no bos_token and no eos_token.*prefix_token_id=ID"):
        bare.loglikelihood([("", "the")])
    given = open_model(str(STORIES), prefix_token_id=1)
    assert given.split("", "the")[0] == [1]
    with pytest.raises(InputError, match="prefix_token_id: 512 is not an id below vocab = 512"):
        open_model(str(STORIES), prefix_token_id=512)
