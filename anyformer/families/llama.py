"""LLaMA and its many relatives (Touvron et al. 2023): RMSNorm first, RoPE in halves, SwiGLU, no biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, must, whole
from anyformer.families.family import Family, Preset
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


def sizes(width: int, depth: int, heads: int, kv_heads: int, ffn: int, vocab: int, context: int) -> dict[str, int]:
    """The seven numbers in which these models differ most."""
    return {
        "width": width, "depth": depth, "attention.heads": heads, "attention.kv_heads": kv_heads, "ffn.width": ffn,
        "vocab": vocab, "context": context,
    }  # fmt: skip


BASE: dict[str, Any] = {
    "attention": {"heads": 1},
    "norm": {"kind": "rmsnorm", "eps": 1e-5},
    "position": {"kind": "rope", "theta": 1e4},
    "ffn": {"kind": "swiglu"},
    "head": {"kind": "lm"},
    "init": {"kind": "normal", "std": 0.02},
}
"""The design that most later families start from."""

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
        Preset(
            name="llama-7b", title="LLaMA 7B (2023)", changes=sizes(4096, 32, 32, 32, 11008, 32000, 2048) | FIRST,
            hub=("huggyllama/llama-7b",),
            params=6_738_415_616,
            published="6,738,415,616 in released files; the paper rounds to 6.7B",
            evidence=THREE,
            note="a widespread copy holds 2,048 numbers more: 32 stored tables of rotation frequencies",
        ),
        Preset(
            name="llama-13b", title="LLaMA 13B (2023)", changes=sizes(5120, 40, 40, 40, 13824, 32000, 2048) | FIRST,
            hub=("huggyllama/llama-13b",),
            params=13_015_864_320,
            published="13,015,864,320 in released files of the same shapes; the paper rounds to 13.0B",
            evidence=THREE,
        ),
        Preset(
            name="llama-33b", also=("llama-30b",), title="LLaMA 33B (2023)",
            changes=sizes(6656, 60, 52, 52, 17920, 32000, 2048) | FIRST,
            params=32_528_943_616,
            published="the paper rounds to 32.5B; no exact count was found",
            evidence=THREE,
            note="released under the name 30B",
        ),
        Preset(
            name="llama-65b", title="LLaMA 65B (2023)", changes=sizes(8192, 80, 64, 64, 22016, 32000, 2048) | FIRST,
            hub=("huggyllama/llama-65b",),
            params=65_285_660_672,
            published="65,285,660,672 in the log of another implementation; the paper prints 65.2B",
            evidence=THREE,
            note="the count would round to 65.3B; eps 1e-6 as in both sources that state it",
        ),
        Preset(
            name="llama-2-7b", title="Llama 2 7B (2023)", changes=sizes(4096, 32, 32, 32, 11008, 32000, 4096) | IDS,
            hub=("meta-llama/Llama-2-7b-hf",),
            params=6_738_415_616,
            published="6,738,415,616 in released files",
            evidence=THREE,
            note="early copies carried an eps of 1e-6 by mistake, as the publisher's issues say",
        ),
        Preset(
            name="llama-2-13b", title="Llama 2 13B (2023)", changes=sizes(5120, 40, 40, 40, 13824, 32000, 4096) | IDS,
            hub=("meta-llama/Llama-2-13b-hf",),
            params=13_015_864_320,
            published="13,015,864,320 in released files of the same shapes",
            evidence=THREE,
        ),
        Preset(
            name="llama-2-70b", title="Llama 2 70B (2023)", changes=sizes(8192, 80, 64, 8, 28672, 32000, 4096) | IDS,
            hub=("meta-llama/Llama-2-70b-hf",),
            params=68_976_648_192,
            published="68,976,648,192 in released copies",
            evidence=THREE,
            note="69.0B, not 70B; the smaller Llama 2 models have no grouped heads",
        ),
        Preset(
            name="llama-3-8b", title="Llama 3 8B (2024)", changes=sizes(4096, 32, 32, 8, 14336, 128256, 8192) | THIRD,
            hub=("meta-llama/Meta-Llama-3-8B",),
            params=8_030_261_248,
            published="8,030,261,248 in released files",
            evidence=THREE,
        ),
        Preset(
            name="llama-3-70b", title="Llama 3 70B (2024)", changes=sizes(8192, 80, 64, 8, 28672, 128256, 8192) | THIRD,
            hub=("meta-llama/Meta-Llama-3-70B",),
            params=70_553_706_496,
            published="70,553,706,496 in released files",
            evidence=THREE,
        ),
        Preset(
            name="llama-3.1-8b", title="Llama 3.1 8B (2024)",
            hub=("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B",),
            changes=sizes(4096, 32, 32, 8, 14336, 128256, 131072) | THIRD | scaled(8.0),
            params=8_030_261_248,
            published="8,030,261,248 in released files",
            evidence=TWO,
        ),
        Preset(
            name="llama-3.1-70b", title="Llama 3.1 70B (2024)",
            hub=("meta-llama/Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B",),
            changes=sizes(8192, 80, 64, 8, 28672, 128256, 131072) | THIRD | scaled(8.0),
            params=70_553_706_496,
            published="70,553,706,496 in released files",
            evidence=TWO,
        ),
        Preset(
            name="llama-3.1-405b", title="Llama 3.1 405B (2024)",
            hub=("meta-llama/Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B",),
            changes=sizes(16384, 126, 128, 8, 53248, 128256, 131072) | THIRD | scaled(8.0),
            params=405_853_388_800,
            published="405,853,388,800 in released files",
            evidence=TWO,
        ),
        Preset(
            name="llama-3.2-1b", title="Llama 3.2 1B (2024)",
            hub=("meta-llama/Llama-3.2-1B",),
            changes=sizes(2048, 16, 32, 8, 8192, 128256, 131072) | THIRD | scaled(32.0) | {"head.tied": True},
            params=1_235_814_400,
            published="1,235,814,400 in released files; one library lists 1,498,482,688, as if the head were its own",
            evidence=TWO,
        ),
        Preset(
            name="llama-3.2-3b", title="Llama 3.2 3B (2024)",
            hub=("meta-llama/Llama-3.2-3B",),
            changes=sizes(3072, 28, 24, 8, 8192, 128256, 131072) | THIRD | scaled(32.0) | {"head.tied": True},
            params=3_212_749_824,
            published="3,212,749,824 in released files; one library lists 3,606,752,256, as if the head were its own",
            evidence=TWO,
        ),
        Preset(
            name="deepseek-7b", title="DeepSeek LLM 7B (2023)",
            hub=("deepseek-ai/deepseek-llm-7b-base",),
            changes=sizes(4096, 30, 32, 32, 11008, 102400, 4096) | {"norm.eps": 1e-6},
            params=6_910_365_696,
            published="6,910,365,696 in released files of a later model of the same shapes",
            evidence="another project's record of the released config, and notes that quote it; eps from code",
            note="30 layers, not 32",
        ),
        Preset(
            name="deepseek-67b", title="DeepSeek LLM 67B (2023)",
            hub=("deepseek-ai/deepseek-llm-67b-base",),
            changes=sizes(8192, 95, 64, 8, 22016, 102400, 4096) | {"norm.eps": 1e-6},
            params=67_425_001_472,
            published="the publisher rounds to 67B; no exact count was found",
            evidence="another project's record of the released config, and notes that quote it; eps from code",
            note="95 layers of width 8192; a note that circulates gives it the sizes of Yi 34B",
        ),
        Preset(
            name="yi-6b", title="Yi 6B (2023)",
            hub=("01-ai/Yi-6B",),
            changes=sizes(4096, 32, 32, 4, 11008, 64000, 4096) | {"position.theta": 5e6},
            params=6_061_035_520,
            published="6,061,035,520 in released files",
            evidence="configs in code of two other projects",
            note="theta 5e6 by one of them and by logs of the publisher, 1e4 by the other; Yi 1.5 has an eps of 1e-6",
        ),
        Preset(
            name="yi-34b", title="Yi 34B (2023)",
            hub=("01-ai/Yi-34B",),
            changes=sizes(7168, 60, 56, 8, 20480, 64000, 4096) | {"position.theta": 5e6},
            params=34_388_917_248,
            published="34,388,917,248 in released files",
            evidence="configs in code of three other projects, which agree on the sizes",
            note="theta as in Yi 6B; Yi 1.5 has an eps of 1e-6",
        ),
        Preset(
            name="smollm2-135m", title="SmolLM2 135M (2024)",
            hub=("HuggingFaceTB/SmolLM2-135M",),
            changes=sizes(576, 30, 9, 3, 1536, 49152, 8192) | {"position.theta": 1e5, "head.tied": True},
            params=134_515_008,
            published="134,515,008 in released files",
            evidence="the publisher's training file and two other projects",
            note="trained with theta 1e4 on 2048 tokens, then with 1e5 on 8192, as released",
        ),
        Preset(
            name="smollm2-360m", title="SmolLM2 360M (2024)",
            hub=("HuggingFaceTB/SmolLM2-360M",),
            changes=sizes(960, 32, 15, 5, 2560, 49152, 8192) | {"position.theta": 1e5, "head.tied": True},
            params=361_821_120,
            published="361,821,120 in released files",
            evidence="the publisher's training file and two other projects",
            note="trained with theta 1e4 on 2048 tokens, then with 1e5 on 8192, as released",
        ),
        Preset(
            name="smollm2-1.7b", title="SmolLM2 1.7B (2024)",
            hub=("HuggingFaceTB/SmolLM2-1.7B",),
            changes=sizes(2048, 24, 32, 32, 8192, 49152, 8192) | {"position.theta": 130000.0, "head.tied": True},
            params=1_711_376_384,
            published="1,711,376,384 in released files",
            evidence="the publisher's training file and one other project; that the head is tied follows from the count",
            note="trained with RoPE in pairs, released in halves",
        ),
    )  # fmt: skip
    architectures = ("LlamaForCausalLM",)
    model_type = "llama"
    keys = like.keys(
        vocab=32000, width=4096, ffn=11008, depth=32, heads=32, kv_heads=None, context=2048, eps=1e-6
    ) | {
        "head_dim": whole(None),
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
        "rope_interleaved": must(False),
        "bos_token_id": ids(1),
        "eos_token_id": ids(2),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return (
            like.read(c, head_dim=c["head_dim"])
            | read_rope(c, context=c["max_position_embeddings"])
            | {"attention.bias": "qkvo" if c["attention_bias"] else "", "ffn.bias": c["mlp_bias"]}
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        return (
            like.write(spec)
            | write_rope(layer.position)
            | {
                "head_dim": spec.dims(layer, stack).head_dim,
                "attention_bias": bool(layer.attention.bias),
                "mlp_bias": layer.ffn.bias,
            }
        )

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(rope_theta=500.0)
