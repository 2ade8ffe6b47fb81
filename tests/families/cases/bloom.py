"""BLOOM. Its files state no context, as ALiBi needs none: 2048 is what it was trained with: what its presets are, and configs beyond its own small one."""

SIZES = {
    "bloom-560m": (1024, 24, 16, 16, 64, 4096, 250880, 2048, 1e-05, True),
    "bloom-1b1": (1536, 24, 16, 16, 96, 6144, 250880, 2048, 1e-05, True),
    "bloom-1b7": (2048, 24, 16, 16, 128, 8192, 250880, 2048, 1e-05, True),
    "bloom-3b": (2560, 30, 32, 32, 80, 10240, 250880, 2048, 1e-05, True),
    "bloom-7b1": (4096, 30, 32, 32, 128, 16384, 250880, 2048, 1e-05, True),
    "bloom-176b": (14336, 70, 112, 112, 128, 57344, 250880, 2048, 1e-05, True),
}

FACTS = {"bloom-176b": {"0/position.kind": "alibi", "/norm.embedding": True, "0/block.wiring": "serial"}}

VARIANTS = {"untied": {"tie_word_embeddings": False}, "power-of-two": {"n_head": 4}, "odd-heads": {"n_head": 3}}
