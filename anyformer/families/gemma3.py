"""Gemma 3 (2025), its text models: Gemma 2 without caps, norms on queries and keys, and two RoPEs by kind of layer."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import flag, must, number, whole
from anyformer.families.family import series, sizes
from anyformer.families.gemma import IDS, NORM, TANH, capped_keys
from anyformer.families.gemma2 import Gemma2
from anyformer.families.key_groups import FULL, LOCAL, WindowKeys

THETAS = {FULL: ("rope_theta", 1e6), LOCAL: ("rope_local_base_freq", 1e4)}


def _traits(window: int, *, long: bool) -> dict[str, Any]:
    """The window, whether the frequencies of global layers are stretched, and what all sizes have."""
    local = {"attention": {"pattern": f"window({window})"}, "position": {"kind": "rope", "theta": 1e4}}
    return {
        "attention.head_dim": 256,
        "position.theta": 1e6,
        "position.scaling": {"kind": "linear", "factor": 8.0} if long else None,
        "layers": {"order": "5 local, 1 global", "local": local, "global": {}},
    } | IDS


class Gemma3(Gemma2, kind="gemma3"):
    """Gemma 3, text only; as an encoder it is EmbeddingGemma."""

    base = Gemma2.base | {"attention": {"heads": 1, "qk_norm": NORM}}
    presets = series("gemma-3-{}", "Gemma 3 {SIZE} (2025)",
        ("270m", sizes(640, 18, 4, 1, 2048, 262144, 32768) | _traits(512, long=False), 268_098_176, "",
         "168M of them are the embedding", "the publisher's code and one other project"),
        ("1b", sizes(1152, 26, 4, 1, 6912, 262144, 32768) | _traits(512, long=False), 999_885_952, "",
         "one of the projects lists a context of 131072", "the publisher's code and two other projects"),
        ("4b", sizes(2560, 34, 8, 4, 10240, 262208, 131072) | _traits(1024, long=True), 3_880_263_168,
         "3,880,263,168 in a copy of the released files without the vision tower; 4.30B with it",
         "the table has 262208 rows as released, 262144 in another library's copy (3,880,099,328)"),
        ("12b", sizes(3840, 48, 16, 8, 15360, 262208, 131072) | _traits(1024, long=True), 11_766_034_176,
         "12,187,325,040 in released files, 421,290,864 of them in the vision tower"),
        ("27b", sizes(5376, 62, 32, 16, 21504, 262208, 131072) | _traits(1024, long=True)
         | {"attention.head_dim": 128, "attention.scale": "1/sqrt(168)"}, 27_009_346_304,
         "27,009,346,304 in a copy of the released files without the vision tower",
         "scores are scaled by 168 = width / heads, which one of the projects misses"),
        evidence="the publisher's code and three other projects",
    )  # fmt: skip
    architectures = ("Gemma3ForCausalLM",)
    stem = "Gemma3Text"
    bodies = ("Gemma3TextModel",)
    model_type = "gemma3_text"
    keys = {
        **capped_keys(2304, 26, 8, 4, 9216, 262208, 131072, qk_norm=True),
        "hidden_act": must(None, TANH),
        "use_bidirectional_attention": flag(False, null=True),
        "sliding_window_pattern": whole(6),
        "rope_local_base_freq": number(None),
        "final_logit_softcapping": number(None, "head.softcap"),
        # The public class has the key and never reads it.
        "attn_logit_softcapping": must(None),
    }
    groups = (
        WindowKeys(
            window=4096,
            is_local=lambda c, i: (i + 1) % max(c["sliding_window_pattern"], 1),
            thetas=THETAS,
            both_ways="use_bidirectional_attention",
        ),
    )
    encodes = True
    # Seven layers: the sixth is global.
    small = like.small(
        head_dim=12, query_pre_attn_scalar=7, sliding_window=5, num_hidden_layers=7, rope_theta=900.0,
        rope_local_base_freq=50.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
    )  # fmt: skip
