"""Reports: numbers are those of the counts, words say what is there, and exemptions are named."""

import json

import pytest

from anyformer.errors import InputError
from anyformer.explain.costs import MACHINES, machine, usual_contexts
from anyformer.explain.groups import groups, listed
from anyformer.explain.report import exemptions, preset_of, report, summary
from anyformer.families.zoo import find
from anyformer.specs import Mixer
from tests.explain.specs import images, spec_named
from tests.specs.small import small

H200 = machine("h200")


def test_costs_are_those_of_the_counts():
    spec = spec_named("llama")
    made, count = report(spec, H200, name="x"), spec.count()
    assert [cost.context for cost in made.costs] == [1024, 8192]
    for cost in made.costs:
        assert cost.flops_per_token == count.flops_per_token(cost.context)
        assert sum(cost.by_part.values()) == pytest.approx(cost.flops_per_token)
        assert cost.kv_bytes == count.kv_bytes(cost.context, "bfloat16")
        assert cost.kv_bytes_per_token == 2 * 2 * 32 * 8 * 128
        for phase, traffic in cost.phases.items():
            assert traffic.intensity == count.intensity(phase, cost.context)
            assert traffic.bound == ("compute-bound" if traffic.intensity >= 775 / 4.1 else "memory-bound")
        assert [traffic.bound for traffic in cost.phases.values()] == ["compute-bound", "compute-bound", "memory-bound"]
    assert sum(made.by_part.values()) == made.params == count.params
    assert made.weights_bytes == {"float32": 4 * count.params, "bfloat16": 2 * count.params, "int8": count.params}


@pytest.mark.parametrize(
    ("context", "expected"),
    [(64, (64,)), (1024, (1024,)), (8192, (1024, 8192)), (131072, (1024, 8192, 32768, 131072))],
)
def test_usual_contexts_end_with_the_own_one(context, expected):
    assert usual_contexts(small({"context": context})) == expected


def test_contexts_are_sorted_and_checked():
    made = report(small(), H200, name="x", contexts=[64, 8, 64])
    assert [cost.context for cost in made.costs] == [8, 64]
    with pytest.raises(InputError, match="33 is more than the 32 positions"):
        report(small({"position": "learned"}), H200, name="x", contexts=[33])
    with pytest.raises(InputError, match="always 197 tokens"):
        report(images(), H200, name="x", contexts=[64])
    assert [cost.context for cost in report(images(), H200, name="x").costs] == [197]


@pytest.mark.parametrize("changes", [{"topology": "encoder"}, {"head": {"kind": "regression"}}])
def test_model_that_reads_all_at_once_has_no_cache_and_no_decoding(changes):
    (cost,) = report(small(changes), H200, name="x").costs
    assert cost.kv_bytes is None
    assert list(cost.phases) == ["train", "prefill"]


def test_machines_have_a_balance_and_a_name():
    assert machine("h200").balance == pytest.approx(189, abs=0.1)
    assert all(key == each.name for key, each in MACHINES.items())
    with pytest.raises(InputError, match="machine 'h201' is unknown; did you mean 'h200'"):
        machine("h201")


def test_data_is_plain_and_complete():
    made = report(spec_named("local-global"), H200, name="x")
    data = json.loads(json.dumps(made.data(), allow_nan=False))
    assert data["spec"] == json.loads(json.dumps(made.spec.to_data()))
    assert {axis["axis"] for axis in data["axes"]} >= {"topology", "position", "pattern", "init"}
    assert [layer["layers"] for layer in data["layers"]] == [list(group.indices) for group in made.groups]
    assert data["layers"][0]["pattern"] == "window(1024)"
    assert data["layers"][0]["drawn_as"] == "window(8)"
    assert sum(map(sum, data["layers"][1]["grid"])) == 32 * 33 // 2
    assert data["parameters"]["total"] == made.spec.count().params


def test_groups_hold_every_layer_once():
    spec = spec_named("local-global")
    found = groups(spec)
    assert sorted(i for group in found for i in group.indices) == list(range(32))
    assert [group.indices for group in groups(spec, 7)] == [found[0].indices]
    with pytest.raises(InputError, match="no layer 32; layers are 0 to 31"):
        groups(spec, 32)


def test_long_lists_of_layers_are_cut_and_counted():
    assert listed([0, 1, 2, 5]) == "0-2, 5"
    assert listed(range(0, 46, 2)) == "0, 2, 4, ... 44 (23 layers)"


def test_summary_says_what_the_model_is():
    assert summary(spec_named("llama")) == (
        "A decoder of 32 layers with a width of 4,096 and 8.03 B parameters, made for up to 8,192 tokens. Every layer "
        "has 32 query heads of 128 that share 8 key and value heads (GQA), RoPE positions, the attention pattern "
        "causal, a SwiGLU feed-forward of 14,336 and RMSNorm on the input of each branch. It reads tokens of a "
        "vocabulary of 128,256 and answers with token logits."
    )
    assert "An encoder-decoder of 32 encoder and 32 decoder layers" in summary(spec_named("encoder-decoder"))
    assert "Its layers are of 9 kinds." in summary(spec_named("many"))
    assert "It reads image patches and answers with sequence classes." in summary(images())


def test_exact_model_has_no_exemption():
    assert exemptions(spec_named("local-global")) == []


def test_rope_that_depends_on_the_length_is_an_exemption():
    scaling = {"kind": "dynamic", "factor": 2.0, "original": 16}
    spec = small({"layers": {"1": {"position": {"kind": "rope", "scaling": scaling}}}})
    (text,) = exemptions(spec)
    assert text.startswith("layer 1: position RoPE: scaling dynamic NTK: factor 2, original 16 depends on the length")


def test_approximate_mixer_is_an_exemption(monkeypatch):
    monkeypatch.setattr(Mixer.named("relu"), "exact", False)
    (text,) = exemptions(small({"attention.mixer": "relu"}))
    assert text.startswith("layers 0-3: mixer normalised ReLU is approximate")


def test_count_is_compared_with_the_released_model():
    family, preset = find("llama-3-8b")
    spec = family.varied(preset.changes)
    made = report(spec, H200, name="llama-3-8b", preset=preset_of("llama-3-8b"))
    assert made.title == f"llama-3-8b: {preset.title}"
    assert made.counted() == "8,030,261,248 parameters counted, as many as the released model has."
    less = report(spec.vary({"depth": 31}), H200, name="x", preset=preset)
    assert "218,112,000 less than the released model has" in less.counted()
    varied = report(spec.vary({"depth": 31}), H200, name="x", preset=preset, varied=True)
    assert varied.counted() == "7,812,149,248 parameters counted; 8,030,261,248 before it was varied."
    assert varied.title.endswith(", varied")


def test_count_of_a_model_that_was_never_released_is_compared_with_nothing():
    family, preset = find("gpt3-small")
    made = report(family.varied(preset.changes), H200, name="gpt3-small", preset=preset)
    assert made.counted().startswith("125,226,240 parameters counted; its weights were never released")


def test_file_and_folder_are_no_presets(tmp_path):
    assert preset_of("llama-3-8b.toml") is None
    assert preset_of(str(tmp_path)) is None
