"""SmolLM3 (2025): LLaMA's design, with no position at all in every fourth layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, numbers, texts, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.families.window_keys import FULL, LOCAL, arranged, checked, each_layer, window_of
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec

NOPE = {"position.kind": "none"}


class SmolLM3(Family, kind="smollm3"):
    """SmolLM3."""

    base = BASE | {"norm": {"kind": "rmsnorm", "eps": 1e-6}}
    presets = (
        Preset(
            name="smollm3-3b", also=("smollm3",), title="SmolLM3 3B (2025)",
            changes=sizes(2048, 36, 16, 4, 11008, 128256, 65536)
            | {
                "position.theta": 5e6, "head.tied": True, "ids.pad": 128004, "ids.bos": 128000, "ids.eos": [128001],
                "layers": {"order": "3 rope, 1 nope", "rope": {}, "nope": NOPE},
            },
            params=3_075_098_624,
            published="3,075,098,624 in released files",
            evidence="the publisher's training files and another project's record of the released config; ids are the "
            "defaults of the public class",
            note="theta 5e4 at first, 2e6 up to 32k tokens (the default of the class), 5e6 in the last stage, up to 64k",
        ),
    )  # fmt: skip
    architectures = ("SmolLM3ForCausalLM",)
    model_type = "smollm3"
    keys = like.keys(
        vocab=128256, width=2048, ffn=11008, depth=36, heads=16, kv_heads=4, context=32768, eps=1e-6
    ) | {
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
        "use_sliding_window": flag(False),
        "sliding_window": whole(None),
        # A 1 for each layer that turns queries and keys; the name says the opposite.
        "no_rope_layers": numbers(),
        "no_rope_layer_interval": whole(4),
        "layer_types": texts(),
        # The released file has it, and the public class does not.
        "max_window_layers": whole(None),
        "tie_word_embeddings": flag(True),
        "pad_token_id": ids(128004),
        "bos_token_id": ids(128000),
        "eos_token_id": ids(128001),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        window, every = c["sliding_window"] if c["use_sliding_window"] else None, c["no_rope_layer_interval"]
        turns = c["no_rope_layers"]
        if turns is None and every < 1:
            c.problems.add("no_rope_layer_interval", f"{every} is not at least 1")
        turns = turns or [int(bool((i + 1) % max(every, 1))) for i in range(len(each_layer(c, str)))]
        if len(turns) < c["num_hidden_layers"]:
            c.problems.add("no_rope_layers", f"has {len(turns)} entries for {c['num_hidden_layers']} layers")
            return {"vocab": c["vocab_size"]}
        types = c["layer_types"] or each_layer(c, lambda i: FULL if turns[i] or window is None else LOCAL)
        names = [
            f"{kind}{'' if turn else '_nope'}" for kind, turn in zip(checked(c, types, window), turns, strict=False)
        ]
        local = {"attention.pattern": f"window({window})"}
        groups = {"global": {}, "local": local, "global_nope": NOPE, "local_nope": local | NOPE}
        rope = read_rope(c, context=c["max_position_embeddings"], theta=2e6)
        own = {"attention.bias": "qkvo" if c["attention_bias"] else "", "ffn.bias": c["mlp_bias"]}
        return like.read(c) | (rope if any(turns[: len(names)]) else {}) | arranged(names, groups) | own

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        layers, (window, types) = spec.stacks[-1].layers, window_of(spec)
        turns = [int(isinstance(layer.position, Rope)) for layer in layers]
        own = {
            "attention_bias": bool(layers[0].attention.bias),
            "mlp_bias": layers[0].ffn.bias,
            "use_sliding_window": window is not None,
            "sliding_window": window,
            "no_rope_layers": turns,
            "layer_types": types,
        }
        return like.write(spec) | write_rope(layers[turns.index(1) if 1 in turns else 0].position) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(num_hidden_layers=5, rope_theta=500.0)
