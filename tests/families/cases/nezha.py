"""NEZHA: what its presets are. It has no public class any more."""

SIZES = {
    "nezha-base-zh": (768, 12, 12, 12, 64, 3072, 21128, 512, 1e-12, True),
    "nezha-large-zh": (1024, 24, 16, 16, 64, 4096, 21128, 512, 1e-12, True),
}

FACTS = {
    "nezha-base-zh": {
        "topology": "encoder",
        "0/position.kind": "shaw",
        "0/position.vectors": "sine",
        "0/position.clip": 64,
        "0/position.on_values": True,
        "embed.token_types": 2,
        "0/ffn.kind": "gelu",
    }
}
