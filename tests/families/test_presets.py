"""Presets: counts to the last parameter, and the facts by which the models differ."""

import math
import re
import subprocess
import sys

import pytest

import anyformer as af
from anyformer.errors import InputError
from anyformer.families.facts import differences, facts
from anyformer.families.zoo import UNDISCLOSED, find, presets
from tests.families.cases import gathered
from tests.families.oracle import public_class

NAMES = [name for name, (_, preset) in presets().items() if name == preset.name]

SIZES, FACTS, ALSO = (gathered(name) for name in ("SIZES", "FACTS", "ALSO"))


def test_presets_are_those_with_sizes_listed_here():
    assert sorted(NAMES) == sorted(SIZES)
    assert set(af.zoo()) == {*SIZES, *ALSO}


@pytest.mark.parametrize("name", NAMES)
def test_preset_has_the_published_number_of_parameters(name):
    assert af.spec(name).count().params == find(name)[1].params


@pytest.mark.parametrize("name", NAMES)
def test_preset_has_the_published_sizes(name):
    spec = af.spec(name)
    stack = spec.stacks[-1]
    dims = spec.dims(stack.layers[0], stack)
    found = (
        spec.width, stack.depth, dims.heads, dims.kv_heads, dims.head_dim, dims.ffn_width, spec.vocab, spec.context,
        stack.norm.leaf.eps, getattr(spec.head, "tied", False),
    )  # fmt: skip
    assert found == SIZES[name]


@pytest.mark.parametrize("name", list(FACTS))
def test_preset_has_the_published_facts(name):
    spec = af.spec(name)
    found, stack = facts(spec), spec.stacks[-1].name
    for fact, value in FACTS[name].items():
        assert found[f"{stack}/{fact}" if "/" in fact else fact] == value, fact


@pytest.mark.parametrize("name", NAMES)
def test_preset_says_where_its_numbers_come_from(name):
    _, preset = find(name)
    assert preset.published
    assert len(preset.evidence) > 20
    assert preset.title.endswith(")")


@pytest.mark.parametrize(
    "name", [name for name in NAMES if find(name)[0].architectures and find(name)[0].kind != "transformer"]
)
def test_preset_written_for_its_class_is_read_by_it_the_same(name):
    # Marian's class has a bias and an eps of its own, so that the 2017 presets can't be written for it.
    family, preset = find(name)
    spec = af.spec(name)
    config = family.hf_from(spec)
    assert sum(math.prod(entry.shape) for entry in family.weights(spec).entries(spec)) == preset.params
    told = public_class(family).config_class.from_dict(config).to_dict()
    # This release of the public library says of every T5 that it is tied, and has zeros for a bias that LED and BART lack.
    known = ["head.tied", *(["head.bias"] if "final_logits_bias" in family.weights(spec).zeros else [])]
    assert [line for line in differences(spec, family.spec_from(told)) if line[0] not in known] == []


@pytest.mark.parametrize(("other", "name"), list(ALSO.items()))
def test_preset_is_found_by_its_other_names(other, name):
    assert af.spec(other) == af.spec(name)


HUB = [(repository, preset.name) for _, preset in {p.name: (f, p) for f, p in presets().values()}.values()
       for repository in preset.hub]  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, *ALSO])
def test_preset_is_found_in_any_case(name):
    assert find(name.upper()) == find(name)


@pytest.mark.parametrize(("repository", "name"), HUB)
def test_preset_is_found_by_its_repository_on_the_hub_with_and_without_its_owner(repository, name):
    assert find(repository)[1].name == find(repository.split("/")[1])[1].name == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("gpt2", "gpt2-small"), ("gpt2-medium", "gpt2-medium"), ("gpt2-xl", "gpt2-xl"), ("Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"), ("Mistral-7B-v0.1", "mistral-7b-v0.1"),
        ("bert-base-uncased", "bert-base"), ("facebook/opt-125m", "opt-125m"), ("Qwen/Qwen3-8B", "qwen3-8b"),
    ],
)  # fmt: skip
def test_names_that_newcomers_write_are_known(given, name):
    assert af.spec(given) == af.spec(name)


@pytest.mark.parametrize("name", [*NAMES, *ALSO])
def test_preset_is_found_behind_any_owner_s_name(name):
    assert find(f"Someone/{name.upper()}") == find(name)


def test_repository_whose_name_is_no_preset_s_is_not_taken_for_one():
    with pytest.raises(InputError, match="the nearest presets are llama-3-8b"):
        af.spec("someone/llama-3-8b-tuned")


@pytest.mark.parametrize("name", ["gpt2-smal", "openai/gpt2-smal", "gpt-2-smal", "bert-bse", "lama-7b"])
def test_hints_for_an_unknown_name_name_each_preset_once(name):
    with pytest.raises(InputError) as info:
        af.spec(name)
    told = re.search("nearest presets? (?:is|are) ([^;]*);", str(info.value))
    assert told is not None
    found = [find(hint)[1].name for hint in told[1].split(", ")]
    assert len(found) == len(set(found)), told[1]


def test_beginning_of_the_names_of_several_families_is_answered_with_all_of_them_shortly():
    with pytest.raises(InputError) as info:
        af.spec("qwen")
    firsts = {find(name)[0].kind: name for name in reversed(NAMES) if name.startswith("qwen")}
    assert {"qwen", "qwen2", "qwen3", "qwen3_moe"} <= firsts.keys()
    for name in firsts.values():
        assert re.search(rf"\b{name}\b", str(info.value)), name
    assert len(str(info.value)) < 250


def test_beginning_of_several_names_is_answered_with_their_sizes_and_no_other_number():
    with pytest.raises(InputError) as info:
        af.spec("llama-3")
    sizes = [name for name in NAMES if name.startswith(("llama-3-", "llama-3."))]
    assert str(info.value) == f"'llama-3' is the name of several presets; say which: {', '.join(sizes)}"
    for name in ("llama-3-7b", "llama-3.3-70b", "Llama-3-9B", "llama3"):
        with pytest.raises(InputError) as info:
            af.spec(name)
        assert "llama-33b" not in str(info.value)


def test_unknown_name_is_answered_in_one_line_with_the_nearest_presets():
    with pytest.raises(InputError) as info:
        af.spec("lama-7b")
    assert str(info.value).startswith(
        "'lama-7b' is no preset, no .toml file and no directory; the nearest presets are llama-7b, "
    )
    assert str(info.value).endswith("; all of them: anyformer zoo")
    assert "\n" not in str(info.value)


def test_unknown_name_like_no_other_is_answered_without_a_guess():
    with pytest.raises(InputError, match=r"no directory; all of them: anyformer zoo"):
        af.spec("zzzz")


@pytest.mark.parametrize("name", ["gpt-4", "GPT-4", "anthropic-lm-52b", "gpt4"])
def test_undisclosed_model_says_why_it_has_no_preset(name):
    with pytest.raises(InputError, match="has no preset: "):
        af.spec(name)


def test_undisclosed_models_have_no_preset():
    assert not UNDISCLOSED.keys() & presets().keys()


def test_listing_every_preset_loads_no_heavy_library():
    code = (
        "import sys; from anyformer.families.zoo import presets\n"
        "for family, preset in presets().values(): family.varied(preset.changes).count().params\n"
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
