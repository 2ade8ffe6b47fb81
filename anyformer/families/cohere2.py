"""Command A and Command R7B (Cohere 2024-25): three layers with a window and RoPE to one that sees all, without positions."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.cohere import BASE, KEYS, PARTS
from anyformer.families.config_keys import each, must, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset, sizes
from anyformer.families.key_groups import NOPE, RopeKeys, WindowKeys, without_idle_rope

CYCLE = {"order": "3 local, global", "local": {"attention.pattern": "window(4096)"}, "global": NOPE}


class Cohere2(Family, kind="cohere2"):
    """Command A and Command R7B."""

    base = BASE
    presets = (
        Preset("command-r7b", "Command R7B (2024)", sizes(4096, 32, 32, 8, 14336, 256000, 131072)
               | {"position.theta": 5e4, "head.scale": 0.25, "layers": CYCLE}, 8_028_033_024,
               evidence="the log of a conversion in a public issue, and the defaults of one other project",
               note="its file said 8192 positions at first, its card promises 131072"),
        Preset("command-a", "Command A (2025)", sizes(12288, 64, 96, 8, 36864, 256000, 262144)
               | {"position.theta": 5e4, "head.scale": 0.25, "layers": CYCLE}, 111_057_580_032,
               published="111B on its card, 111.058B in the log of another project",
               evidence="the header of a converted file in a public issue"),
    )  # fmt: skip
    architectures = ("Cohere2ForCausalLM",)
    keys = KEYS | {
        "head_dim": like.whole_heads(None),
        "sliding_window_pattern": whole(4),
        # What released files say and the public class takes for granted.
        "layer_switch": whole(4),
        "order_of_interleaved_layers": must("local_attn_first"),
        "position_embedding_type": must("rope_gptj"),
        "rotary_pct": must(1.0),
        **each(must(True), "use_embedding_sharing", "use_gated_activation", "use_parallel_block"),
        "use_parallel_embedding": must(False, True),
        "use_qk_norm": must(False),
    }
    groups = (
        RopeKeys(layout="interleaved"),
        WindowKeys(window=4096, is_local=lambda c, i: (i + 1) % max(c["sliding_window_pattern"], 1), everywhere=NOPE),
    )
    tensors = like.tensors(PARTS)
    small = like.small(logit_scale=0.3, rope_theta=500.0, sliding_window=5, num_hidden_layers=5)

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        if c["sliding_window_pattern"] < 1:
            c.problems.add("sliding_window_pattern", f"{c['sliding_window_pattern']} is not at least 1")
        return without_idle_rope(super().read(c))
