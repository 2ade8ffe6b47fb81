"""Reading a config.json: what is refused, and how it is said."""

import math
import warnings

import pytest

from anyformer.errors import SpecError
from anyformer.families.checkpoint import family_for
from anyformer.families.config_keys import COMMON
from anyformer.families.family import Family, families
from anyformer.families.lookup import family_of
from anyformer.families.statemap import Rule, StateMap, uncovered
from anyformer.families.tensor_ops import HalvesSwapped, Joined, PerHead, Shaped, Slice, Transposed
from anyformer.families.zoo import named
from tests.families.cases import gathered


def read(kind: str, **changes):
    family = Family.named(kind)
    assert family is not None
    return family.spec_from(family.small | changes, "config.json")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config: quant_method None can't be read"),
        ("llama", {"layer_types": ["full_attention"] * 3}, "layer_types: is not a key that we know here"),
        ("phi3small", {"hiden_size": 3}, "hiden_size: is not a key that we know here; did you mean 'hidden_size'?"),
        ("llama", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map: names code beside the weights (x.Y)"),
        ("llama", {"hidden_act": "xielu"}, "hidden_act: 'xielu' is an activation"),
        ("llama", {"hidden_size": "32"}, "hidden_size: '32' is not a whole number of a sane size"),
        ("llama", {"hidden_size": None}, "hidden_size: None is not a whole number of a sane size"),
        ("llama", {"hidden_size": True}, "hidden_size: True is not a whole number of a sane size"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps: nan is not a finite number"),
        ("llama", {"rope_scaling": {"type": "proportional"}}, "rope_scaling: 'proportional' is a scaling"),
        ("llama", {"rope_scaling": {"type": "linear"}}, r"rope_scaling.factor: is missing"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 1}},
            "rope_scaling.beta_fast: is not",
        ),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "a table for each kind of layer"),
        ("llama", {"rope_parameters": {"rope_theta": 3.0}}, "rope_theta: is 500.0 beside the table and 3.0 in it"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: is not 1"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "rope_scaling: says something else than rope_parameters",
        ),
        ("llama", {"num_attention_heads": 5}, "attention.heads: 5 does not divide width=32"),
        ("qwen2", {"layer_types": ["linear_attention"] * 3}, "layer_types: 'linear_attention' is a kind of layer"),
        ("gemma2", {"sliding_window": None}, "sliding_window: is missing"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True changes"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention: True changes"),
        ("gptj", {"rotary": False}, "rotary: false has no effect"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm: True"),
        ("opt", {"tie_word_embeddings": False, "word_embed_proj_dim": 16}, "tie_word_embeddings: false goes with"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key' changes"),
        ("bert", {"is_decoder": True}, "is_decoder: True changes"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj: 'gated-mish' is a feed-forward"),
        ("transformer", {"decoder_vocab_size": 99}, "decoder_vocab_size: 99 is not vocab_size=61"),
        ("transformer", {"normalize_before": True}, "normalize_before: True changes"),
        *(
            (kind, *pair)
            for kind in ("gpt_neox", "gpt_neox_japanese")
            for pair in (
                ({"rotary_pct": 0.0}, "position.fraction: 0.0 is not in (0, 1]"),
                (
                    {"rope_theta": 2},
                    "rope_theta: is 2, but this family's class reads rotary_emb_base only, which is 500",
                ),
                ({"rope_theta": 2, "rotary_emb_base": None}, "rotary_emb_base only, which is 10000.0"),
                (
                    {"partial_rotary_factor": 0.75},
                    "partial_rotary_factor: is 0.75, but this family's class reads rotary_pct",
                ),
            )
        ),
        *((kind, *pair) for kind, pairs in gathered("REFUSED").items() for pair in pairs),
    ],
)
def test_config_that_a_spec_cannot_say_is_refused_by_its_key(kind, changes, message):
    with pytest.raises(SpecError) as info:
        read(kind, **changes)
    assert message in str(info.value)


def test_config_with_several_problems_names_them_all():
    with pytest.raises(SpecError) as info:
        read("llama", hidden_size="x", quantization_config={}, per_layer_config={})
    assert len(info.value.problems) == 3
    assert "config.json" in str(info.value)


def test_config_notes_and_generation_settings_change_nothing():
    plain = read("llama")
    assert read("llama", _name_or_path="x", torch_dtype="bfloat16", temperature=0.7, use_cache=False) == plain


RELEASED = {
    "llama": {"max_sequence_length": 2048, "pretraining_tp": 1, "rope_scaling": None, "is_llama_config": True,
              "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}, "pad_token_id": -1},
    "mistral": {"rope_theta": 10000.0, "torch_dtype": "bfloat16"},
    "qwen2": {"rope_theta": 1000000.0, "transformers_version": "4.40.1"},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "phi3": {"attention_bias": False, "rope_scaling": None, "mlp_bias": False,
             "lm_head_bias": False, "full_attn_mod": 1, "interpolate_factor": 1},
    "gpt2": {"n_ctx": 64, "summary_type": "cls_index", "task_specific_params": {"text-generation": {"max_length": 50}}},
    "gptj": {"rotary": True, "scale_attn_weights": True, "gradient_checkpointing": False, "tokenizer_class": "x"},
    "gpt_neox": {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0},
    "bloom": {"n_embed": 24, "n_inner": None, "offset_alibi": 100, "seq_length": 2048, "skip_bias_add": True,
              "skip_bias_add_qkv": False, "masked_softmax_fusion": True, "attention_softmax_in_fp32": True,
              "bias_dropout_fusion": True, "unk_token_id": 0, "pretraining_tp": 4, "num_attention_heads": 6},
    "opt": {"activation_dropout": 0.0, "layerdrop": 0.0, "prefix": "</s>", "word_embed_proj_dim": 32},
    "gpt": {"n_ctx": 64, "n_special": 0, "predict_special_tokens": True},
    "bert": {"position_embedding_type": "absolute", "gradient_checkpointing": False, "pooler_fc_size": 768},
    "t5": {"n_positions": 512, "output_past": True, "is_encoder_decoder": True, "dense_act_fn": "relu"},
    "transformer": {"add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False,
                    "normalize_embedding": False, "static_position_embeddings": True, "num_hidden_layers": 2,
                    "bad_words_ids": [[0]], "num_beams": 6, "max_length": 512, "classif_dropout": 0.0},
} | gathered("RELEASED")  # fmt: skip


@pytest.mark.parametrize("kind", list(RELEASED))
def test_config_keys_of_released_files_are_read(kind):
    assert read(kind, **RELEASED[kind]).width == read(kind).width


GARBAGE = [None, -1, 0, 3, 0.5, "x", [], {}, float("inf"), float("nan"), True, False, ["a"], {"a": 1}, 10**30]


@pytest.mark.parametrize("kind", [family.kind for family in families()])
def test_config_of_garbage_is_refused_as_a_config_and_never_fails_otherwise(kind):
    family = Family.named(kind)
    assert family is not None
    scalings = ["default", "linear", "dynamic", "llama3", "yarn", "longrope", 3, [1]]
    tables = [{"rope_type": s, key: g} for s in scalings for key in ("factor", "short_factor") for g in GARBAGE]
    given = [(key, value) for key in {**COMMON, **family.keys} for value in GARBAGE]
    given += [("rope_parameters", table) for table in tables] if "rope_parameters" in family.keys else []
    # Families read most keys with the same code: each takes every eighth of the values.
    given = given[Family.kinds().index(kind) % 8 :: 8]
    refused = 0
    for key, value in given:
        try:
            with warnings.catch_warnings():
                # A table may hold what nobody reads.
                warnings.filterwarnings("ignore", message="passed over")
                spec = family.spec_from(family.small | {key: value})
        except SpecError:
            refused += 1
        else:
            assert family.spec_from(family.hf_from(spec)) == spec, (key, value)
    assert refused > len(given) // 4


def test_config_ids_outside_of_the_vocabulary_are_left_out():
    spec = read("llama", pad_token_id=-1, bos_token_id=61, eos_token_id=[2, 99, 3])
    assert (spec.ids.pad, spec.ids.bos, spec.ids.eos) == (None, None, (2, 3))


def test_config_without_special_ids_has_none():
    nothing = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "decoder_start_token_id": None}
    for family in families():
        if not family.keys.get("pad_token_id", COMMON["pad_token_id"]).null:
            continue  # its positions are counted from it
        ids = family.spec_from(family.small | nothing).ids
        assert (ids.pad, ids.bos, ids.eos, ids.start) == (None, None, (), None), family.kind


def test_config_of_a_t5_that_names_no_start_starts_with_its_padding():
    assert read("t5", pad_token_id=5, decoder_start_token_id=None).ids.start == 5


def test_config_with_both_forms_of_rope_that_agree_is_read():
    old = {"rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}}
    assert read("llama", **old) == read("llama", **(old | new)) != read("llama")


def test_config_of_the_first_long_phi3_calls_its_scaling_su():
    factors = [1.0, 2.0]
    given = {"short_factor": factors, "long_factor": factors}
    old = read("phi3", original_max_position_embeddings=16, rope_scaling={"type": "su"} | given)
    assert old == read("phi3", original_max_position_embeddings=16, rope_scaling={"type": "longrope"} | given)
    assert old.position.scaling.original == 16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": ["BertForNextSentencePrediction"], "model_type": "bert"}, "BertForNextSentencePrediction"),
        ({"model_type": "llamma"}, "did you mean 'llama'"),
        ({}, "model_type: is missing, and there are no architectures"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "mistral"}, "does not go with architectures"),
        ({"architectures": [3]}, "has no class that we read"),
    ],
)
def test_config_of_an_unknown_class_is_refused_and_says_where_all_are_listed(config, message):
    with pytest.raises(SpecError) as info:
        family_of(config)
    assert message in str(info.value)
    if "does not go" not in message:
        assert "anyformer zoo --families lists every type" in str(info.value)


