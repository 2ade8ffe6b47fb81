"""Files as they were released years ago, sizes shrunk: read as the public class reads them, and what is passed over named."""

import json
import warnings
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError, SpecError
from anyformer.families.checkpoint import described
from anyformer.families.config_values import public_keys, read_by
from anyformer.families.family import Family, families
from anyformer.families.io import load
from tests.contract.draw import BASE
from tests.docs.fences import UPDATE, maker
from tests.families.oracle import answer, oracle, public_class
from tests.tolerances import assert_close

BERT = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 32,
    "initializer_range": 0.02, "intermediate_size": 40, "layer_norm_eps": 1e-12, "max_position_embeddings": 40,
    "num_attention_heads": 4, "num_hidden_layers": 2, "type_vocab_size": 2, "vocab_size": 61,
}  # fmt: skip
GPT2 = {
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "n_ctx": 40, "n_embd": 32, "n_head": 4, "n_layer": 2,
    "n_positions": 40, "vocab_size": 61,
}  # fmt: skip
LLAMA = {
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
    "intermediate_size": 40, "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_scaling": None, "tie_word_embeddings": False,
    "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": True, "vocab_size": 61,
}  # fmt: skip
T5 = {
    "d_ff": 40, "d_kv": 8, "d_model": 32, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-6, "model_type": "t5",
    "num_heads": 4, "num_layers": 2, "pad_token_id": 0, "relative_attention_num_buckets": 32, "vocab_size": 61,
}  # fmt: skip
FALCON = {
    "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0, "bias": False, "bos_token_id": 11,
    "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 32, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5,
    "parallel_attn": True, "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": True,
    "vocab_size": 61, "alibi": False,
}  # fmt: skip

