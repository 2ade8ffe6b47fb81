"""OLMo 3 (2025): OLMo 2 with windows in three of four layers, and stretched frequencies in the fourth."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import must
from anyformer.families.family import series, sizes
from anyformer.families.key_groups import FULL, LOCAL, WindowKeys
from anyformer.families.olmo2 import Olmo2

THETAS = {FULL: ("rope_theta", 5e5), LOCAL: ("rope_theta", 5e5)}
TRAITS: dict[str, Any] = {
    "position.theta": 5e5,
    "position.scaling": {
        "kind": "yarn", "factor": 8.0, "original": 8192, "beta_fast": 32.0, "beta_slow": 1.0,
        "attention_factor": 1.2079441541679836,
    },
    "layers": {
        "order": "3 local, 1 global",
        "local": {"attention": {"pattern": "window(4096)"}, "position": {"kind": "rope", "theta": 5e5}},
        "global": {},
    },
}  # fmt: skip
"""What both sizes have."""


class Olmo3(Olmo2, kind="olmo3"):
    """OLMo 3."""

    presets = series("olmo-3-{}", "OLMo 3 {SIZE} (2025)",
        ("7b", sizes(4096, 32, 32, 32, 11008, 100278, 65536), 7_298_011_136, "",
         "the vocabulary is not padded as in OLMo 2; only the global layers have stretched frequencies"),
        ("32b", sizes(5120, 64, 40, 8, 27648, 100278, 65536), 32_233_522_176, "", "grouped heads, as in OLMo 2 32B"),
        changes=TRAITS, evidence="the publisher's training code and two other projects; z-loss and init are taken over "
        "from OLMo 2",
    )  # fmt: skip
    architectures = ("Olmo3ForCausalLM",)
    # Beside the tables the public class reads another theta for one kind of layer only, which nobody can mean.
    keys = Olmo2.keys | {"rope_theta": must(None, 500000.0)}
    groups = (WindowKeys(window=4096, is_local=lambda c, i: (i + 1) % 4, thetas=THETAS),)
    small = like.small(
        num_hidden_layers=5, sliding_window=5,
        rope_parameters={
            FULL: {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3,
                "rope_theta": 900.0,
            },
            LOCAL: {"rope_type": "default", "rope_theta": 50.0},
        },
    )  # fmt: skip
