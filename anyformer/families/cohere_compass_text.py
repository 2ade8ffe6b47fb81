"""North (Cohere 2026), the language model of its vision models: Command R with a RoPE, or none, by kind of layer."""

from dataclasses import replace
from typing import Any

from anyformer.families import cohere, tasks
from anyformer.families.config_keys import NUMBERS, each, flag, must, number, text, usual, whole
from anyformer.families.config_values import Values, without
from anyformer.families.key_groups import FULL, LOCAL, WindowKeys, without_idle_rope
from anyformer.specs.model import ModelSpec

THETAS = {FULL: ("rope_theta", 1e4), LOCAL: ("rope_theta", 1e4)}
IMAGES = {"mrope_section": NUMBERS, "mrope_interleaved": flag(True)}
"""Keys of a table that say how pictures are placed; between words nothing changes."""

POOLS = {None: "last", "eos": "last", "mean": "mean"}


class CohereCompass(cohere.Cohere, kind="cohere_compass_text"):
    """The language model of North's vision models. Files name a table, or null for no position, for each kind of layer."""

    base = cohere.BASE | {"position": {"kind": "rope", "theta": 1e4}}
    architectures = ("CohereCompassForCausalLM",)
    stem = "CohereCompassText"
    tasks = {tasks.SEQUENCE: replace(tasks.SCORE, keys={"pooling": tasks.pooling(POOLS)})}
    keys = cohere.KEYS | {
        **usual(head_dim=None),
        "logit_scale": number(None, "head.scale", empty=1.0),
        # The public class reads what stands in the tables only.
        **each(must(None), "rope_theta", "rope_scaling"),
        # How a classifier would pool, and what a list of layer types has replaced.
        "pooling": text(None),
        "sliding_window_pattern": whole(None),
    }
    groups = (WindowKeys(window=4096, needed=True, is_local=lambda c, i: False, thetas=THETAS, more=IMAGES, nope=True),)
    small = {
        "num_hidden_layers": 4, "sliding_window": 5, "layer_types": [LOCAL, LOCAL, LOCAL, FULL], "logit_scale": 0.3,
        "rope_parameters": {FULL: None, LOCAL: {"rope_theta": 500.0, "mrope_section": [2, 1, 1]}},
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        tables = c["rope_parameters"] or {}
        if FULL in tables or LOCAL in tables:
            # Released files hold these beside the tables too, where nobody reads them.
            c["rope_parameters"] = without(tables, ["rope_theta", "rope_type"])
        return without_idle_rope(super().read(c))

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return without(super().write(spec), ["rope_scaling"])
