"""Longformer (Beltagy et al. 2020): RoBERTa with windows, and global tokens that have projections of their own."""

import re
from typing import Any

from anyformer.families import bert_like as like
from anyformer.families.config_keys import Key, are_whole, flag, must, whole
from anyformer.families.config_values import Values
from anyformer.families.family import series, sizes
from anyformer.families.key_groups import arranged
from anyformer.families.roberta import Roberta, RobertaLike
from anyformer.families.statemap import Rule, block_rules
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST, Stack, pattern_of

GLOBAL = {"global_q": "query_global", "global_k": "key_global", "global_v": "value_global"}
"""Projections of global tokens."""
WINDOWS = Key(what="a whole number, or a list of one for each layer", fits=are_whole, default=512)
"""How many keys around itself a token sees in every layer, or in each."""


def local(window: int) -> str:
    """The pattern of a layer: half of the window on each side, and whatever was marked as global."""
    return f"symmetric_window({window // 2}) | global_tokens(marks=True)"


def read_windows(c: Values, depth: int) -> dict[str, Any]:
    """The windows of a stack as changes of it."""
    given = c["attention_window"]
    listed: list[int] = given if isinstance(given, list) else [given] * min(depth, DEEPEST)
    if len(listed) != min(depth, DEEPEST):
        c.problems.add("attention_window", f"lists {len(listed)} layers, but there are {depth}")
    wrong = [n for n in listed if n < 2 or n % 2]
    if wrong:
        c.refuse("attention_window", f"{wrong[0]} can't be halved into two sides", "even and above 0")
    return arranged([f"w{n}" for n in listed], {f"w{n}": {"attention.pattern": local(n)} for n in listed})


def write_windows(stack: Stack) -> list[int]:
    """The windows of a stack; of a layer that has none, the public default, which reading back shows."""
    found = [re.match(r"symmetric_window\((\d+)\)", str(pattern_of(stack, layer))) for layer in stack.layers]
    return [2 * int(match[1]) if match else 512 for match in found]


class Longformer(RobertaLike, kind="longformer"):
    """Longformer with its masked-LM head: an encoder. The causal, dilated model of the paper was not released."""

    base = dict(Roberta.base) | {"context": 4096, "attention": {"heads": 1, "bias": "qkvo", "global_projections": True}}
    presets = series("longformer-{}", "Longformer {} (2020)",
        ("base", sizes(768, 12, 12), 148_711_257, "about 149M, as is generally known; 148,659,456 without the head"),
        ("large", sizes(1024, 24, 16), 434_653_273, "about 435M, as is generally known; 434,600,960 without the head"),
        changes={"attention.pattern": local(512)},
        also=("longformer-{}-4096",), hub=("allenai/longformer-{}-4096",),
        evidence="the window from the public class, names from the publisher's notes; other sizes are those of RoBERTa, "
        "from which it was trained on",
        note="with the masked-LM head and without the pooler; the table of positions has 4098 rows; tokens are global "
        "where global_mask says so",
    )  # fmt: skip
    architectures = ("LongformerForMaskedLM",)
    body = "longformer"
    keys = like.keys(vocab=30522, context=512, bos_token_id=0, eos_token_id=2) | {
        "attention_window": WINDOWS,
        "pad_token_id": whole(1),
        # How chunks are cut for an export; what is computed stays the same.
        "onnx_export": flag(False),
        # Choices of the publisher's first code, which the public class does not have.
        "attention_mode": must("longformer"),
        "ignore_attention_mask": must(False),
    }
    small = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "attention_window": [4, 8, 4]}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        return super().read(c) | read_windows(c, c["num_hidden_layers"])

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | {"attention_window": write_windows(spec.stacks[-1])}

    @classmethod
    def rules(cls, spec: ModelSpec) -> tuple[Rule, ...]:
        ours = f"{spec.stacks[-1].name}.blocks.{{i}}"
        return block_rules("longformer.encoder.layer.{i}.attention.self", GLOBAL, ours)
