"""Greedy text of published folders, of every kind of tokenizer, against transformers' own pipeline; and of runs of ours."""

import json

import pytest
import torch
import transformers

import anyformer as af
from anyformer.cli.main import main
from anyformer.data.tokenizer import Tokenizer, prompt_ids, source_ids
from anyformer.evals.loglikelihood import LoglikelihoodModel
from anyformer.families.io import load
from anyformer.generation.chat.conversation import Chat
from anyformer.generation.pipelines.source import open_source
from anyformer.generation.text.prompt import read_prompt
from tests.cli.small_run import small_run
from tests.data.published import NAMES, around, byte_level, unigram
from tests.data.test_tokenizer import STORIES, needs_stories
from tests.evals.lm_eval_peer import kinds, write_model

PROMPTS = ["The cat sat on", "Once upon a time ", " In 1984", "the fox</s> x", "na\u00efve caf\u00e9"]
GREEDY = {"max_new_tokens": 8, "do_sample": False, "return_tensors": True}


@pytest.fixture
def quiet():
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity_warning()


@pytest.mark.parametrize("name", list(kinds()))
def test_greedy_text_of_a_published_folder_is_that_of_transformers(tmp_path, quiet, name):
    folder = write_model(tmp_path, *kinds()[name])
    theirs = transformers.pipeline("text-generation", model=str(folder), device="cpu", dtype=torch.float32)
    ours = af.pipeline("text-generation", model=folder)
    for prompt in PROMPTS:
        want = theirs(prompt, **GREEDY)[0]["generated_token_ids"]
        (found,) = ours(prompt, **GREEDY)
        assert found["generated_token_ids"] == list(want), prompt
        read = read_prompt(ours.source.model.spec, ours.source.tokenizer, prompt)
        assert (list(read.ids), read.first, read.repeated) == (list(want)[: len(read.ids)], None, 0)


def test_greedy_text_with_a_tokenizer_of_transformers_is_that_of_its_folder(tmp_path):
    folder = write_model(tmp_path, *kinds()["byte-level BPE, bos"])
    words = transformers.AutoTokenizer.from_pretrained(folder)
    (want,) = af.pipeline("text-generation", model=folder)("The cat", **GREEDY)
    for given in (words, words.backend_tokenizer, str(folder / "tokenizer.json"), af.tokenizer(folder)):
        (found,) = af.pipeline("text-generation", model=load(folder), tokenizer=given)("The cat", **GREEDY)
        assert found == want


