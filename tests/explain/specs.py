"""Specs that have everything to explain: two kinds of layers, an encoder-decoder, parallel branches, images."""

from typing import Any

from anyformer.specs import ModelSpec

LLAMA: dict[str, Any] = {
    "vocab": 128256, "width": 4096, "depth": 32, "context": 8192, "attention": {"heads": 32, "kv_heads": 8},
    "position": {"kind": "rope", "theta": 500000.0}, "ffn": {"kind": "swiglu", "width": 14336}, "norm": {"eps": 1e-5},
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {},
    "local-global": {
        "layers": {"order": "5 local, 1 global", "local": {"attention": {"pattern": "window(1024)"}}, "global": {}},
        "norm.placement": "sandwich", "attention.qk_norm": True, "head.tied": True, "context": 131072,
    },
    "encoder-decoder": {"topology": "encoder-decoder", "position": "t5", "ids.start": 0, "norm.placement": "post"},
    "parallel": {"block.wiring": "parallel", "norm.kind": "layernorm", "ffn": "gelu_tanh"},
    "parallel-cross": {
        "topology": "encoder-decoder", "block.wiring": "parallel2", "ids.start": 0, "block.branch_scale": 0.5,
        "norm.placement": "sandwich", "attention.softcap": 50.0, "attention.mixer": "relu",
    },
    "three": {
        "depth": 100, "norm.placement": "post", "layers": {
            "order": "2 a, 2 b, 2 c", "a": {"attention": {"pattern": "window(128)"}}, "b": {"position": "none"},
            "c": {"attention": {"pattern": "causal & (chunked(4096) | window(1024))"}, "ffn": "gelu"},
        },
    },
    "many": {"depth": 9, **{f"layers.{i}.attention.pattern": f"window({i + 1})" for i in range(8)}},
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "topology": "encoder", "width": 48, "depth": 2, "context": 197, "position": "learned",
    "attention": {"heads": 4}, "ffn": {"kind": "gelu"}, "embed": {"kind": "patches", "image": 224, "patch": 16},
    "head": {"kind": "sequence", "labels": 10},
}  # fmt: skip


def spec_named(name: str) -> ModelSpec:
    return ModelSpec.from_data(LLAMA).vary(CHANGES[name])


def images() -> ModelSpec:
    return ModelSpec.from_data(IMAGES)
