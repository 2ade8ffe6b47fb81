"""DistilBERT: configs beyond its own small one."""

VARIANTS = {
    "relu": {"activation": "relu", "n_heads": 1, "sinusoidal_pos_embds": True},
    "untied": {"tie_word_embeddings": False, "dim": 30, "n_heads": 5},
}

RELEASED = {"distilbert": {"qa_dropout": 0.1, "seq_classif_dropout": 0.2, "tie_weights_": True, "output_past": True}}
