"""SmolLM3 (2025): LLaMA's design, with no position at all in every fourth layer."""

from typing import Any

from anyformer.families import key_groups
from anyformer.families import llama_like as like
from anyformer.families.config_keys import NUMBERS, TEXTS, flag, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Preset, sizes
from anyformer.families.key_groups import NOPE
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec


class SmolLM3(like.LlamaLike, kind="smollm3"):
    """SmolLM3."""

    base = like.BASE | {"norm": {"kind": "rmsnorm", "eps": 1e-6}}
    presets = (
        Preset("smollm3-3b", "SmolLM3 3B (2025)", sizes(2048, 36, 16, 4, 11008, 128256, 65536)
               | {"position.theta": 5e6, "head.tied": True, "ids.pad": 128004, "ids.bos": 128000, "ids.eos": [128001],
                  "layers": {"order": "3 rope, 1 nope", "rope": {}, "nope": NOPE}}, 3_075_098_624, also=("smollm3",),
               evidence="the publisher's training files and another project's record of the released config; ids are "
               "the defaults of the public class",
               note="theta 5e4 at first, 2e6 up to 32k tokens (the default of the class), 5e6 in the last stage, up to "
               "64k"),
    )  # fmt: skip
    architectures = ("SmolLM3ForCausalLM",)
    keys = {
        **like.keys(2048, 36, 16, 4, 11008, 128256, 32768, tied=True),
        **usual(attention_bias=False, mlp_bias=False, pad_token_id=128004, bos_token_id=128000, eos_token_id=128001),
        "use_sliding_window": flag(False),
        "sliding_window": whole(None),
        # A 1 for each layer with RoPE; the name says the opposite.
        "no_rope_layers": NUMBERS,
        "no_rope_layer_interval": whole(4),
        "layer_types": TEXTS,
        # The released file has it, and the public class does not.
        "max_window_layers": whole(None),
    }
    groups = (key_groups.RopeKeys(theta=2e6),)
    small = like.small(num_hidden_layers=5, rope_theta=500.0)

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        window, every = c["sliding_window"] if c["use_sliding_window"] else None, c["no_rope_layer_interval"]
        rotary = c["no_rope_layers"]
        if rotary is None and every < 1:
            c.problems.add("no_rope_layer_interval", f"{every} is not at least 1")
        rotary = rotary or [int(bool((i + 1) % max(every, 1))) for i in range(len(key_groups.each_layer(c, str)))]
        if len(rotary) < c["num_hidden_layers"]:
            c.problems.add("no_rope_layers", f"has {len(rotary)} entries for {c['num_hidden_layers']} layers")
            return {"vocab": c["vocab_size"]}
        types = c["layer_types"] or key_groups.each_layer(
            c, lambda i: key_groups.FULL if rotary[i] or window is None else key_groups.LOCAL
        )
        names = [
            f"{kind}{'' if has_rope else '_nope'}"
            for kind, has_rope in zip(key_groups.checked(c, types, window), rotary, strict=False)
        ]
        local = {"attention.pattern": f"window({window})"}
        groups = {"global": {}, "local": local, "global_nope": NOPE, "local_nope": local | NOPE}
        return key_groups.without_idle_rope(super().read(c) | key_groups.arranged(names, groups))

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        window, types = key_groups.window_of(spec)
        rotary = [int(isinstance(layer.position, Rope)) for layer in spec.stacks[-1].layers]
        own = {"use_sliding_window": window is not None, "sliding_window": window, "no_rope_layers": rotary}
        return super().write(spec) | own | {"layer_types": types}
