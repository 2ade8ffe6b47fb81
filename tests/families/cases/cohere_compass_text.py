"""The language model of North's vision models: configs beyond its own small one."""

VARIANTS = {
    "two-thetas": {
        "rope_parameters": {"full_attention": {"rope_theta": 900.0}, "sliding_attention": {"rope_theta": 50.0}},
        "attention_bias": True,
        "head_dim": 12,
    },
    "all-global": {
        "num_hidden_layers": 2,
        "layer_types": None,
        "rope_parameters": {"full_attention": {"rope_theta": 900.0, "rope_type": "linear", "factor": 3.0}},
        "logit_scale": None,
        "tie_word_embeddings": False,
    },
}

RELEASED = {
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": None,
            "sliding_attention": {"rope_theta": 50000, "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
            "rope_theta": 10000.0,
            "rope_type": "default",
        }
    }
}
