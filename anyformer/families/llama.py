"""LLaMA and its many relatives (Touvron et al. 2023): RMSNorm first, RoPE in halves, SwiGLU, no biases."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import must, usual
from anyformer.families.family import Preset, series, sizes

THREE = "configs in training and serving code of three other projects, which agree"
TWO = "configs in training and serving code of two other projects, which agree"
IDS: dict[str, Any] = {"ids.bos": 1, "ids.eos": [2]}
FIRST: dict[str, Any] = {"norm.eps": 1e-6} | IDS
THIRD: dict[str, Any] = {"position.theta": 5e5, "ids.bos": 128000, "ids.eos": [128001]}
"""What the generations of LLaMA have, each for itself."""


def scaled(factor: float) -> dict[str, Any]:
    """The frequencies of Llama 3.1 and later."""
    return {"position.scaling": {"kind": "llama3", "factor": factor, "original": 8192, "low": 1.0, "high": 4.0}}


class Llama(like.LlamaLike, kind="llama"):
    """LLaMA 1 to 3 and models released in its format."""

    presets = (
        *series("llama-{}", "LLaMA {SIZE} (2023)",
            ("7b", sizes(4096, 32, 32, 32, 11008, 32000, 2048), 6_738_415_616,
             "6,738,415,616 in released files; the paper rounds to 6.7B",
             "a widespread copy holds 2,048 numbers more: 32 stored tables of rotation frequencies"),
            ("13b", sizes(5120, 40, 40, 40, 13824, 32000, 2048), 13_015_864_320,
             "13,015,864,320 in released files of the same shapes; the paper rounds to 13.0B"),
            changes=FIRST, hub=("huggyllama/llama-{}",), evidence=THREE),
        Preset("llama-33b", "LLaMA 33B (2023)", sizes(6656, 60, 52, 52, 17920, 32000, 2048) | FIRST, 32_528_943_616,
               also=("llama-30b",), published="the paper rounds to 32.5B; no exact count was found", evidence=THREE,
               note="released under the name 30B"),
        Preset("llama-65b", "LLaMA 65B (2023)", sizes(8192, 80, 64, 64, 22016, 32000, 2048) | FIRST, 65_285_660_672,
               hub=("huggyllama/llama-65b",),
               published="65,285,660,672 in the log of another implementation; the paper prints 65.2B", evidence=THREE,
               note="the count would round to 65.3B; eps 1e-6 as in both sources that state it"),
        *series("llama-2-{}", "Llama 2 {SIZE} (2023)",
            ("7b", sizes(4096, 32, 32, 32, 11008, 32000, 4096), 6_738_415_616, "",
             "early copies carried an eps of 1e-6 by mistake, as the publisher's issues say"),
            ("13b", sizes(5120, 40, 40, 40, 13824, 32000, 4096), 13_015_864_320,
             "13,015,864,320 in released files of the same shapes"),
            ("70b", sizes(8192, 80, 64, 8, 28672, 32000, 4096), 68_976_648_192, "68,976,648,192 in released copies",
             "69.0B, not 70B; the smaller Llama 2 models have no grouped heads"),
            changes=IDS, hub=("meta-llama/Llama-2-{}-hf",), evidence=THREE),
        *series("llama-3-{}", "Llama 3 {SIZE} (2024)",
            ("8b", sizes(4096, 32, 32, 8, 14336, 128256, 8192), 8_030_261_248),
            ("70b", sizes(8192, 80, 64, 8, 28672, 128256, 8192), 70_553_706_496),
            changes=THIRD, hub=("meta-llama/Meta-Llama-3-{SIZE}",), evidence=THREE),
        *series("llama-3.1-{}", "Llama 3.1 {SIZE} (2024)",
            ("8b", sizes(4096, 32, 32, 8, 14336, 128256, 131072), 8_030_261_248),
            ("70b", sizes(8192, 80, 64, 8, 28672, 128256, 131072), 70_553_706_496),
            ("405b", sizes(16384, 126, 128, 8, 53248, 128256, 131072), 405_853_388_800),
            changes=THIRD | scaled(8.0), evidence=TWO,
            hub=("meta-llama/Llama-3.1-{SIZE}", "meta-llama/Meta-Llama-3.1-{SIZE}")),
        *series("llama-3.2-{}", "Llama 3.2 {SIZE} (2024)",
            ("1b", sizes(2048, 16, 32, 8, 8192, 128256, 131072), 1_235_814_400,
             "1,235,814,400 in released files; one library lists 1,498,482,688, as if the head were its own"),
            ("3b", sizes(3072, 28, 24, 8, 8192, 128256, 131072), 3_212_749_824,
             "3,212,749,824 in released files; one library lists 3,606,752,256, as if the head were its own"),
            changes=THIRD | scaled(32.0) | {"head.tied": True}, hub=("meta-llama/Llama-3.2-{SIZE}",), evidence=TWO),
        *series("deepseek-{}", "DeepSeek LLM {SIZE} (2023)",
            ("7b", sizes(4096, 30, 32, 32, 11008, 102400, 4096), 6_910_365_696,
             "6,910,365,696 in released files of a later model of the same shapes", "30 layers, not 32"),
            ("67b", sizes(8192, 95, 64, 8, 22016, 102400, 4096), 67_425_001_472,
             "the publisher rounds to 67B; no exact count was found",
             "95 layers of width 8192; a note that circulates gives it the sizes of Yi 34B"),
            changes={"norm.eps": 1e-6}, hub=("deepseek-ai/deepseek-llm-{}-base",),
            evidence="another project's record of the released config, and notes that quote it; eps from code"),
        *series("yi-{}", "Yi {SIZE} (2023)",
            ("6b", sizes(4096, 32, 32, 4, 11008, 64000, 4096), 6_061_035_520, "",
             "theta 5e6 by one of them and by logs of the publisher, 1e4 by the other; Yi 1.5 has an eps of 1e-6",
             "configs in code of two other projects"),
            ("34b", sizes(7168, 60, 56, 8, 20480, 64000, 4096), 34_388_917_248, "",
             "theta as in Yi 6B; Yi 1.5 has an eps of 1e-6",
             "configs in code of three other projects, which agree on the sizes"),
            changes={"position.theta": 5e6}, hub=("01-ai/Yi-{SIZE}",)),
        *series("smollm2-{}", "SmolLM2 {SIZE} (2024)",
            ("135m", sizes(576, 30, 9, 3, 1536, 49152, 8192), 134_515_008),
            ("360m", sizes(960, 32, 15, 5, 2560, 49152, 8192), 361_821_120),
            ("1.7b", sizes(2048, 24, 32, 32, 8192, 49152, 8192) | {"position.theta": 130000.0}, 1_711_376_384, "",
             "trained with RoPE in pairs, released in halves",
             "the publisher's training file and one other project; that the head is tied follows from the count"),
            changes={"position.theta": 1e5, "head.tied": True}, hub=("HuggingFaceTB/SmolLM2-{SIZE}",),
            evidence="the publisher's training file and two other projects",
            note="trained with theta 1e4 on 2048 tokens, then with 1e5 on 8192, as released"),
    )  # fmt: skip
    architectures = ("LlamaForCausalLM",)
    keys = {
        **like.keys(4096, 32, 32, None, 11008, 32000, 2048, head_dim=None, bos_token_id=1, eos_token_id=2),
        **usual(attention_bias=False, mlp_bias=False),
        "rope_interleaved": must(False),
    }
