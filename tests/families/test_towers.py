"""Language models inside multimodal checkpoints: the logits of the public class for a text, and only what is text."""

import json
import re
import warnings
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import CheckpointError, SpecError
from anyformer.families.checkpoint import described
from anyformer.families.family import Family
from anyformer.families.lookup import family_of
from anyformer.families.statemap import StateMap
from anyformer.families.towers import TOWERS
from tests.families.oracle import answer, lifted, randomise
from tests.families.tower_cases import CASES, GEMMA, QWEN3, QWEN_FLAT, TEXT
from tests.tolerances import assert_close

LEFT_OUT = "ignore:.*this is the language model alone:UserWarning"
LENGTH = 21


def made(name: str) -> Any:
    """A public model with random weights."""
    public, _, config = CASES[name]
    cls = getattr(transformers, f"{public}ForConditionalGeneration")
    with lifted():
        own = cls.config_class(**config)
        own._experts_implementation = "eager"  # the usual one takes no fp64
        model = cls(own).double().eval()
    randomise(model, StateMap(rules=()), 0)
    return model


def ids_of(rows: int = 2) -> torch.Tensor:
    return torch.randint(3, 61, (rows, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Makes a public model and its folder, each once."""
    kept: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in kept:
            theirs, place = made(name), tmp_path_factory.mktemp(name)
            theirs.save_pretrained(place)
            kept[name] = theirs, place
        return kept[name]

    return make


def edit(folder, **changes: Any) -> None:
    file = folder / "config.json"
    kept = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in kept.items() if value is not ...}))


def copied(folder, place, *, names=lambda name: name, **changes: Any):
    """A folder once more, with other names of tensors and other keys."""
    place.mkdir(exist_ok=True)
    save_file(
        {names(name): t for name, t in load_file(folder / "model.safetensors").items()}, place / "model.safetensors"
    )
    (place / "config.json").write_text((folder / "config.json").read_text())
    edit(place, **changes)
    return place


@pytest.mark.filterwarnings(LEFT_OUT)
@pytest.mark.parametrize("name", list(CASES))
@torch.no_grad()
def test_logits_of_a_text_equal_those_of_the_multimodal_class(saved, name, tmp_path):
    theirs, folder = saved(name)
    ours, ids = af.load(folder, dtype=torch.float64), ids_of()
    want = answer(theirs, input_ids=ids)
    assert_close("oracle", ours(ids).logits, want)
    cache = ours.new_cache(2, LENGTH)
    parts = [ours(part, cache=cache).logits for part in (ids[:, :8], ids[:, 8:])]
    assert_close("oracle", torch.cat(parts, 1), want)
    mask = torch.ones_like(ids)
    # Llama 4 counts positions by column for the temperature.
    mask[1, slice(-6, None) if name == "llama4" else slice(6)] = 0
    want = answer(theirs, input_ids=ids, attention_mask=mask)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    if not name.startswith("qwen"):
        want = answer(theirs, input_ids=ids, attention_mask=mask, position_ids=places)
    assert_close("oracle", ours(ids, attention_mask=mask).logits[mask.bool()], want[mask.bool()])
    # In memory the names are others.
    assert_close("oracle", af.from_hf(theirs)(ids).logits, answer(theirs, input_ids=ids))
    # It is a model of its text family from here on, and is written as that.
    public, kind, _ = CASES[name]
    family = Family.named(kind)
    assert family is not None
    assert ours.family == kind
    af.save(ours, tmp_path / "text", format="hf")
    assert json.loads((tmp_path / "text" / "config.json").read_text())["architectures"] == [family.architectures[0]]
    with lifted():
        again = getattr(transformers, family.architectures[0]).from_pretrained(tmp_path / "text", dtype=torch.float64)
    again.config._experts_implementation = "eager"
    assert_close("oracle", ours(ids).logits, answer(again.eval(), input_ids=ids))
    assert family_of({"architectures": [f"{public}ForConditionalGeneration"]} | theirs.config.to_dict()).tower in TOWERS


@pytest.mark.filterwarnings(LEFT_OUT)
@pytest.mark.parametrize("name", ["qwen3-vl", "gemma3"])
def test_greedy_tokens_equal_those_of_the_multimodal_class(saved, name):
    theirs, folder = saved(name)
    ids = ids_of(1)[:, :7]
    with lifted(), torch.no_grad():
        want = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, eos_token_id=None
        )
    found = af.generate(af.load(folder, dtype=torch.float64), ids, max_new_tokens=16, stop=())
    assert torch.equal(found, want)


def test_what_is_left_out_is_said_once(saved):
    _, folder = saved("gemma3")
    stored = load_file(folder / "model.safetensors")
    left = [t.nbytes for name, t in stored.items() if not name.startswith("language_model.")]
    with pytest.warns(UserWarning, match="language model alone") as caught:
        af.load(folder)
    (said,) = [str(each.message) for each in caught]
    assert f"left out: {len(left)} tensors, {sum(left) / 1e6:,.1f} MB (multi_modal_projector, vision_tower)" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert af.spec(folder).vocab == 61


@pytest.mark.filterwarnings(LEFT_OUT)
@pytest.mark.parametrize(
    ("name", "prefix", "now"),
    [
        ("qwen2-vl", r"^(model)\.", r"\1.language_model."),
        ("qwen2.5-vl", r"^(model)\.", r"\1.language_model."),
        ("gemma3", r"^language_model\.model\.", "model.language_model."),
        ("mistral3", r"^language_model\.(model|lm_head)\.", lambda m: {"model": "model.language_model.", "lm_head": "lm_head."}[m[1]]),
    ],
)  # fmt: skip
@torch.no_grad()
def test_names_of_other_releases_are_read(saved, tmp_path, name, prefix, now):
    theirs, folder = saved(name)
    other = copied(folder, tmp_path / "other", names=lambda stored: re.sub(prefix, now, stored))
    ids = ids_of()
    assert_close("oracle", af.load(other, dtype=torch.float64)(ids).logits, answer(theirs, input_ids=ids))


@pytest.mark.filterwarnings(LEFT_OUT)
@torch.no_grad()
def test_experts_that_lie_the_other_way_round_are_read_too(saved, tmp_path):
    theirs, folder = saved("qwen3-vl-moe")
    stored = load_file(folder / "model.safetensors")
    turned = {name: t.mT.contiguous() if ".experts." in name else t for name, t in stored.items()}
    save_file(turned, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    ids = ids_of()
    assert_close("oracle", af.load(tmp_path, dtype=torch.float64)(ids).logits, answer(theirs, input_ids=ids))


@pytest.mark.filterwarnings(LEFT_OUT)
@pytest.mark.parametrize("name", ["mistral3", "mistral3-tied", "gemma3", "qwen3-vl", "qwen2-vl"])
def test_words_are_tied_as_the_tensors_say_where_the_config_does_not(saved, tmp_path, name):
    theirs, folder = saved(name)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    text.pop("tie_word_embeddings", None)
    bare = copied(folder, tmp_path / "bare", tie_word_embeddings=..., text_config=text)
    tied = theirs.lm_head.weight is theirs.get_input_embeddings().weight
    assert af.load(bare).spec.head.tied == tied == described(bare)[1].head.tied
    assert tied == (name not in ("mistral3", "qwen2-vl"))


@pytest.mark.filterwarnings(LEFT_OUT)
def test_words_of_qwen2_vl_are_tied_if_either_config_says_so(saved, tmp_path):
    _, folder = saved("qwen2.5-vl")
    text = json.loads((folder / "config.json").read_text())["text_config"] | {"tie_word_embeddings": True}
    place = copied(folder, tmp_path / "either", tie_word_embeddings=False, text_config=text)
    assert af.load(place).spec.head.tied


@pytest.mark.filterwarnings(LEFT_OUT)
@torch.no_grad()
def test_flat_config_of_an_older_release_is_the_same_model(saved, tmp_path):
    theirs, folder = saved("qwen2.5-vl")
    text = {name: value for name, value in TEXT.items() if name != "pad_token_id"}
    flat = text | {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}, "rope_theta": 500.0}
    flat |= {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    place = copied(folder, tmp_path / "flat", text_config=..., **flat)
    ours, ids = af.load(place, dtype=torch.float64), ids_of()
    assert_close("oracle", ours(ids).logits, answer(theirs, input_ids=ids))


@pytest.mark.parametrize(
    ("config", "kind", "changes"),
    [
        (QWEN_FLAT, "qwen2", {"position.theta": 1e6, "head.tied": False, "context": 128000, "ids.eos": (151645,)}),
        (GEMMA, "gemma3", {"head.tied": True, "attention.kv_heads": 4, "vocab": 262208, "ids.eos": (1, 106), "depth": 34}),
        (QWEN3, "qwen3", {"position.theta": 5e6, "head.tied": True, "context": 262144, "attention.head_dim": 128}),
    ],
)  # fmt: skip
def test_configs_of_released_files_are_read(config, kind, changes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        family = family_of(config)
        spec = family.spec_from(config)
    assert family.kind == kind
    layer = spec.stacks[-1].layers[-1]
    have = {"position.theta": getattr(layer.position, "theta", None), "attention.kv_heads": layer.attention.kv_heads,
            "attention.head_dim": layer.attention.head_dim, "ids.eos": tuple(spec.ids.eos), "head.tied": spec.head.tied,
            "context": spec.context, "vocab": spec.vocab, "depth": spec.depth}  # fmt: skip
    assert {name: have[name] for name in changes} == changes


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (QWEN3, {"text_config": None}, "text_config: is missing; it must be a table of the keys of the language model"),
        (QWEN3, {"text_config": [3]}, "text_config: is list; it must be a table"),
        (QWEN3, {"model_type": "qwen2_vl"}, "model_type: 'qwen2_vl' does not go with architectures"),
        (QWEN3, {"text_config": QWEN3["text_config"] | {"per_layer_config": {}}}, "text_config.per_layer_config: is not a key that we know"),
        (QWEN3, {"text_config": QWEN3["text_config"] | {"hidden_size": "x"}}, "text_config.hidden_size: 'x' is not a whole"),
        (QWEN3, {"text_config": QWEN3["text_config"] | {"model_type": "qwen9"}}, "text_config.model_type: 'qwen9' is unknown"),
        (QWEN3, {"text_config": QWEN3["text_config"] | {"rope_scaling": {"rope_type": "x"}}}, "text_config.rope_scaling: 'x'"),
        (QWEN3, {"per_layer_config": {}}, "per_layer_config: is not a key that we know here"),
        (QWEN3, {"auto_map": {"AutoModel": "x.Y"}}, "\nauto_map: names code beside the weights (x.Y)"),
        (QWEN_FLAT, {"hidden_size": "x"}, "\nhidden_size: 'x' is not a whole number"),
        (QWEN_FLAT, {"per_layer_config": {}}, "\nper_layer_config: is not a key that we know here"),
        (GEMMA, {"text_config": GEMMA["text_config"] | {"use_bidirectional_attention": True}}, "text_config.use_bidirectional_attention: True makes the text"),
        (GEMMA, {"eos_token_id": "x"}, "\neos_token_id: 'x' is not a token id"),
    ],
)  # fmt: skip
def test_config_that_can_not_be_read_is_refused_by_the_place_of_its_key(config, changes, message):
    changed = config | changes
    with pytest.raises(SpecError) as info:
        family_of(changed, "config.json").spec_from(changed, "config.json")
    assert message.lstrip("\n") in str(info.value)
    if message.startswith("\n"):
        assert re.search(rf"(^|\n|\s){re.escape(message.strip())}", str(info.value))
        assert "text_config" not in str(info.value)


def test_ignored_key_of_a_text_config_is_taken_as_absent():
    changed = QWEN3 | {"text_config": QWEN3["text_config"] | {"per_layer_config": {}}}
    family = family_of(changed)
    assert family.spec_from(changed, ignore_keys=("text_config.per_layer_config",)) == family.spec_from(QWEN3)


def test_tensor_that_is_neither_text_nor_a_known_other_is_refused_by_its_name(saved, tmp_path):
    _, folder = saved("qwen3-vl")
    odd = copied(folder, tmp_path / "odd", names=lambda name: name.replace("model.visual.pos_embed", "model.audio"))
    with pytest.raises(CheckpointError, match=r"model\.audio\.weight"):
        af.load(odd)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]},
        {"model_type": "kimi_k2"},
        {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"]},
    ],
)
def test_model_that_waits_for_a_mechanism_is_refused_with_that_reason(config):
    with pytest.raises(SpecError, match="latent attention"):
        family_of(config)