def test_generate_and_explain_of_a_published_folder_read_its_own_ids(tmp_path, capsys):
    folder = write_model(tmp_path, *kinds()["sentencepiece BPE, bos"])
    words = transformers.AutoTokenizer.from_pretrained(folder)
    for prompt in PROMPTS:
        assert main(["generate", str(folder), prompt, "--max-new-tokens", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["prompt_tokens"] == len(words(prompt).input_ids)


def test_source_of_an_encoder_decoder_has_the_ids_of_its_files(tmp_path):
    inner = unigram(NAMES["t5"])
    config = transformers.T5Config(
        vocab_size=inner.get_vocab_size(),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    words, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), af.tokenizer(tmp_path)
    spec = af.spec(tmp_path)
    for prompt in PROMPTS:
        want = words(prompt).input_ids
        assert source_ids(ours, prompt) == list(read_prompt(spec, ours, prompt).ids) == want
        assert want[-1] == 1
    pipe = af.pipeline("text2text-generation", model=tmp_path)
    public = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path)
    (found,) = pipe("The cat", max_new_tokens=6)
    made = public.generate(torch.tensor([words("The cat").input_ids]), max_new_tokens=6, do_sample=False)
    assert found["generated_text"] == words.decode(made[0], skip_special_tokens=True)


def test_message_of_a_plain_chat_with_a_spelled_special_token_is_text(tmp_path):
    folder = write_model(tmp_path, *kinds()["byte-level BPE, bos"])
    source = open_source(folder, None, device=None, dtype=None, labels=None)
    chat = Chat(source, plain=True)
    chat.turns.append({"role": "user", "content": "a</s>b"})
    ids = chat._ids()
    eos = source.tokenizer.id_of("</s>")
    assert eos not in ids
    assert ids[0] == source.tokenizer.id_of("<s>")
    assert eos in prompt_ids(source.model.spec, source.tokenizer, "a</s>b")


def test_run_of_ours_reads_texts_as_it_was_trained(tmp_path):
    _, words = small_run(tmp_path, {"ids": {"bos": 0, "eos": [1]}})
    model, read = af.load(tmp_path), af.tokenizer(tmp_path)
    assert not read.published
    assert prompt_ids(model.spec, read, "the cat") == (0, *words.encode("the cat"))
    assert 0 not in words.encode("the<|endoftext|>cat")
    assert prompt_ids(model.spec, read, "the<|endoftext|>cat")[1:] == tuple(words.encode("the<|endoftext|>cat"))
    asked = LoglikelihoodModel(model, read)
    assert asked.split("the", " cat") == (
        [0, *words.encode("the")],
        words.encode("the cat")[len(words.encode("the")) :],
    )


@pytest.mark.parametrize("name", list(kinds()))
@pytest.mark.parametrize("format", ["anyformer", "hf"])
def test_converted_folder_gives_texts_the_ids_that_they_had(tmp_path, capsys, name, format):
    folder = write_model(tmp_path / "old", *kinds()[name])
    assert main(["convert", str(folder), str(tmp_path / "new"), "--format", format]) == 0
    old, new = af.tokenizer(folder), af.tokenizer(tmp_path / "new")
    assert new.published
    for prompt in PROMPTS:
        assert new.text_ids(prompt) == old.text_ids(prompt)
        assert new.decode(new.text_ids(prompt)) == old.decode(old.text_ids(prompt))
    assert {role: new.id_named(role) for role in old.named} == {role: old.id_named(role) for role in old.named}


def test_converted_folder_for_another_type_of_model_gives_texts_the_ids_that_they_had(tmp_path, capsys):
    folder = write_model(tmp_path / "old", *kinds()["sentencepiece BPE, bos"])
    assert main(["convert", str(folder), str(tmp_path / "new"), "--format", "hf", "--family", "mistral"]) == 0
    words, old = transformers.AutoTokenizer.from_pretrained(tmp_path / "new"), af.tokenizer(folder)
    new = af.tokenizer(tmp_path / "new")
    for prompt in PROMPTS:
        assert new.text_ids(prompt) == old.text_ids(prompt) == words(prompt).input_ids


def test_converted_folder_of_older_files_has_a_tokenizer_json(tmp_path, capsys):
    folder = write_model(
        tmp_path / "old", byte_level(NAMES["gpt2"]), {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}
    )
    byte_level(NAMES["gpt2"]).model.save(str(folder))
    (folder / "tokenizer.json").unlink()
    assert main(["convert", str(folder), str(tmp_path / "new")]) == 0
    assert af.tokenizer(tmp_path / "new").text_ids("The cat") == af.tokenizer(folder).text_ids("The cat")
    assert af.tokenizer(folder).text_ids("The cat")[0] == 0


@pytest.mark.parametrize("ids", [{"bos": 0, "eos": [1]}, {"bos": 0, "eos": [0]}, {"eos": [1]}])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_run_of_ours_that_is_exported_gives_prompts_the_same_ids_in_transformers(tmp_path, capsys, ids, family):
    model, _ = small_run(tmp_path / "run", {"ids": ids})
    if family == "gpt2":
        words = af.tokenizer(tmp_path / "run")
        small = {"width": 32, "depth": 1, "attention.heads": 2, "context": 32, "vocab": words.vocab}
        small |= {"ids.bos": ids.get("bos"), "ids.eos": ids["eos"]}
        model = af.build(af.spec("gpt-2", small))
        af.save(model, tmp_path / "run")
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "new"), "--format", "hf", "--family", family]) == 0
    public, ours, new = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "new"),
        af.tokenizer(tmp_path / "run"),
        af.tokenizer(tmp_path / "new"),
    )
    for prompt in ("the cat sat", " the  dog 1984", "it'S   x\n\n\ty"):
        assert public(prompt).input_ids == list(prompt_ids(model.spec, ours, prompt)) == new.text_ids(prompt)


@needs_stories
def test_real_checkpoint_continues_a_text_as_transformers_does(quiet):
    theirs = transformers.pipeline("text-generation", model=str(STORIES), device="cpu", dtype=torch.float32)
    ours = af.pipeline("text-generation", model=STORIES)
    for prompt in ("Once upon a time", "Lily and Tom ", "<s>The dog"):
        want = theirs(prompt, max_new_tokens=24, do_sample=False, return_tensors=True)[0]["generated_token_ids"]
        assert ours(prompt, max_new_tokens=24, return_tensors=True)[0]["generated_token_ids"] == list(want)


def test_tokenizer_in_memory_is_that_of_a_run():
    assert not Tokenizer(around(byte_level(("<s>", "</s>")), "<s> $A")).published
