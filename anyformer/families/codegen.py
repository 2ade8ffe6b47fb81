"""CodeGen (Nijkamp et al. 2022): GPT-J with queries, values and keys in one matrix, a quarter of the heads at a time."""

from typing import Any

from anyformer.families.config_values import Values
from anyformer.families.gptj import GPTJ, PARTS, UNREAD
from anyformer.families.statemap import Rule, decoder_map
from anyformer.families.tensor_ops import PerHead

QUARTERS = Rule(
    "transformer.h.{i}.attn.qkv_proj.weight",
    tuple(f"decoder.blocks.{{i}}.attention.body.{name}.weight" for name in "qvk"),
    PerHead(4),
)


class CodeGen(GPTJ, kind="codegen"):
    """CodeGen 350M to 16B."""

    architectures = ("CodeGenForCausalLM",)
    tensors = decoder_map("transformer.h", PARTS, QUARTERS, ignored=(UNREAD,))
    small = {"rotary_dim": 6}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        if c["n_head"] % 4:
            c.refuse("n_head", f"{c['n_head']} heads are not four equal parts, which the public class cuts them into")
        return super().read(c)
