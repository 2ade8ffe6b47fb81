"""Ministral 3 (Mistral 2025): Mistral with stretched frequencies, and queries that grow with their position."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import number, whole
from anyformer.families.config_values import Values
from anyformer.families.key_groups import ORIGINAL, RopeKeys, WindowKeys
from anyformer.families.mistral import Mistral
from anyformer.specs.model import ModelSpec

BETA = "llama_4_scaling_beta"
TABLE = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, ORIGINAL: 16384, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale": 1.0, "mscale_all_dim": 1.0, BETA: 0.1,
}  # fmt: skip
MORE = {BETA: number(None), ORIGINAL: whole(None), "max_position_embeddings": whole(None)}
ROPE = RopeKeys(table=TABLE, more=MORE)


class Ministral3(Mistral, kind="ministral3"):
    """Ministral 3 3B to 14B."""

    architectures = ("Ministral3ForCausalLM",)
    keys = like.keys(4096, 34, 32, 8, 14336, 131072, 262144, eps=1e-5, head_dim=128) | like.ids(1, 2, 11)
    groups = (ROPE, WindowKeys(listed=False))
    small = like.small(head_dim=12, sliding_window=9, rope_parameters=TABLE | {ORIGINAL: 4, "rope_theta": 900.0})

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        found, table = super().read(c), [*ROPE.given(c).values()][-1]
        if not c.problems.found and table.get(BETA):
            length = table.get(ORIGINAL) or c["max_position_embeddings"]
            found["attention.temperature"] = {"length": length, "strength": float(table[BETA]), "offset": 0}
        return found

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        grows, written = spec.stacks[-1].layers[0].attention.temperature, super().write(spec)
        own = {BETA: 0.0} if grows is None else {BETA: grows.strength, ORIGINAL: grows.length}
        # The public class would take the old table for all, and the strength stands in the new one.
        return written | {"rope_parameters": own | written.get("rope_parameters", {}), "rope_scaling": None}