def test_config_without_architectures_goes_by_its_model_type():
    assert family_of({"model_type": "openai-gpt"}).kind == "gpt"
    assert family_of({"model_type": "roformer"}).kind == "roformer", "two classes share it; the encoder came first"


@pytest.mark.parametrize(
    ("kind", "changes", "obstacle"),
    [
        ("llama", {"attention.softcap": 30.0}, "attention.softcap: is 30.0, but such files mean unset"),
        ("llama", {"position.kind": "alibi"}, "position.kind: is 'alibi', but such files mean 'rope'"),
        ("llama", {"layers.1.attention.pattern": "window(4)"}, "attention.pattern: is 'window(4)'"),
        ("llama", {"layers.2.ffn.width": 8}, "ffn.width: is 8, but such files mean 40"),
        ("llama", {"attention.bias": "q"}, "attention.bias: is 'q', but such files mean 'kqvo'"),
        ("llama", {"norm.placement": "post"}, "norm.attention_placement: is 'post'"),
        ("llama", {"topology": "encoder"}, "topology: is 'encoder', but such files mean 'decoder'"),
        ("llama", {"head.kind": "regression"}, "head.kind: is 'regression', but such files mean 'lm'"),
        ("gpt2", {"attention.kv_heads": 1}, "attention.kv_heads: is 1, but such files mean 4"),
        ("t5", {"decoder.attention.heads": 2}, "attention.heads: is 2, but such files mean 4"),
        ("transformer", {"norm.eps": 1e-6}, "norm.eps: is 1e-06, but such files mean 1e-05"),
        ("transformer", {"head.bias": False}, "head.bias: is False, but such files mean True"),
    ],
)
def test_spec_that_a_config_cannot_say_is_refused_by_its_name(kind, changes, obstacle):
    family = Family.named(kind)
    assert family is not None
    with pytest.raises(SpecError) as info:
        family.hf_from(family.spec_from(family.small).vary(changes))
    lines = [line.replace("'koqv'", "'kqvo'") for line in info.value.problems]
    assert any(line.startswith(obstacle) for line in lines), lines
    assert family.architectures[0] in str(info.value)


