"""EXAONE 4.0 (LG 2025): OLMo 2's norms on outputs, Qwen3's on heads; layers without a window have no position."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Key, is_whole
from anyformer.families.config_values import Values
from anyformer.families.key_groups import NOPE, RopeKeys, WindowKeys, without_idle_rope
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec

EVERY = "sliding_window_pattern"
ROPE = RopeKeys()


def _is_local(c: Values, i: int) -> bool:
    return c["sliding_window"] is not None and is_whole(c[EVERY]) and c[EVERY] > 0 and bool((i + 1) % c[EVERY])


class Exaone4(like.LlamaLike, kind="exaone4"):
    """EXAONE 4.0. A model without any window has RoPE in every layer."""

    base = like.BASE | {
        "attention": {"heads": 1, "qk_norm": {"kind": "rmsnorm", "eps": 1e-5}},
        "norm": {"kind": "rmsnorm", "eps": 1e-5, "placement": "output"},
    }
    architectures = ("Exaone4ForCausalLM",)
    keys = {
        **like.keys(4096, 32, 32, 32, 16384, 102400, 2048, eps=1e-5, qk_norm=True, head_dim=None),
        **like.ids(0, 2),
        EVERY: Key(
            what="a whole number or a text",
            fits=lambda value: is_whole(value) or isinstance(value, str),
            default=4,
            null=True,
        ),
    }
    groups = (ROPE, WindowKeys(window=4096, is_local=_is_local, everywhere=NOPE))
    tensors = like.tensors(like.ATTENTION | like.FFN | like.HEAD_NORMS | like.OUTPUT_NORMS)
    small = like.small(num_hidden_layers=4, sliding_window=5, sliding_window_pattern=3, rope_theta=500.0)

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        every, window = c[EVERY], c["sliding_window"]
        if window is not None and c["layer_types"] is None and not (is_whole(every) and every > 0):
            c.problems.add(EVERY, f"{every!r} is not a whole number of at least 1, and there are no layer_types")
        found = super().read(c)
        if window is None:
            # Then the layers without a window have positions too.
            found |= {"position.kind": "rope", **ROPE.read(c)}
        return without_idle_rope(found)

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        written = super().write(spec)
        rotary = any(isinstance(layer.position, Rope) for layer in spec.stacks[-1].layers)
        # A width without a window: no layer has a position.
        return written if rotary else written | {"sliding_window": written["sliding_window"] or spec.context}
