"""The first GPT: what its presets are, and configs beyond its own small one."""

SIZES = {"gpt": (768, 12, 12, 12, 64, 3072, 40478, 512, 1e-05, True)}

FACTS = {
    "gpt": {
        "0/position.kind": "learned",
        "0/norm.attention_placement": "post",
        "/norm.final": False,
        "0/ffn.kind": "gelu_tanh",
    }
}

VARIANTS = {"relu": {"afn": "relu"}}
