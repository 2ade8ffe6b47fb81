"""Multimodal classes as small as they can be, each with the language model of one of our families in it."""

from typing import Any

from anyformer.families.family import TINY

TEXT: dict[str, Any] = {
    "vocab_size": TINY["vocab"], "hidden_size": TINY["width"], "intermediate_size": TINY["ffn.width"],
    "num_hidden_layers": TINY["depth"], "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": TINY["context"], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "rms_norm_eps": 1e-3,
}  # fmt: skip
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
TIMES = {"mrope_section": [1, 1, 2], "rope_theta": 500.0}

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3-vl": ("Qwen3VL", "qwen3", {
        "text_config": TEXT | {"head_dim": 12, "rope_parameters": {
            "rope_type": "default", "mrope_section": [2, 2, 2], "mrope_interleaved": True, "rope_theta": 500.0}},
        "vision_config": QWEN_VISION | {"num_position_embeddings": 4, "deepstack_visual_indexes": [0]},
        "tie_word_embeddings": True,
    }),
    "qwen3-vl-biased": ("Qwen3VL", "qwen3", {
        "text_config": TEXT | {"head_dim": 8, "attention_bias": True, "rope_parameters": {"mrope_section": [2, 1, 1]}},
        "vision_config": QWEN_VISION | {"num_position_embeddings": 4, "deepstack_visual_indexes": [0]},
    }),
    "qwen3-vl-moe": ("Qwen3VLMoe", "qwen3_moe", {
        "text_config": TEXT | {
            "head_dim": 12, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "mlp_only_layers": [1],
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 500.0}},
        "vision_config": QWEN_VISION | {"num_position_embeddings": 4, "deepstack_visual_indexes": [0]},
    }),
    "qwen2-vl": ("Qwen2VL", "qwen2", {
        "text_config": TEXT | {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 1, "num_heads": 2},
    }),
    "qwen2.5-vl": ("Qwen2_5_VL", "qwen2", {
        "text_config": TEXT | {"rope_parameters": TIMES | {"rope_type": "default"}, "use_sliding_window": True,
                               "sliding_window": 6, "max_window_layers": 1},
        "vision_config": QWEN_VISION | {"fullatt_block_indexes": [0]}, "tie_word_embeddings": True,
    }),
    "gemma3": ("Gemma3", "gemma3", {
        "text_config": TEXT | {"head_dim": 12, "sliding_window": 5, "num_hidden_layers": 7, "query_pre_attn_scalar": 7},
        "vision_config": VISION, "mm_tokens_per_image": 4,
    }),
    "mistral3": ("Mistral3", "mistral", {
        "text_config": TEXT | {"model_type": "mistral", "sliding_window": None}, "tie_word_embeddings": False,
        "vision_config": VISION | {"model_type": "pixtral", "head_dim": 8},
    }),
    "mistral3-tied": ("Mistral3", "mistral", {
        "text_config": TEXT | {"model_type": "mistral", "sliding_window": 5},
        "vision_config": VISION | {"model_type": "pixtral", "head_dim": 8},
    }),
    "mistral3-ministral3": ("Mistral3", "ministral3", {
        "text_config": TEXT | {"model_type": "ministral3", "head_dim": 8, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 900.0, "factor": 16.0, "original_max_position_embeddings": 4,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
        "tie_word_embeddings": False, "vision_config": VISION | {"model_type": "pixtral", "head_dim": 8},
    }),
    "llama4": ("Llama4", "llama4_text", {
        "text_config": TEXT | {"head_dim": 8, "intermediate_size_mlp": 24, "num_local_experts": 3, "no_rope_layers": [1, 0, 1],
                               "attention_chunk_size": 6, "floor_scale": 4, "interleave_moe_layer_step": 2},
        "vision_config": VISION | {"intermediate_size": 64, "vision_output_dim": 16, "projector_input_dim": 16,
                                   "projector_output_dim": 16},
    }),
    "internvl": ("InternVL", "qwen2", {
        "text_config": TEXT | {"model_type": "qwen2"}, "tie_word_embeddings": False,
        "vision_config": VISION | {"image_size": [28, 28], "patch_size": [14, 14]},
    }),
    "internvl-qwen3": ("InternVL", "qwen3", {
        "text_config": TEXT | {"model_type": "qwen3", "head_dim": 12},
        "vision_config": VISION | {"image_size": [28, 28], "patch_size": [14, 14]},
    }),
}  # fmt: skip
"""Name -> class, kind of the family, and config."""

QWEN_FLAT: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
    "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656, "hidden_act": "silu",
    "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 128000,
    "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.41.2", "use_cache": True, "use_sliding_window": False,
    "vision_config": {"depth": 32}, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vocab_size": 152064,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "model_type": "gemma3", "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": {},
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
        "intermediate_size": 9728, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 151936,
    },
    "tie_word_embeddings": True, "transformers_version": "4.57.0.dev0", "video_token_id": 151656,
    "vision_config": {"depth": 24}, "vision_end_token_id": 151653, "vision_start_token_id": 151652,
}  # fmt: skip
"""Keys as released files have them."""