def test_training_choices_do_not_stand_in_the_way_of_an_export():
    family = Family.named("llama")
    assert family is not None
    spec = family.spec_from(family.small)
    trained = spec.vary({"block.dropout": 0.1, "loss.z": 1e-4, "init.kind": "glorot"})
    assert family.hf_from(trained) == family.hf_from(spec)


@pytest.mark.parametrize("kind", [family.kind for family in families()])
def test_small_config_finds_a_family_that_can_hold_it_without_being_told(kind):
    family = Family.named(kind)
    assert family is not None
    spec = family.spec_from(family.small)
    found, config = family_for(spec)
    assert not uncovered(spec, found.weights(spec).entries(spec))
    assert family_of(config) is found


@pytest.mark.parametrize(
    "name",
    [
        "llama-3-8b",
        "gpt2-xl",
        "gemma-2-27b",
        "bert-large",
        "t5-small",
        "gpt-neox-20b",
        "mt5-xl",
        "roberta-base",
        "roformer-base-zh",
        "modernbert-large",
        "vit-l-16",
    ],
)
def test_preset_can_be_exported(name):
    spec = named(name)
    family, config = family_for(spec)
    assert spec.count().params == sum(math.prod(entry.shape) for entry in family.weights(spec).entries(spec))
    assert config["architectures"] == [family.architectures[0]]


