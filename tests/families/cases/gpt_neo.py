"""GPT-Neo: configs beyond its own small one."""

VARIANTS = {
    "dense": {"attention_types": [[["global"], 4]], "intermediate_size": None, "activation_function": "relu"},
    "untied": {
        "tie_word_embeddings": False, "hidden_size": 30, "num_heads": 5, "num_layers": 3, "window_size": 1,
        "attention_types": [[["local", "local"], 1], [["global"], 1]],
    },
}  # fmt: skip

RELEASED = {"gpt_neo": {"attention_layers": ["global", "local", "global", "local"], "gradient_checkpointing": False}}

REFUSED = {
    "gpt_neo": [
        (
            {"attention_types": [[["global", "banded"], 2]]},
            "attention_types: [[['global', 'banded'], 2]] is not a list",
        ),
        ({"num_layers": 3}, "attention_types: names 4 layers, but num_layers is 3"),
        ({"attention_layers": ["local"] * 4}, "attention_layers: says something else than attention_types"),
    ]
}
