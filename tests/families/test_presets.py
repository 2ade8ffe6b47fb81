"""Presets: counts to the last parameter, and the facts by which the models differ."""

import subprocess
import sys

import pytest

import anyformer as af
from anyformer.errors import InputError
from anyformer.families.facts import facts
from anyformer.families.zoo import UNDISCLOSED, find, presets

NAMES = [name for name, (_, preset) in presets().items() if name == preset.name]

# width, depth, heads, kv heads, head dim, feed-forward, vocabulary, context, eps, tied
SIZES = {
    "transformer-base": (512, 6, 8, 8, 64, 2048, 37000, 256, 1e-6, True),
    "transformer-big": (1024, 6, 16, 16, 64, 4096, 37000, 256, 1e-6, True),
    "gpt": (768, 12, 12, 12, 64, 3072, 40478, 512, 1e-5, True),
    "gpt2-small": (768, 12, 12, 12, 64, 3072, 50257, 1024, 1e-5, True),
    "gpt2-medium": (1024, 24, 16, 16, 64, 4096, 50257, 1024, 1e-5, True),
    "gpt2-large": (1280, 36, 20, 20, 64, 5120, 50257, 1024, 1e-5, True),
    "gpt2-xl": (1600, 48, 25, 25, 64, 6400, 50257, 1024, 1e-5, True),
    "bert-base": (768, 12, 12, 12, 64, 3072, 30522, 512, 1e-12, True),
    "bert-large": (1024, 24, 16, 16, 64, 4096, 30522, 512, 1e-12, True),
    "t5-small": (512, 6, 8, 8, 64, 2048, 32128, 512, 1e-6, True),
    "gpt-j-6b": (4096, 28, 16, 16, 256, 16384, 50400, 2048, 1e-5, False),
    "gpt-neox-20b": (6144, 44, 64, 64, 96, 24576, 50432, 2048, 1e-5, False),
    "bloom-176b": (14336, 70, 112, 112, 128, 57344, 250880, 2048, 1e-5, True),
    "opt-175b": (12288, 96, 96, 96, 128, 49152, 50272, 2048, 1e-5, True),
    "llama-7b": (4096, 32, 32, 32, 128, 11008, 32000, 2048, 1e-6, False),
    "llama-2-70b": (8192, 80, 64, 8, 128, 28672, 32000, 4096, 1e-5, False),
    "llama-3-8b": (4096, 32, 32, 8, 128, 14336, 128256, 8192, 1e-5, False),
    "mistral-7b-v0.1": (4096, 32, 32, 8, 128, 14336, 32000, 32768, 1e-5, False),
    "gemma-2-27b": (4608, 46, 32, 16, 128, 36864, 256000, 8192, 1e-6, True),
    "olmo-2-7b": (4096, 32, 32, 32, 128, 11008, 100352, 4096, 1e-6, False),
    "qwen2-72b": (8192, 80, 64, 8, 128, 29568, 152064, 32768, 1e-5, False),
    "phi-3-mini-4k": (3072, 32, 32, 32, 96, 8192, 32064, 4096, 1e-5, False),
    "smollm2-1.7b": (2048, 24, 32, 32, 64, 8192, 49152, 8192, 1e-5, True),
}

FACTS = {
    "transformer-base": {"0/position.kind": "sinusoidal", "0/ffn.kind": "relu", "0/norm.ffn_placement": "post",
                         "0/position.layout": "halves", "embed.scale": 22.627416998, "0/attention.bias": "koqv"},
    "gpt": {"0/position.kind": "learned", "0/norm.attention_placement": "post", "/norm.final": False,
            "0/ffn.kind": "gelu_tanh"},
    "gpt2-small": {"0/position.kind": "learned", "0/norm.attention_placement": "pre", "/norm.final": True,
                   "0/ffn.kind": "gelu_tanh", "0/attention.bias": "koqv"},
    "bert-base": {"topology": "encoder", "embed.token_types": 2, "/norm.embedding": True, "head.transform": True,
                  "head.bias": True, "0/ffn.kind": "gelu", "0/attention.pattern": "full"},
    "t5-small": {"0/attention.scale": 1.0, "0/position.buckets": 32, "0/position.max_distance": 128,
                 "head.scale": 0.0441941738242, "0/norm.kind": "rmsnorm", "/norm.final": True},
    "gpt-j-6b": {"0/position.layout": "interleaved", "0/position.dims": 64, "0/block.wiring": "parallel",
                 "head.bias": True, "0/attention.bias": "", "0/ffn.bias": True},
    "gpt-neox-20b": {"0/position.layout": "half", "0/position.dims": 24, "0/block.wiring": "parallel2",
                     "0/ffn.kind": "gelu_tanh"},
    "bloom-176b": {"0/position.kind": "alibi", "/norm.embedding": True, "0/block.wiring": "serial"},
    "opt-175b": {"0/position.offset": 2, "0/ffn.kind": "relu", "0/norm.attention_placement": "pre"},
    "llama-7b": {"0/position.theta": 1e4, "0/position.layout": "half", "0/ffn.kind": "swiglu"},
    "llama-3-8b": {"0/position.theta": 5e5, "0/attention.bias": ""},
    "mistral-7b-v0.1": {"0/attention.pattern": "window(4096)", "0/position.theta": 1e4},
    "gemma-2-27b": {"0/attention.pattern": "window(4096)", "1/attention.pattern": "causal", "0/attention.softcap": 50.0,
                    "0/attention.scale": 0.0833333333333, "head.softcap": 30.0, "0/norm.gain": "one_plus",
                    "0/norm.attention_placement": "sandwich", "0/ffn.kind": "geglu", "0/ffn.form": "tanh",
                    "embed.scale": 67.8822509939, "embed.round_scale": True},
    "olmo-2-7b": {"0/norm.ffn_placement": "output", "0/attention.qk_norm.scope": "whole", "0/position.theta": 5e5},
    "qwen2-72b": {"0/attention.bias": "kqv", "0/position.theta": 1e6},
    "phi-3-mini-4k": {"0/attention.pattern": "window(2047)", "0/position.theta": 1e4},
    "smollm2-1.7b": {"0/position.theta": 130000.0},
}  # fmt: skip

ALSO = {
    "transformer-2017-base": "transformer-base", "transformer-2017-big": "transformer-big", "gpt-2": "gpt2-small",
    "gpt-2-small": "gpt2-small", "gpt-2-medium": "gpt2-medium", "gpt-2-large": "gpt2-large", "gpt-2-xl": "gpt2-xl",
    "mistral-7b": "mistral-7b-v0.1", "qwen-2-72b": "qwen2-72b", "phi-3-mini": "phi-3-mini-4k",
}  # fmt: skip


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
        stack.norm.leaf.eps, spec.head.tied,
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


@pytest.mark.parametrize(("other", "name"), list(ALSO.items()))
def test_preset_is_found_by_its_other_names(other, name):
    assert af.spec(other) == af.spec(name)


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
        "for family, preset in presets().values(): family.spec(preset).count().params\n"
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
