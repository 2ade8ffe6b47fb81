"""BLOOM. Its files state no context, as ALiBi needs none: 2048 is what it was trained with: what its presets are, and configs beyond its own small one."""

SIZES = {"bloom-176b": (14336, 70, 112, 112, 128, 57344, 250880, 2048, 1e-05, True)}

FACTS = {"bloom-176b": {"0/position.kind": "alibi", "/norm.embedding": True, "0/block.wiring": "serial"}}

VARIANTS = {"untied": {"tie_word_embeddings": False}, "power-of-two": {"n_head": 4}}