OLD: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    # bert-base-uncased of 2019, when files had no model_type.
    "bert-2019": ("bert", {"architectures": ["BertForMaskedLM"]} | BERT, set()),
    "bert-2020": ("bert", BERT | {
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "gradient_checkpointing": False, "pad_token_id": 0,
        "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0", "use_cache": True}, set()),
    "bert-cased-multilingual": ("bert", BERT | {
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "directionality": "bidi", "pad_token_id": 0,
        "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128, "pooler_type": "first_token_transform"}, set()),
    "bert-with-labels": ("bert", BERT | {
        "architectures": ["BertForMaskedLM"], "finetuning_task": None, "num_labels": 2, "output_attentions": False,
        "output_hidden_states": False, "output_past": True, "pruned_heads": {}, "torchscript": False,
        "use_bfloat16": False, "is_decoder": False, "xla_device": False, "eos_token_ids": 0}, set()),
    "roberta-base": ("roberta", BERT | {
        "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "bos_token_id": 0, "eos_token_id": 2,
        "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 42}, set()),
    "roberta-2019": ("roberta", BERT | {
        "architectures": ["RobertaForMaskedLM"], "type_vocab_size": 1, "layer_norm_eps": 1e-5, "finetuning_task": None,
        "num_labels": 2, "output_attentions": False, "output_hidden_states": False, "torchscript": False}, set()),
    "longformer-base": ("longformer", BERT | {
        "architectures": ["LongformerForMaskedLM"], "model_type": "longformer", "attention_mode": "longformer",
        "attention_window": [8, 8], "attention_dilation": [1, 1], "autoregressive": False, "gradient_checkpointing": False,
        "ignore_attention_mask": False, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "sep_token_id": 2,
        "type_vocab_size": 1}, {"attention_dilation", "autoregressive"}),
    "gpt2": ("gpt2", GPT2 | {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "attn_pdrop": 0.1, "bos_token_id": 60, "embd_pdrop": 0.1, "eos_token_id": 60, "resid_pdrop": 0.1,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}}, set()),
    "gpt2-2019": ("gpt2", GPT2 | {
        "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1, "finetuning_task": None,
        "num_labels": 1, "output_attentions": False, "output_hidden_states": False, "output_past": True,
        "pruned_heads": {}, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "torchscript": False, "use_bfloat16": False}, set()),
    "gpt2-xl": ("gpt2", GPT2 | {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "output_past": True, "model_max_length": 1024}, set()),
    "openai-gpt": ("gpt", GPT2 | {
        "architectures": ["OpenAIGPTLMHeadModel"], "model_type": "openai-gpt", "afn": "gelu", "attn_pdrop": 0.1,
        "embd_pdrop": 0.1, "n_special": 0, "predict_special_tokens": True, "resid_pdrop": 0.1,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}}, set()),
    "t5-small": ("t5", T5 | {
        "architectures": ["T5WithLMHeadModel"], "n_positions": 512, "output_past": True,
        "task_specific_params": {"summarization": {"early_stopping": True, "prefix": "summarize: "}}}, set()),
    "t5-v1_1": ("t5", T5 | {
        "architectures": ["T5ForConditionalGeneration"], "feed_forward_proj": "gated-gelu", "output_past": True,
        "tie_word_embeddings": False}, set()),
    "mt5-small": ("mt5", T5 | {
        "architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5", "feed_forward_proj": "gated-gelu",
        "num_decoder_layers": 2, "tie_word_embeddings": False, "tokenizer_class": "T5Tokenizer",
        "_name_or_path": "/home/patrick/hugging_face/t5/mt5-small", "use_cache": True}, set()),
    "opt-125m": ("opt", {
        "_name_or_path": "facebook/opt-125m", "_remove_final_layer_norm": False, "activation_dropout": 0.0,
        "activation_function": "relu", "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 40,
        "hidden_size": 32, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 64, "model_type": "opt",
        "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 1, "prefix": "</s>",
        "torch_dtype": "float16", "transformers_version": "4.21.0.dev0", "use_cache": True, "vocab_size": 61,
        "word_embed_proj_dim": 32}, set()),
    "opt-66b": ("opt", {
        "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
        "do_layer_norm_before": True, "ffn_dim": 40, "hidden_size": 32, "max_position_embeddings": 64,
        "model_type": "opt", "num_attention_heads": 4, "num_hidden_layers": 2, "output_projection": True,
        "vocab_size": 61, "word_embed_proj_dim": 32}, {"output_projection"}),
    "bloom-560m": ("bloom", {
        "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True, "architectures": ["BloomForCausalLM"], "bias_dropout_fusion": True,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5, "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 32,
        "n_inner": None, "n_layer": 2, "num_attention_heads": 4, "offset_alibi": 100, "pad_token_id": 3,
        "pretraining_tp": 1, "seq_length": 2048, "skip_bias_add": True, "skip_bias_add_qkv": False,
        "slow_but_exact": False, "transformers_version": "4.20.0", "unk_token_id": 0, "use_cache": True,
        "vocab_size": 61}, set()),
    "falcon-7b": ("falcon", FALCON | {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "multi_query": True,
        "new_decoder_architecture": False, "num_attention_heads": 4, "num_hidden_layers": 2}, set()),
    "refinedweb-7b": ("falcon", FALCON | {
        "architectures": ["RWForCausalLM"], "model_type": "RefinedWebModel", "multi_query": True, "n_head": 4,
        "n_layer": 2, "auto_map": {"AutoConfig": "configuration_RW.RWConfig", "AutoModel": "modelling_RW.RWModel",
                                   "AutoModelForCausalLM": "modelling_RW.RWForCausalLM"}}, set()),
    "refinedweb-40b": ("falcon", FALCON | {
        "architectures": ["RWForCausalLM"], "model_type": "RefinedWeb", "n_head": 4, "n_head_kv": 2, "n_layer": 2}, set()),
    "llama-7b-2023": ("llama", {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_sequence_length": 2048, "pad_token_id": -1}, set()),
    "llama-2-7b": ("llama", LLAMA | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "pretraining_tp": 1, "_name_or_path": "meta"}, set()),
    "yarn-llama-2": ("llama", LLAMA | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "rope_scaling": {"factor": 4.0, "finetuned": True, "original_max_position_embeddings": 16, "type": "yarn"}},
        {"rope_scaling.finetuned"}),
    "vicuna": ("llama", LLAMA | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_sequence_length": 4096, "model_max_length": 4096,
        "xla_device": True}, set()),
    "llama-by-another-trainer": ("llama", LLAMA | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "unsloth_version": "2024.8", "neftune_noise_alpha": 5},
        {"unsloth_version", "neftune_noise_alpha"}),
    "mistral-7b": ("mistral", LLAMA | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 16}, set()),
    "qwen2-7b": ("qwen2", LLAMA | {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "attention_dropout": 0.0,
        "max_window_layers": 28, "rope_theta": 1000000.0, "sliding_window": 131072, "use_mrope": False,
        "use_sliding_window": False}, {"use_mrope"}),
    "gpt-neo": ("gpt_neo", {
        "activation_function": "gelu_new", "architectures": ["GPTNeoForCausalLM"], "attention_dropout": 0,
        "attention_layers": ["global", "local"], "attention_types": [[["global", "local"], 1]], "bos_token_id": 60,
        "embed_dropout": 0, "eos_token_id": 60, "gradient_checkpointing": False, "hidden_size": 32,
        "initializer_range": 0.02, "intermediate_size": None, "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 64, "model_type": "gpt_neo", "num_heads": 4, "num_layers": 2, "resid_dropout": 0,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "tokenizer_class": "GPT2Tokenizer", "use_cache": True,
        "vocab_size": 61, "window_size": 8}, set()),
    "gpt-j": ("gptj", {
        "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0, "bos_token_id": 60,
        "embd_pdrop": 0.0, "eos_token_id": 60, "gradient_checkpointing": False, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5, "model_type": "gptj", "n_embd": 32, "n_head": 4, "n_inner": None, "n_layer": 2,
        "n_positions": 64, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 4, "scale_attn_weights": True,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "tie_word_embeddings": False,
        "tokenizer_class": "GPT2Tokenizer", "transformers_version": "4.18.0.dev0", "use_cache": True,
        "vocab_size": 61}, set()),
    "pythia-160m": ("gpt_neox", {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
        "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 128, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 64, "model_type": "gpt_neox", "num_attention_heads": 4, "num_hidden_layers": 2,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_cache": True, "use_parallel_residual": True, "vocab_size": 61}, set()),
    "stablelm-3b": ("stablelm", {
        "architectures": ["StableLmForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu",
        "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 40, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 64, "model_type": "stablelm", "num_attention_heads": 4, "num_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 4, "rope_pct": 0.25, "partial_rotary_factor": 0.25,
        "rope_theta": 10000, "tie_word_embeddings": False, "use_cache": True, "use_qkv_bias": False,
        "vocab_size": 61}, {"rope_pct"}),
    "phi-2": ("phi", {
        "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 60, "embd_pdrop": 0.0,
        "eos_token_id": 60, "hidden_act": "gelu_new", "hidden_size": 32, "initializer_range": 0.02,
        "intermediate_size": 128, "layer_norm_eps": 1e-5, "max_position_embeddings": 64, "model_type": "phi",
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "partial_rotary_factor": 0.5,
        "qk_layernorm": False, "resid_pdrop": 0.1, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": 61}, set()),
    "phi-3-mini": ("phi3", LLAMA | {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False, "attention_dropout": 0.0,
        "embd_pdrop": 0.0, "original_max_position_embeddings": 64, "pad_token_id": 3, "resid_pdrop": 0.0,
        "rope_theta": 10000.0, "sliding_window": 16}, set()),
    "starcoder2": ("starcoder2", {
        "activation_function": "gelu", "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1,
        "attention_softmax_in_fp32": True, "bos_token_id": 0, "embedding_dropout": 0.1, "eos_token_id": 0,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 128,
        "layer_norm_epsilon": 1e-5, "max_position_embeddings": 64, "mlp_type": "default", "model_type": "starcoder2",
        "norm_epsilon": 1e-5, "norm_type": "layer_norm", "num_attention_heads": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "residual_dropout": 0.1, "rope_theta": 1000.0, "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True, "sliding_window": 16, "use_bias": True, "use_cache": True, "vocab_size": 61}, set()),
    "starcoder": ("gpt_bigcode", {
        "activation_function": "gelu", "architectures": ["GPTBigCodeForCausalLM"], "attention_softmax_in_fp32": True,
        "attn_pdrop": 0.1, "bos_token_id": 0, "embd_pdrop": 0.1, "eos_token_id": 0, "inference_runner": 0,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "max_batch_size": None, "max_sequence_length": None,
        "model_type": "gpt_bigcode", "multi_query": True, "n_embd": 32, "n_head": 4, "n_inner": 128, "n_layer": 2,
        "n_positions": 64, "pad_key_length": True, "pre_allocate_kv_cache": False, "resid_pdrop": 0.1,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "summary_activation": None,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "summary_use_proj": True, "use_cache": True, "validate_runner_input": True, "vocab_size": 61}, set()),
    "mpt-7b": ("mpt", {
        "architectures": ["MPTForCausalLM"], "model_type": "mpt",
        "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig", "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM"},
        "attn_config": {
            "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
            "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None},
        "d_model": 32, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_config": {
            "emb_init_std": None, "emb_init_uniform_lim": None, "fan_mode": "fan_in", "init_div_is_residual": True,
            "init_gain": 0, "init_nonlinearity": "relu", "init_std": 0.02, "name": "kaiming_normal_", "verbose": 0},
        "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 64, "n_heads": 4,
        "n_layers": 2, "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
        "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16", "use_cache": False, "verbose": 0,
        "vocab_size": 61}, set()),
    "opus-mt": ("transformer", {
        "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False,
        "add_final_layer_norm": False, "architectures": ["MarianMTModel"], "attention_dropout": 0.0,
        "bad_words_ids": [[60]], "bos_token_id": 0, "classif_dropout": 0.0, "d_model": 32,
        "decoder_attention_heads": 4, "decoder_ffn_dim": 40, "decoder_layerdrop": 0.0, "decoder_layers": 2,
        "decoder_start_token_id": 60, "dropout": 0.1, "encoder_attention_heads": 4, "encoder_ffn_dim": 40,
        "encoder_layerdrop": 0.0, "encoder_layers": 2, "eos_token_id": 0, "extra_pos_embeddings": 60,
        "id2label": {"0": "LABEL_0"}, "init_std": 0.02, "is_encoder_decoder": True, "label2id": {"LABEL_0": 0},
        "max_length": 512, "max_position_embeddings": 64, "model_type": "marian", "normalize_before": False,
        "normalize_embedding": False, "num_beams": 6, "num_hidden_layers": 2, "pad_token_id": 60,
        "scale_embedding": True, "static_position_embeddings": True, "vocab_size": 61}, set()),
}  # fmt: skip
"""Name -> kind, the file, and which of its keys the public class never reads and we have no word for."""


def read(config, folder, **given):
    """The family and spec of a file, and the keys that the notice names."""
    (folder / "config.json").write_text(json.dumps(config))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        family, spec = described(folder, **given)
    said = [str(each.message) for each in caught]
    assert len(said) < 2
    named = {name for line in said for name in line.partition("never reads them: ")[2].split(", ") if name}
    return family, spec, named


@pytest.mark.parametrize("name", list(OLD))
def test_old_config_is_read_and_what_is_passed_over_is_named_in_one_line(name, tmp_path):
    kind, config, passed = OLD[name]
    family, spec, named = read(config, tmp_path)
    assert family.kind == kind
    assert (spec.vocab, spec.width, spec.depth) == (61, 32, 2)
    assert named == passed


SAME = [
    "bert-with-labels", "longformer-base", "gpt2-2019", "t5-small", "opt-66b", "bloom-560m", "llama-by-another-trainer",
    "yarn-llama-2", "qwen2-7b", "starcoder2", "stablelm-3b", "gpt-j", "opus-mt",
]  # fmt: skip


@pytest.mark.parametrize("name", SAME)
@torch.no_grad()
def test_old_config_gives_the_logits_of_the_public_class_that_reads_the_same_file(name, tmp_path):
    kind, config, _ = OLD[name]
    family = Family.named(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        theirs = oracle(family, config)
        theirs.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
        ours = load(tmp_path, dtype=torch.float64)
    ids = torch.randint(3, 58, (2, 15), generator=torch.Generator().manual_seed(0))
    more = {"decoder_input_ids": ids.flip(1)} if ours.spec.topology == "encoder-decoder" else {}
    assert_close("oracle", ours(ids, **more).logits, answer(theirs, input_ids=ids, **more))


def test_public_keys_are_those_of_the_pinned_release():
    assert maker("public_keys").table() == public_keys(), UPDATE


ASKED = {
    "vision_aspect_ratio", "vision_feature_layer", "vision_feature_select_strategy", "output_cross_attentions",
    "decoder_start_token_id", "start_token_id",
}  # fmt: skip
"""Names that the library asks every config for on the way: defaults of arguments that a text model has no use for, and
with what an answer begins."""


@pytest.mark.parametrize("kind", [family.kind for family in families() if read_by(family.architectures[0])])
def test_public_keys_hold_every_name_that_a_class_is_seen_to_read(kind, monkeypatch):
    family = Family.named(kind)
    cls = public_class(family)
    seen: set[str] = set()
    plain = cls.config_class.__getattribute__

    def watched(self, name):
        seen.add(name)
        return plain(self, name)

    monkeypatch.setattr(cls.config_class, "__getattribute__", watched)
    theirs = oracle(family, family.small)
    if "input_ids" in theirs.forward.__code__.co_varnames:
        ids = torch.randint(3, 58, (1, 9))
        answer(theirs, input_ids=ids, **({"decoder_input_ids": ids} if theirs.config.is_encoder_decoder else {}))
    missed = {name for name in seen if not name.startswith("_")} - read_by(family.architectures[0]) - ASKED
    assert not missed
    assert len(seen) > 10


LLAMA_FILE = OLD["llama-2-7b"][1]


def test_key_that_the_class_reads_and_we_do_not_is_refused_with_all_others_at_once(tmp_path):
    wrong = {
        "per_layer_config": {"0": {"hidden_act": "relu"}},
        "layer_types": ["x"],
        "quantization_config": {"bits": 4},
    }
    with pytest.raises(SpecError) as info:
        read(LLAMA_FILE | wrong, tmp_path)
    assert [line.partition(":")[0] for line in info.value.problems] == list(wrong)
    assert "--ignore-keys" in info.value.problems[0]


def test_ignored_keys_are_taken_as_absent(tmp_path):
    _, plain, _ = read(LLAMA_FILE, tmp_path)
    wrong = {"per_layer_config": {"0": {}}, "rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}
    with pytest.raises(SpecError) as info:
        read(LLAMA_FILE | wrong, tmp_path)
    assert len(info.value.problems) == 1, "what stands beside the tables comes first"
    keys = ("per_layer_config", "rope_scaling.mrope_section")
    _, spec, named = read(LLAMA_FILE | wrong, tmp_path, ignore_keys=keys)
    assert named == set()
    assert spec == read(LLAMA_FILE | {"rope_scaling": {"type": "linear", "factor": 2.0}}, tmp_path)[1] != plain
    assert read(LLAMA_FILE | wrong, tmp_path, ignore_keys=("per_layer_config", "rope_scaling"))[1] == plain


def test_ignored_key_that_nobody_reads_is_not_told_of_again(tmp_path):
    _, spec, named = read(LLAMA_FILE | {"odd": 1, "even": 2}, tmp_path, ignore_keys=("odd",))
    assert named == {"even"}
    assert spec == read(LLAMA_FILE, tmp_path)[1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("hiden_size",), "the file has no key 'hiden_size'"),
        (("hidden_act",), "'hidden_act' is read and understood"),
        (("auto_map",), "auto_map names code"),
    ],
)
def test_ignored_key_that_is_not_there_or_is_understood_is_refused(keys, message, tmp_path):
    auto = {"auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}} if "auto_map" in keys else {}
    with pytest.raises(InputError, match=message):
        read(LLAMA_FILE | auto, tmp_path, ignore_keys=keys)


@pytest.mark.parametrize("kind", ["llama", "phi3", "mpt", "phi3small"])
def test_auto_map_is_refused_whatever_is_ignored(kind, tmp_path):
    family = Family.named(kind)
    config = {"architectures": [family.architectures[0]], "model_type": family.model_type} | family.small
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}}
    with pytest.raises(SpecError, match=r"auto_map: names code beside the weights \(modeling_mine\.Mine\)"):
        read(config, tmp_path)
    with pytest.raises(InputError, match="auto_map"):
        read(config, tmp_path, ignore_keys=["auto_map"])


@pytest.mark.parametrize("auto", ["its own", "none"])
def test_auto_map_that_is_read_or_empty_is_not_called_refused_where_it_is_ignored(auto, tmp_path):
    """A class that only ever was such code, and that a family lists, is read; the message must not say otherwise."""
    config = dict(OLD["mpt-7b"][1]) if auto == "its own" else LLAMA_FILE | {"auto_map": {}}
    read(config, tmp_path)
    with pytest.raises(InputError, match="'auto_map' is read and understood, so that it can't be left out") as error:
        read(config, tmp_path, ignore_keys=["auto_map"])
    assert "refused" not in str(error.value)


def test_misspelt_key_is_refused_while_the_right_one_is_missing(tmp_path):
    short = {name: value for name, value in LLAMA_FILE.items() if name != "rms_norm_eps"}
    with pytest.raises(
        SpecError, match="rms_norm_epsilon: is not a key that we know here; did you mean 'rms_norm_eps'"
    ):
        read(short | {"rms_norm_epsilon": 1e-3}, tmp_path)
    assert read(LLAMA_FILE | {"rms_norm_epsilon": 1e-3}, tmp_path)[2] == {"rms_norm_epsilon"}


def test_ignored_keys_of_a_folder_of_our_own_are_refused(tmp_path):
    af.save(af.build(af.spec(BASE)), tmp_path)
    for call in (af.load, af.spec):
        with pytest.raises(InputError, match="nothing to ignore"):
            call(tmp_path, ignore_keys=("a",))
    with pytest.raises(InputError, match="nothing to ignore"):
        af.spec("gpt-2", ignore_keys=("a",))
    with pytest.raises(TypeError, match="expected names"):
        af.load(tmp_path, ignore_keys="a")


def saved(name, folder):
    """A public model of an old file, which then loses all names."""
    kind, config, _ = OLD[name]
    theirs = oracle(Family.named(kind), config)
    theirs.save_pretrained(folder)
    bare = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    (folder / "config.json").write_text(json.dumps(bare))
    return theirs


@pytest.mark.parametrize("name", ["bert-2019", "roberta-2019", "gpt2-2019", "openai-gpt", "bloom-560m", "gpt-neo"])
def test_config_without_any_name_is_recognised_by_its_keys_and_tensors(name, tmp_path):
    folder = tmp_path / "llama-or-anything"
    folder.mkdir()
    theirs = saved(name, folder)
    with pytest.warns(
        UserWarning, match=rf"names no class and no model_type; by its .* it is {theirs.config.model_type}"
    ):
        ours = load(folder, dtype=torch.float64)
    ids = torch.randint(3, 58, (2, 15), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert_close("oracle", ours(ids).logits, answer(theirs, input_ids=ids))


def test_config_without_any_name_that_fits_several_says_what_to_write(tmp_path):
    saved("llama-2-7b", tmp_path)
    with pytest.raises(SpecError, match=r"fit .*llama, .*mistral.*: write the right one .*\"model_type\": \"") as info:
        load(tmp_path)
    assert "keys and tensors" in str(info.value)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SpecError, match=r"its keys fit .*llama"):
        af.spec(tmp_path)


def test_config_without_any_name_or_sense_is_refused_with_the_known_types(tmp_path):
    with pytest.raises(SpecError, match=r"model_type: is missing, and there are no architectures"):
        read({"hidden_size": "x", "per_layer_config": {}}, tmp_path)
