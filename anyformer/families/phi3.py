"""Phi-3 mini and medium, and Phi-4 (2024): LLaMA's design, stored with fused projections; some heads turn in part."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import each, must, usual, whole
from anyformer.families.family import Preset, sizes
from anyformer.families.key_groups import RopeKeys, WindowKeys

LONG: dict[str, Any] = {
    "kind": "longrope",
    "original": 4096,
    "factor": 32.0,
    "short": [
        *[1.1] * 3, 1.3000000000000003, *[1.3500000000000003] * 2, 1.4000000000000004, 1.5500000000000005,
        *[2.000000000000001] * 17, *[2.0500000000000007] * 6, *[2.1000000000000005] * 2, 2.1500000000000004,
        *[2.25] * 5, 2.3999999999999995, 2.4499999999999993, 2.499999999999999, *[2.6999999999999984] * 2,
        2.7499999999999982, 2.799999999999998, 2.8999999999999977, 3.049999999999997,
    ],
    "long": [
        1.0700000524520874, 1.1200000047683716, 1.149999976158142, 1.4199999570846558, 1.5699999332427979,
        1.7999999523162842, 2.129999876022339, 2.129999876022339, 3.009999990463257, 5.910000324249268,
        6.950000286102295, 9.070000648498535, 9.930000305175781, 10.710000038146973, 11.130000114440918,
        14.609999656677246, 15.409998893737793, 19.809999465942383, 37.279998779296875, 38.279998779296875,
        38.599998474121094, 40.12000274658203, 46.20000457763672, 50.940006256103516, 53.66000747680664,
        54.9373893737793, 56.89738845825195, 57.28738784790039, 59.98738479614258, 60.86738586425781,
        60.887386322021484, 61.71739196777344, 62.91739273071289, 62.957393646240234, 63.41739273071289,
        63.8173942565918, 63.83739471435547, 63.897396087646484, 63.93739700317383, 64.06739807128906,
        64.11434936523438, 64.12435150146484, 64.15435028076172, 64.19435119628906, 64.24435424804688,
        64.57435607910156, 64.69000244140625, 64.76000213623047,
    ],
}  # fmt: skip
"""How the frequencies of Phi-3 mini 128k stretch: a factor for each, up to the trained length and beyond it."""
IDS: dict[str, Any] = {"ids.bos": 1, "ids.eos": [32000], "ids.pad": 32000}


class Phi3(like.LlamaLike, kind="phi3"):
    """Phi-3 mini and medium, Phi-4."""

    presets = (
        Preset("phi-3-mini-4k", "Phi-3 mini 4k (2024)", sizes(3072, 32, 32, 32, 8192, 32064, 4096)
               | IDS | {"attention.pattern": "window(2047)"},
               3_821_079_552, also=("phi-3-mini",),
               evidence="the released config as quoted in two other projects, and a third",
               note="a window of 2047 as in the released config; another project writes 2048, as the kernel it was "
               "trained with left the token itself out of the count"),
        Preset("phi-3-mini-128k", "Phi-3 mini 128k (2024)", sizes(3072, 32, 32, 32, 8192, 32064, 131072)
               | IDS | {"position.scaling": LONG}, 3_821_079_552,
               published="3,821,079,552 in released files of Phi-3.5 mini, of the same shapes",
               evidence="configs in training and serving code of two other projects; the lists of factors as the "
               "publisher's evaluation code repeats them, and that they are this model's from general knowledge",
               note="the released config has a window of 262144, beyond the context and so without effect; lists of "
               "factors changed once after the release, and Phi-3.5 has others"),
        Preset("phi-3-medium-4k", "Phi-3 medium 4k (2024)", sizes(5120, 40, 40, 10, 17920, 32064, 4096)
               | IDS | {"attention.pattern": "window(2047)"},
               13_960_238_080, also=("phi-3-medium",), evidence="the released config as quoted in two other projects"),
        Preset("phi-4", "Phi-4 (2024)", sizes(5120, 40, 40, 10, 17920, 100352, 16384) | {"position.theta": 250000.0},
               14_659_507_200, published="14,659,507,200 in a copy of the released files",
               evidence="the config in training code of one other project", note="no window"),
    )  # fmt: skip
    architectures = ("Phi3ForCausalLM",)
    keys = {
        **like.keys(3072, 32, 32, None, 8192, 32064, 4096, eps=1e-5),
        **usual(resid_pdrop=0.0, embd_pdrop=0.0, pad_token_id=32000, bos_token_id=1, eos_token_id=32000),
        "original_max_position_embeddings": whole(4096),
        # Choices that some files state and the public class does not have.
        **each(must(False), "attention_bias", "mlp_bias", "lm_head_bias"),
        **each(must(1), "full_attn_mod", "interpolate_factor"),
    }
    groups = (
        RopeKeys(fraction=1.0, original="original_max_position_embeddings", kinds=("default", "longrope")),
        WindowKeys(listed=False),
    )
    tensors = like.tensors({"qkv": "self_attn.qkv_proj", "o": "self_attn.o_proj"} | like.FUSED_FFN | like.PRE_NORMS)
    small = like.small(partial_rotary_factor=0.5, sliding_window=6)
