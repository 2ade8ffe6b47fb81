"""Nemotron-4 (2024) and the Minitrons pruned from it: LayerNorm with gains stored from 1, squared ReLU, no gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, number, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, share_of, write_rope
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec

EPS = "norm_eps"


class Nemotron(Family, kind="nemotron"):
    """Nemotron-4 and Minitron."""

    base = BASE | {
        "norm": {"kind": "layernorm", "eps": 1e-5, "gain": "one_plus"},
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.5},
        "ffn": {"kind": "relu2"},
        "init": {"kind": "normal", "std": 0.0134},
    }
    presets = (
        Preset(
            name="nemotron-4-15b", title="Nemotron-4 15B (2024)",
            changes=sizes(6144, 32, 48, 8, 24576, 256000, 4096),
            params=15_628_775_424,
            published="3.2B in the embedding and 12.5B elsewhere, by general knowledge of the paper",
            evidence="the publisher's training code and launcher; the vocabulary is the default of the public class",
        ),
        Preset(
            name="nemotron-4-340b", title="Nemotron-4 340B (2024)",
            changes=sizes(18432, 96, 96, 8, 73728, 256000, 4096) | {"init.std": 0.0063},
            params=341_029_195_776,
            published="9.4B in the embedding and 331.6B elsewhere, by general knowledge of the paper",
            evidence="the publisher's training code and launcher; the vocabulary is the default of the public class",
            note="heads of 192",
        ),
        Preset(
            name="minitron-4b", title="Minitron 4B (2024)",
            changes=sizes(3072, 32, 24, 8, 9216, 256000, 4096),
            params=4_190_509_056,
            published="its name rounds to 4B; no exact count was found",
            evidence="the publisher's training code; the vocabulary is the default of the public class",
        ),
        Preset(
            name="minitron-8b", title="Minitron 8B (2024)",
            changes=sizes(4096, 32, 48, 8, 16384, 256000, 4096) | {"attention.head_dim": 128},
            params=8_271_699_968,
            published="its name rounds to 8B; no exact count was found",
            evidence="another project's record of the released config",
            note="48 heads of 128 are wider than the model: its width was pruned and its heads were not",
        ),
    )  # fmt: skip
    architectures = ("NemotronForCausalLM",)
    model_type = "nemotron"
    keys = like.keys(
        vocab=256000, width=6144, ffn=24576, depth=32, heads=48, kv_heads=None, context=4096, eps=1e-5, eps_key=EPS
    ) | {
        "head_dim": whole(None),
        "hidden_act": text("relu2"),
        "initializer_range": number(0.0134),
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
        "bos_token_id": ids(2),
        "eos_token_id": ids(3),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return (
            like.read(c, head_dim=c["head_dim"], eps_key=EPS, gated=False)
            | read_rope(c, context=c["max_position_embeddings"], fraction=0.5)
            | {"attention.bias": "qkvo" if c["attention_bias"] else "", "ffn.bias": c["mlp_bias"]}
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        head_dim = spec.dims(layer, stack).head_dim
        own = {"head_dim": head_dim, "attention_bias": bool(layer.attention.bias), "mlp_bias": layer.ffn.bias}
        rope = write_rope(layer.position, fraction=share_of(layer.position, head_dim))
        return like.write(spec, eps_key=EPS, gated=False) | rope | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        small = like.tiny(head_dim=12, rope_theta=500.0)
        return {EPS if name == "rms_norm_eps" else name: value for name, value in small.items()}
