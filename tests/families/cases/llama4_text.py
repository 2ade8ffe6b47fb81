"""Llama 4, text only: what its presets are, and configs beyond its own small one."""

SIZES = {
    "llama-4-scout": (5120, 48, 40, 8, 128, 8192, 202048, 10485760, 1e-05, False),
    "llama-4-maverick": (5120, 48, 40, 8, 128, 16384, 202048, 1048576, 1e-05, False),
}

FACTS = {
    "llama-4-scout": {
        "0/attention.pattern": "causal & chunked(8192)",
        "0/attention.qk_norm.when": "after",
        "0/attention.qk_norm.gain": "none",
        "3/attention.pattern": "causal",
        "3/position.kind": "none",
        "3/attention.temperature.length": 8192,
        "0/ffn.experts": 16,
        "0/ffn.top_k": 1,
        "0/ffn.gates": "input",
        "0/ffn.shared_width": 8192,
        "0/position.layout": "interleaved",
        "0/position.scaling.high": 1.0,
    },
    "llama-4-maverick": {
        "0/ffn.kind": "swiglu",
        "1/ffn.kind": "moe",
        "1/ffn.experts": 128,
        "3/position.kind": "none",
        "47/position.kind": "none",
    },
}

VARIANTS = {
    "every-second": {
        "moe_layers": None,
        "interleave_moe_layer_step": 2,
        "use_qk_norm": False,
        "attention_bias": True,
        "num_experts_per_tok": 3,
        "rope_parameters": None,
        "rope_theta": 500.0,
    },
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 3,
        "moe_layers": [0, 1, 2],
        "no_rope_layers": [0, 1, 1],
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        "attn_temperature_tuning": False,
        "tie_word_embeddings": True,
    },
}

RELEASED = {"llama4_text": {"for_llm_compressor": False, "router_jitter_noise": 0.0}}

REFUSED = {
    "llama4_text": [
        ({"no_rope_layers": [1, 0]}, "no_rope_layers: lists 2 layers, but num_hidden_layers is 4"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types: 'sliding_attention' is a kind of layer"),
        ({"attention_chunk_size": None}, "attention_chunk_size: is missing or not above 0"),
    ]
}
