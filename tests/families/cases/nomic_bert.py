"""Nomic's BERT: configs beyond its own small one."""

VARIANTS = {
    "relu": {"hidden_act": "relu", "num_attention_heads": 1, "type_vocab_size": 1},
    "scaled": {
        "rope_theta": None, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 900.0},
        "hidden_size": 30, "num_attention_heads": 5, "head_dim": 8,
    },
}  # fmt: skip

RELEASED = {
    "nomic_bert": {
        "activation_function": "swiglu", "attn_pdrop": 0.0, "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0,
        "fused_bias_fc": True, "fused_dropout_add_ln": True, "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "n_embd": 32, "n_head": 4, "n_inner": 40, "n_layer": 3,
        "n_positions": 8192, "pad_vocab_size_multiple": 64, "parallel_block": False, "parallel_block_tied_norm": False,
        "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0,
        "rotary_emb_base": 500.0, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True, "summary_activation": None, "use_flash_attn": True, "use_rms_norm": False,
        "use_xentropy": True, "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    }
}  # fmt: skip

REFUSED = {
    "nomic_bert": [
        ({"num_experts": 8}, "num_experts: 8 changes"),
        ({"activation_function": "geglu"}, "activation_function: 'geglu' changes"),
        ({"auto_map": {"AutoModel": "other--modeling.OtherModel"}}, "auto_map: names code beside the weights"),
    ]
}
