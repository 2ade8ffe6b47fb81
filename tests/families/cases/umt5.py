"""UMT5, which has a bias table in every layer: configs beyond its own small one."""

VARIANTS = {
    "tied": {"tie_word_embeddings": True, "num_heads": 5, "d_kv": 16},
    "relu": {"feed_forward_proj": "relu", "num_decoder_layers": None, "relative_attention_num_buckets": 12},
}

RELEASED = {"umt5": {"output_past": True, "dense_act_fn": "gelu_new", "is_gated_act": True, "scalable_attention": True}}

REFUSED = {"umt5": [({"feed_forward_proj": "gated-mish"}, "feed_forward_proj: 'gated-mish' is a feed-forward")]}
