"""LLaMA and its many relatives (Touvron et al. 2023): RMSNorm first, RoPE in halves, SwiGLU, no biases."""

from __future__ import annotations

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import must, special_ids
from anyformer.families.family import Family, Preset
from anyformer.families.llama_like import BASE, sizes
from anyformer.families.rope_keys import RopeKeys

THREE = "configs in training and serving code of three other projects, which agree"
TWO = "configs in training and serving code of two other projects, which agree"
IDS: dict[str, Any] = {"ids.bos": 1, "ids.eos": [2]}
FIRST: dict[str, Any] = {"norm.eps": 1e-6} | IDS
THIRD: dict[str, Any] = {"position.theta": 5e5, "ids.bos": 128000, "ids.eos": [128001]}
"""What the generations of LLaMA have, each for itself."""


def scaled(factor: float) -> dict[str, Any]:
    """The frequencies of Llama 3.1 and later."""
    return {"position.scaling": {"kind": "llama3", "factor": factor, "original": 8192, "low": 1.0, "high": 4.0}}


class Llama(Family, kind="llama"):
    """LLaMA 1 to 3 and models released in its format."""

    base = BASE
    presets = (
        Preset("llama-7b", "LLaMA 7B (2023)", sizes(4096, 32, 32, 32, 11008, 32000, 2048) | FIRST, 6_738_415_616,
               hub=("huggyllama/llama-7b",), published="6,738,415,616 in released files; the paper rounds to 6.7B",
               evidence=THREE,
               note="a widespread copy holds 2,048 numbers more: 32 stored tables of rotation frequencies"),
        Preset("llama-13b", "LLaMA 13B (2023)", sizes(5120, 40, 40, 40, 13824, 32000, 2048) | FIRST, 13_015_864_320,
               hub=("huggyllama/llama-13b",),
               published="13,015,864,320 in released files of the same shapes; the paper rounds to 13.0B",
               evidence=THREE),
        Preset("llama-33b", "LLaMA 33B (2023)", sizes(6656, 60, 52, 52, 17920, 32000, 2048) | FIRST, 32_528_943_616,
               also=("llama-30b",), published="the paper rounds to 32.5B; no exact count was found", evidence=THREE,
               note="released under the name 30B"),
        Preset("llama-65b", "LLaMA 65B (2023)", sizes(8192, 80, 64, 64, 22016, 32000, 2048) | FIRST, 65_285_660_672,
               hub=("huggyllama/llama-65b",),
               published="65,285,660,672 in the log of another implementation; the paper prints 65.2B", evidence=THREE,
               note="the count would round to 65.3B; eps 1e-6 as in both sources that state it"),
        Preset("llama-2-7b", "Llama 2 7B (2023)", sizes(4096, 32, 32, 32, 11008, 32000, 4096) | IDS, 6_738_415_616,
               hub=("meta-llama/Llama-2-7b-hf",), evidence=THREE,
               note="early copies carried an eps of 1e-6 by mistake, as the publisher's issues say"),
        Preset("llama-2-13b", "Llama 2 13B (2023)", sizes(5120, 40, 40, 40, 13824, 32000, 4096) | IDS, 13_015_864_320,
               hub=("meta-llama/Llama-2-13b-hf",), published="13,015,864,320 in released files of the same shapes",
               evidence=THREE),
        Preset("llama-2-70b", "Llama 2 70B (2023)", sizes(8192, 80, 64, 8, 28672, 32000, 4096) | IDS, 68_976_648_192,
               hub=("meta-llama/Llama-2-70b-hf",), published="68,976,648,192 in released copies", evidence=THREE,
               note="69.0B, not 70B; the smaller Llama 2 models have no grouped heads"),
        Preset("llama-3-8b", "Llama 3 8B (2024)", sizes(4096, 32, 32, 8, 14336, 128256, 8192) | THIRD, 8_030_261_248,
               hub=("meta-llama/Meta-Llama-3-8B",), evidence=THREE),
        Preset("llama-3-70b", "Llama 3 70B (2024)", sizes(8192, 80, 64, 8, 28672, 128256, 8192) | THIRD, 70_553_706_496,
               hub=("meta-llama/Meta-Llama-3-70B",), evidence=THREE),
        Preset("llama-3.1-8b", "Llama 3.1 8B (2024)",
               sizes(4096, 32, 32, 8, 14336, 128256, 131072) | THIRD | scaled(8.0), 8_030_261_248,
               hub=("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B",), evidence=TWO),
        Preset("llama-3.1-70b", "Llama 3.1 70B (2024)",
               sizes(8192, 80, 64, 8, 28672, 128256, 131072) | THIRD | scaled(8.0), 70_553_706_496,
               hub=("meta-llama/Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B",), evidence=TWO),
        Preset("llama-3.1-405b", "Llama 3.1 405B (2024)",
               sizes(16384, 126, 128, 8, 53248, 128256, 131072) | THIRD | scaled(8.0), 405_853_388_800,
               hub=("meta-llama/Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B",), evidence=TWO),
        Preset("llama-3.2-1b", "Llama 3.2 1B (2024)",
               sizes(2048, 16, 32, 8, 8192, 128256, 131072) | THIRD | scaled(32.0) | {"head.tied": True}, 1_235_814_400,
               hub=("meta-llama/Llama-3.2-1B",), published="1,235,814,400 in released files; one library lists "
               "1,498,482,688, as if the head were its own",
               evidence=TWO),
        Preset("llama-3.2-3b", "Llama 3.2 3B (2024)",
               sizes(3072, 28, 24, 8, 8192, 128256, 131072) | THIRD | scaled(32.0) | {"head.tied": True}, 3_212_749_824,
               hub=("meta-llama/Llama-3.2-3B",), published="3,212,749,824 in released files; one library lists "
               "3,606,752,256, as if the head were its own",
               evidence=TWO),
        Preset("deepseek-7b", "DeepSeek LLM 7B (2023)",
               sizes(4096, 30, 32, 32, 11008, 102400, 4096) | {"norm.eps": 1e-6}, 6_910_365_696,
               hub=("deepseek-ai/deepseek-llm-7b-base",),
               published="6,910,365,696 in released files of a later model of the same shapes",
               evidence="another project's record of the released config, and notes that quote it; eps from code",
               note="30 layers, not 32"),
        Preset("deepseek-67b", "DeepSeek LLM 67B (2023)",
               sizes(8192, 95, 64, 8, 22016, 102400, 4096) | {"norm.eps": 1e-6}, 67_425_001_472,
               hub=("deepseek-ai/deepseek-llm-67b-base",),
               published="the publisher rounds to 67B; no exact count was found",
               evidence="another project's record of the released config, and notes that quote it; eps from code",
               note="95 layers of width 8192; a note that circulates gives it the sizes of Yi 34B"),
        Preset("yi-6b", "Yi 6B (2023)", sizes(4096, 32, 32, 4, 11008, 64000, 4096) | {"position.theta": 5e6},
               6_061_035_520, hub=("01-ai/Yi-6B",), evidence="configs in code of two other projects",
               note="theta 5e6 by one of them and by logs of the publisher, 1e4 by the other; Yi 1.5 has an eps of "
               "1e-6"),
        Preset("yi-34b", "Yi 34B (2023)", sizes(7168, 60, 56, 8, 20480, 64000, 4096) | {"position.theta": 5e6},
               34_388_917_248, hub=("01-ai/Yi-34B",),
               evidence="configs in code of three other projects, which agree on the sizes",
               note="theta as in Yi 6B; Yi 1.5 has an eps of 1e-6"),
        Preset("smollm2-135m", "SmolLM2 135M (2024)",
               sizes(576, 30, 9, 3, 1536, 49152, 8192) | {"position.theta": 1e5, "head.tied": True}, 134_515_008,
               hub=("HuggingFaceTB/SmolLM2-135M",), evidence="the publisher's training file and two other projects",
               note="trained with theta 1e4 on 2048 tokens, then with 1e5 on 8192, as released"),
        Preset("smollm2-360m", "SmolLM2 360M (2024)",
               sizes(960, 32, 15, 5, 2560, 49152, 8192) | {"position.theta": 1e5, "head.tied": True}, 361_821_120,
               hub=("HuggingFaceTB/SmolLM2-360M",), evidence="the publisher's training file and two other projects",
               note="trained with theta 1e4 on 2048 tokens, then with 1e5 on 8192, as released"),
        Preset("smollm2-1.7b", "SmolLM2 1.7B (2024)",
               sizes(2048, 24, 32, 32, 8192, 49152, 8192) | {"position.theta": 130000.0, "head.tied": True},
               1_711_376_384, hub=("HuggingFaceTB/SmolLM2-1.7B",),
               evidence="the publisher's training file and one other project; that the head is tied follows from the "
               "count",
               note="trained with RoPE in pairs, released in halves"),
    )  # fmt: skip
    architectures = ("LlamaForCausalLM",)
    model_type = "llama"
    keys = {
        **like.keys(4096, 32, 32, None, 11008, 32000, 2048),
        **like.head_dim(None),
        **like.BIASES,
        **special_ids(bos=1, eos=2),
        "rope_interleaved": must(False),
    }
    groups = (RopeKeys(),)
    tensors = like.tensors(like.LLAMA)
    small = like.small(rope_theta=500.0)
