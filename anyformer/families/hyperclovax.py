"""HyperCLOVA X SEED Think (NAVER 2025): Granite's constants and, unless switched off, norms after each branch too."""

from dataclasses import replace

from anyformer.families import llama_like as like
from anyformer.families.config_keys import flag, number, usual
from anyformer.families.config_values import Values
from anyformer.families.granite import Granite

ROOT = "1/sqrt(head_dim)"


def _scale(c: Values, name: str) -> dict[str, float | str]:
    """The factor of scores. A file without it means everybody's, and the public class writes that as a number."""
    head_dim = c["head_dim"] or c["hidden_size"] // max(c["num_attention_heads"], 1)
    plain = c[name] is None or (head_dim > 0 and c[name] == head_dim**-0.5)
    return {"attention.scale": ROOT if plain else float(c[name])}


class HyperCLOVAX(Granite, kind="hyperclovax"):
    """HyperCLOVA X SEED Think."""

    base = Granite.base | {"norm": {"kind": "rmsnorm", "eps": 1e-5, "placement": "sandwich"}}
    architectures = ("HyperCLOVAXForCausalLM",)
    keys = Granite.keys | {
        **usual(head_dim=None),
        "logits_scaling": number(1.0, "head.scale"),
        "attention_multiplier": replace(
            number(None, "attention.scale"),
            read=_scale,
            write=lambda view: None if view.layer.attention.scale == ROOT else view.get("attention.scale"),
        ),
        "use_post_norm": flag(True, "norm.placement", on="sandwich", off="pre"),
    }
    tensors = like.tensors(like.LLAMA | {"attention_outer": "post_norm1", "ffn_outer": "post_norm2"})
    small = Granite.small | {"head_dim": 12}
