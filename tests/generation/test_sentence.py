"""Folders of sentence-transformers: their vectors by the published formulas, and by the package itself where it is."""

import copy
import functools
import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import save_file

import anyformer as af
from anyformer.convert.folder import Plan, convert
from anyformer.errors import CheckpointError, InputError
from tests.generation import small_models as small
from tests.tolerances import assert_close

TEXTS = ["the cat sat on the mat .", "paris", "microsoft is bigly , the dogs sat", "a dog is in france"]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
FLAGS = {
    mode: f"pooling_mode_{mode}{'' if mode == 'lasttoken' else '_token' if mode == 'cls' else '_tokens'}"
    for mode in MODES
}
FLAGS["mean_sqrt_len_tokens"] = "pooling_mode_mean_sqrt_len_tokens"
TYPE = "sentence_transformers.models."


def write(place, table):
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(table))


def modules(folder, *names):
    rows = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": TYPE + name}
        for i, name in enumerate(names)
    ]
    write(folder / "modules.json", rows)


@functools.cache
def public():
    """A BERT without its head, and its tokenizer."""
    return small.shaken(transformers.BertModel(small.bert_config())).eval(), small.bert_words()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("saved")
    for made in public():
        made.save_pretrained(place)
    return place


@pytest.fixture
def folder(saved, tmp_path):
    """Both of them, and the mean of the states."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    modules(tmp_path, "Transformer", "Pooling")
    write(tmp_path / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})
    return tmp_path


@functools.cache
@torch.no_grad()
def states(text, most=32):
    """Of the public class, one text at a time."""
    model, words = public()
    ids = words(text, return_tensors="pt", truncation=True, max_length=most)
    return copy.deepcopy(model).double()(**ids).last_hidden_state[0]


def vectors(folder, texts=TEXTS, **options):
    pipe = af.pipeline("feature-extraction", folder, dtype=torch.float64)
    return pipe(texts, return_tensors=True, **options)


def pooled(x, mode):
    """The published formulas."""
    weight = torch.arange(1, len(x) + 1, dtype=x.dtype)[:, None]
    return {
        "cls": x[0], "max": x.max(0).values, "mean": x.sum(0) / len(x), "mean_sqrt_len_tokens": x.sum(0) / len(x) ** 0.5,
        "weightedmean": (x * weight).sum(0) / weight.sum(), "lasttoken": x[-1],
    }[mode]  # fmt: skip


@pytest.mark.parametrize("old", [True, False], ids=["flags", "names"])
@pytest.mark.parametrize("modes", [[mode] for mode in MODES] + [["cls", "mean"], MODES], ids="+".join)
def test_each_pooling_gives_its_formula_alone_and_in_batches(folder, modes, old):
    flags = {FLAGS[mode]: mode in modes for mode in MODES}
    named = {"embedding_dimension": 16, "pooling_mode": modes[0] if len(modes) == 1 else modes}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, **flags} if old else named)
    found = vectors(folder, batch_size=3)
    for vector, text in zip(found, TEXTS, strict=True):
        assert_close("oracle", vector, torch.cat([pooled(states(text), mode) for mode in modes]))
    alone = af.pipeline("feature-extraction", folder, dtype=torch.float64)(TEXTS[0])
    assert alone == pytest.approx(found[0].tolist(), abs=1e-12)


@pytest.mark.parametrize("name", ["activation.Tanh", "linear.Identity", "activation.GELU"])
def test_dense_norm_and_normalize_follow_in_their_order(folder, name):
    modules(folder, "Transformer", "Pooling", "Dense", "LayerNorm", "Normalize")
    generator = torch.Generator().manual_seed(1)
    weight, bias, gain, shift = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in ((6, 16), 6, 6, 6)
    )
    config = {"in_features": 16, "out_features": 6, "bias": True, "activation_function": f"torch.nn.modules.{name}"}
    write(folder / "2_Dense" / "config.json", config)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    write(folder / "3_LayerNorm" / "config.json", {"dimension": 6})
    save_file({"norm.weight": gain, "norm.bias": shift}, folder / "3_LayerNorm" / "model.safetensors")
    act = {"activation.Tanh": torch.tanh, "linear.Identity": lambda x: x, "activation.GELU": torch.nn.functional.gelu}[
        name
    ]
    for vector, text in zip(vectors(folder), TEXTS, strict=True):
        x = act(weight @ states(text).mean(0) + bias)
        x = (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt() * gain + shift
        assert_close("oracle", vector, x / x.norm())


def test_prompts_lengths_small_letters_and_widths_are_read(folder):
    write(folder / "sentence_bert_config.json", {"max_seq_length": 6, "do_lower_case": True})
    prompts = {"prompts": {"query": "a big ", "none": ""}, "default_prompt_name": "query", "truncate_dim": 5}
    write(folder / "config_sentence_transformers.json", prompts)
    long = "THE cat sat on the mat"
    for options, text in (({}, f"a big {long}"), ({"prompt_name": "none"}, long), ({"prompt": "in "}, f"in {long}")):
        assert_close("oracle", vectors(folder, long, **options), states(text.lower(), 6).mean(0)[:5])
    with pytest.raises(InputError, match=r"prompt_name: 'qury' is unknown; did you mean 'query'\?"):
        vectors(folder, "paris", prompt_name="qury")
    # A prompt that is read, and left out of the mean.
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "weightedmean", "include_prompt": False})
    x = states("a big paris is")[3:]
    weight = torch.arange(4, 4 + len(x), dtype=x.dtype)
    assert_close("oracle", vectors(folder, "paris is"), (weight @ x / weight.sum())[:5])


def test_config_that_still_names_the_masked_lm_is_read_without_its_head(folder):
    found = vectors(folder)
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", config | {"architectures": ["BertForMaskedLM"]})
    assert af.load(folder).head is None
    for one, two in zip(found, vectors(folder), strict=True):
        assert torch.equal(one, two)


def test_model_in_a_folder_of_its_own_is_found(folder):
    found = vectors(folder)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in [*folder.glob("*token*"), *folder.glob("*.safetensors"), folder / "config.json"]:
        file.rename(inner / file.name)
    rows = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", [rows[0] | {"path": "0_Transformer"}, *rows[1:]])
    for one, two in zip(found, vectors(folder), strict=True):
        assert_close("oracle", one, two)


@pytest.mark.parametrize("format", ["anyformer", "hf"])
def test_converted_folder_keeps_its_modules(folder, tmp_path_factory, format):
    found, place = vectors(folder), tmp_path_factory.mktemp("converted") / format
    for _ in range(2):  # what it wrote it may replace
        done = convert(Plan(source=folder, place=place, format=format))
    assert done.architecture == (None if format == "anyformer" else "BertModel")
    for one, two in zip(found, vectors(place), strict=True):
        assert_close("oracle", one, two)


def test_prompt_for_a_plain_model_is_refused(folder):
    (folder / "modules.json").unlink()
    pipe = af.pipeline("feature-extraction", folder)
    assert torch.tensor(pipe("the cat")).shape == (1, 4, 16)
    with pytest.raises(InputError, match="prompt, prompt_name: belong to folders of sentence-transformers"):
        pipe("the cat", prompt="a ")


@pytest.mark.parametrize(
    ("file", "table", "message"),
    [
        ("modules.json", [{"type": TYPE + "WordEmbeddings", "path": ""}], "begins with WordEmbeddings; only a Transf"),
        ("modules.json", [{"type": "custom_st.Transformer", "path": ""}], "custom_st.Transformer is code beside the weights"),
        ("modules.json", [{"type": TYPE + "Transformer", "path": "../x"}], "is no module with its type and its folder"),
        ("modules.json", [{"type": TYPE + "Transformer"}, {"type": TYPE + "LSTM"}], "the module LSTM at this place"),
        ("modules.json", [{"type": TYPE + "Transformer"}], "lists no Pooling"),
        ("modules.json", {}, "begins with nothing"),
        ("1_Pooling/config.json", {"pooling_mode": "meen"}, "pooling_mode: 'meen' is unknown; did you mean 'mean'"),
        ("1_Pooling/config.json", {"pooling_mode_new": True}, "pooling_mode_new: is not a key that we know here"),
        ("sentence_bert_config.json", {"max_seq_length": "x"}, "max_seq_length: 'x' is not a whole number"),
        ("config_sentence_transformers.json", {"prompts": [1]}, r"prompts: \[1\] is no table of texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "default_prompt_name: 'q' is not the name"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_its_name(folder, file, table, message):
    write(folder / file, table)
    with pytest.raises(CheckpointError, match=message):
        vectors(folder)


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"activation_function": "os.system"}, {}, "activation_function: 'os.system' is unknown"),
        ({"use_residual": True}, {}, "use_residual: True can't be read"),
        ({"module_input_name": "token_embeddings"}, {}, "module_input_name: 'token_embeddings' can't be read"),
        ({}, {"linear.weight": torch.ones(6, 16)}, "linear.bias: is missing"),
        ({}, {"linear.weight": torch.ones(5, 16), "linear.bias": torch.ones(6)}, r"linear.weight: has the shape \(5, 16\)"),
        ({}, {"linear.weight": torch.ones(6, 16), "more": torch.ones(6)}, "more: is not a tensor of this module"),
    ],
)  # fmt: skip
def test_dense_layer_that_does_not_fit_is_refused_by_its_tensor(folder, config, tensors, message):
    modules(folder, "Transformer", "Pooling", "Dense")
    write(folder / "2_Dense" / "config.json", {"in_features": 16, "out_features": 6} | config)
    save_file(tensors or {"linear.weight": torch.ones(6, 16)}, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        vectors(folder)


def test_vectors_equal_those_of_the_package(folder):
    package = pytest.importorskip("sentence_transformers")
    modules(folder, "Transformer", "Pooling", "Dense", "Normalize")
    dense = torch.nn.Linear(16, 6)
    write(folder / "2_Dense" / "config.json", {"in_features": 16, "out_features": 6, "bias": True})
    save_file(
        {f"linear.{name}": p.detach() for name, p in dense.named_parameters()}, folder / "2_Dense" / "model.safetensors"
    )
    write(folder / "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": False})
    write(
        folder / "config_sentence_transformers.json", {"prompts": {"query": "a big "}, "default_prompt_name": "query"}
    )
    for pooling in ({"include_prompt": True}, {"include_prompt": False}):
        write(
            folder / "1_Pooling" / "config.json", {"embedding_dimension": 16, "pooling_mode": "weightedmean", **pooling}
        )
        theirs = package.SentenceTransformer(str(folder), device="cpu").double()
        texts = [*TEXTS, "the cat sat on the mat , a dog is in france"]
        for vector, want in zip(vectors(folder, texts), theirs.encode(texts, convert_to_tensor=True), strict=True):
            assert_close("oracle", vector, want)