def test_spec_that_two_classes_hold_is_written_for_the_older():
    spec = named("t5-v1.1-small")
    assert family_for(spec)[0].kind == "t5"
    assert family_for(spec, "mt5")[0].kind == "mt5"


def test_spec_that_no_family_holds_names_the_nearest_and_what_stands_in_the_way():
    with pytest.raises(SpecError) as info:
        family_for(named("llama-7b").vary({"attention.softcap": 30.0}))
    assert "LlamaForCausalLM" in str(info.value)
    assert "attention.softcap" in str(info.value)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (Joined(), [(4, 3), (2, 3), (2, 3)]),
        (Transposed(), [(4, 3), (4, 3), (4, 3)]),
        (Transposed(), [(5, 3)]),
        (PerHead(2), [(6, 5), (6, 5), (6, 5)]),
        (PerHead(2), [(6,), (6,), (6,)]),
        (PerHead(2), [(12, 5), (4, 5), (4, 5)]),
        (HalvesSwapped(4), [(12, 5)]),
        (HalvesSwapped(4), [(12,)]),
        (Shaped((1, 7)), [(7,)]),
        (Shaped((4, 2, 3)), [(4, 6)]),
    ],
    ids=[
        "joined",
        "transposed",
        "one transposed",
        "per head",
        "per head biases",
        "per group",
        "halves",
        "halves of biases",
        "row",
        "shaped",
    ],
)
def test_op_undone_gives_the_same_elements(op, shapes):
    import torch

    ours = [torch.randn(shape) for shape in shapes]
    theirs = op.merge(ours)
    assert tuple(theirs.shape) == op.shape(shapes)
    again = op.split(theirs, shapes)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
    assert sorted(theirs.flatten().tolist()) == sorted(x for t in ours for x in t.flatten().tolist())


def test_fused_projections_per_head_put_each_head_together():
    import torch

    q, k, v = (torch.arange(4) + 10 * i for i in range(3))
    assert PerHead(2).merge([q, k, v]).tolist() == [0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23]
    assert PerHead(2).merge([q, k[:2], v[:2]]).tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_slices_put_back_one_by_one_give_the_whole():
    import torch

    whole, made = torch.randn(3, 5), torch.zeros(3, 5)
    for i in range(3):
        assert Slice(i).shape([(3, 5)]) == (5,)
        (part,) = Slice(i).split(Slice(i).merge([whole]), [(3, 5)])
        Slice(i).place(made).copy_(part)
    assert torch.equal(made, whole)


def test_tensors_without_a_rule_are_named():
    family = Family.named("llama")
    assert family is not None
    spec = family.spec_from(family.small)
    table = StateMap(rules=(Rule("model.embed_tokens.weight", "embed.tokens.weight"),))
    assert "decoder.final_norm.weight" in uncovered(spec, table.entries(spec))


@pytest.mark.parametrize(
    ("config", "near"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"]}, None),
        ({"architectures": ["Gemma4ForCausalLM"]}, None),
        ({"architectures": ["FooForSequenceClassification"]}, None),
        ({"model_type": "deepseek_v3"}, None),
        ({"architectures": ["LlammaForCausalLM"]}, "LlamaForCausalLM"),
        ({"architectures": ["llamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"model_type": "lama"}, "llama"),
    ],
)
def test_unknown_class_is_answered_with_near_spellings_only(config, near):
    with pytest.raises(SpecError) as info:
        family_of(config)
    text = str(info.value)
    assert (f"did you mean {near!r}?" in text) == (near is not None)
    assert ("did you mean" in text) == (near is not None)
