"""GPT-3: what its presets are. It has no public class."""

SIZES = {
    "gpt3-small": (768, 12, 12, 12, 64, 3072, 50257, 2048, 1e-05, True),
    "gpt3-medium": (1024, 24, 16, 16, 64, 4096, 50257, 2048, 1e-05, True),
    "gpt3-large": (1536, 24, 16, 16, 96, 6144, 50257, 2048, 1e-05, True),
    "gpt3-xl": (2048, 24, 16, 16, 128, 8192, 50257, 2048, 1e-05, True),
    "gpt3-2.7b": (2560, 32, 32, 32, 80, 10240, 50257, 2048, 1e-05, True),
    "gpt3-6.7b": (4096, 32, 32, 32, 128, 16384, 50257, 2048, 1e-05, True),
    "gpt3-13b": (5120, 40, 40, 40, 128, 20480, 50257, 2048, 1e-05, True),
    "gpt3-175b": (12288, 96, 96, 96, 128, 49152, 50257, 2048, 1e-05, True),
}

FACTS = {
    "gpt3-175b": {
        "0/attention.pattern": "causal",
        "1/attention.pattern": "window(256)",
        "95/attention.pattern": "window(256)",
        "0/position.kind": "learned",
        "0/norm.attention_placement": "pre",
        "0/ffn.kind": "gelu_tanh",
        "0/attention.bias": "koqv",
    }
}

ALSO = {
    "gpt-3": "gpt3-175b",
    "gpt-3-small": "gpt3-small",
    "gpt-3-medium": "gpt3-medium",
    "gpt-3-large": "gpt3-large",
    "gpt-3-xl": "gpt3-xl",
    "gpt-3-2.7b": "gpt3-2.7b",
    "gpt-3-6.7b": "gpt3-6.7b",
    "gpt-3-13b": "gpt3-13b",
    "gpt-3-175b": "gpt3-175b",
}
