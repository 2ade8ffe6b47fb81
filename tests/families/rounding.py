"""Run as a program: bf16 logits of small public models against ours, and against ours with one rounding moved.

A process of its own, as products of bf16 matrices must be limited to the instructions that every CPU knows before
torch is loaded. It prints one JSON object: kind -> what was changed ("" for nothing) -> the difference.
"""

import json
import sys
from typing import Any

import torch
import transformers

import anyformer as af
from anyformer.families.family import Family
from anyformer.families.hf_bridge import from_hf
from anyformer.specs.model import ModelSpec
from tests.families.oracle import randomise
from tests.tolerances import difference

STILL = {"rope_type": "linear", "factor": 1e30, "rope_theta": 1e4}
"""RoPE that turns nothing: where it turns, the public classes round once more than we do."""

CASES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": STILL},
    "qwen3": {"rope_parameters": STILL},
    "olmo2": {"rope_parameters": STILL},
    "cohere": {"rope_parameters": STILL},
    "gemma": {"rope_parameters": STILL},
    # Its scores are capped in bf16 there and in fp32 here; in rows of one token no score has a say.
    "gemma2": {},
    "gemma3": {"rope_parameters": {"full_attention": STILL, "sliding_attention": STILL}},
}
"""Kind -> changes of its small config."""

MOVED = {"before_cast": "after_cast", "after_cast": "before_cast"}


def other_roundings(spec: ModelSpec) -> dict[str, ModelSpec]:
    """The same maths with one rounding elsewhere."""
    norms: dict[str, Any] = {"norm": spec.norm.leaf}
    if spec.attention.qk_norm is not None:
        norms["attention.qk_norm"] = spec.attention.qk_norm.leaf
    found = {f"{path}.gain_at": spec.vary({f"{path}.gain_at": MOVED[leaf.gain_at]}) for path, leaf in norms.items()}
    embed: Any = spec.embed
    if embed.scale != 1.0:
        found["embed.round_scale"] = spec.vary({"embed.round_scale": not embed.round_scale})
    return found


@torch.no_grad()
def differences(kind: str) -> dict[str, float]:
    """What was changed -> the difference of logits."""
    family = Family.named(kind)
    assert family is not None
    config = {name: value for name, value in family.small.items() if not name.startswith("ro")} | CASES[kind]
    cls = getattr(transformers, family.architectures[0])
    theirs = cls(cls.config_class(**config)).eval()
    randomise(theirs, family.weights(family.spec_from(config)), 0)
    theirs = theirs.to(torch.bfloat16)
    ours = from_hf(theirs)
    shape = (8, 6) if CASES[kind] else (48, 1)
    ids = torch.randint(3, ours.spec.vocab, shape, generator=torch.Generator().manual_seed(0))
    wanted = theirs(input_ids=ids).logits
    found = {"": difference(ours(ids).logits, wanted)}
    for path, spec in other_roundings(ours.spec).items():
        moved = af.build(spec, dtype=torch.bfloat16).eval()
        moved.load_state_dict(ours.state_dict())
        found[path] = difference(moved(ids).logits, wanted)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    json.dump({kind: differences(kind) for kind in CASES}, sys.stdout)
