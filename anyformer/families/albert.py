"""ALBERT (Lan et al. 2019): BERT whose layers share their parameters, with a narrow table of tokens."""

from dataclasses import replace
from typing import Any

from anyformer.families import bert_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import each, embed_width, must, number, required, whole
from anyformer.families.config_values import Values
from anyformer.families.family import series, sizes
from anyformer.families.statemap import Rule, StateMap, block_rules
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import Stack

PARTS = {
    "q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "attention.dense",
    "attention_after": "attention.LayerNorm", "up": "ffn", "down": "ffn_output", "ffn_after": "full_layer_layer_norm",
}  # fmt: skip


def inner_layers(stack: Stack) -> int:
    """How many layers stand in a group: after them its first one runs again."""
    return stack.uses.index(0, 1) if 0 in stack.uses[1:] else 1


class Albert(like.BertLike, kind="albert"):
    """ALBERT with its masked-LM head. Its pooler and its sentence-order head are no part of that, and are left out."""

    base = like.BASE | {
        "vocab": 30000,
        "context": 512,
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "embed": {"kind": "tokens", "token_types": 2, "width": 128, "project": "last", "project_bias": True},
        "head": like.BASE["head"] | {"activation": "gelu_tanh"},
        "layers": {"shared": "all"},
        "ids": {"pad": 0, "bos": 2, "eos": [3]},
    }
    presets = series("albert-{}-v2", "ALBERT {}, version 2 (2019)",
        ("base", sizes(768, 12, 12), 11_221_680, "12M"),
        ("large", sizes(1024, 24, 16), 16_795_824, "18M"),
        ("xlarge", sizes(2048, 24, 16), 54_821_040, "60M"),
        ("xxlarge", sizes(4096, 12, 64), 206_368_944, "235M"),
        hub=("albert/albert-{}-v2",),
        evidence="sizes from the paper, table 1, the rest from the public class",
        note="with the masked-LM head and without the pooler; shared parameters are counted once",
    )  # fmt: skip
    architectures = ("AlbertForMaskedLM", "AlbertForPreTraining")
    tasks = {
        **like.BertLike.tasks,
        tasks.SEQUENCE: tasks.sequence("classifier", "{body}.pooler"),
        tasks.CHOICE: tasks.choice("classifier", "{body}.pooler"),
    }
    body, head = "albert", ("predictions", "dense", "LayerNorm")
    unread = (r"(albert\.)?pooler\.(weight|bias)", r"sop_classifier\.classifier\.(weight|bias)")
    keys = like.keys(
        vocab=30000, context=512, act="gelu_new", hidden_size=4096, num_attention_heads=64, intermediate_size=16384,
        bos_token_id=2, eos_token_id=3,
    ) | {
        **each(number(0.0, "attention.dropout"), "attention_probs_dropout_prob"),
        "hidden_dropout_prob": number(0.0, ("block.dropout", "embed.dropout")),
        "embedding_size": replace(embed_width(), default=128),
        "num_hidden_groups": whole(1),
        "inner_group_num": whole(1),
        "tie_word_embeddings": required(True, "false goes with a table as wide as the model only"),
        # What released files say of other architectures that were tried.
        "net_structure_type": must(0),
        "num_memory_blocks": must(0),
        "gap_size": must(0),
        "down_scale_factor": must(1),
        "layers_to_keep": must([]),
        "classifier_dropout_prob": number(0.1),
    }  # fmt: skip
    # Groups of two layers, of which the first is run twice and the second once.
    small = {"embedding_size": 20, "num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        rounds, groups, inner = c["num_hidden_layers"], c["num_hidden_groups"], c["inner_group_num"]
        if c["embedding_size"] == c["hidden_size"]:
            c.refuse(
                "embedding_size", "is the model's width, and the public class projects even then", "another number"
            )
        for name, value in (("num_hidden_groups", groups), ("inner_group_num", inner)):
            if value < 1:
                c.refuse(name, f"{value} is not at least 1")
        if groups > rounds:
            c.refuse("num_hidden_groups", f"{groups} are more than {rounds} layers, so that some would never be run")
        elif groups == rounds and inner > 1:
            c.refuse("inner_group_num", f"{inner} with as many groups as layers is a model that shares nothing", "1")
        if c.problems.found:
            return super().read(c)
        chosen = [int(i / (rounds / groups)) for i in range(rounds)]
        names = [f"group{group}_{layer}" for group in chosen for layer in range(inner)]
        shared: str | list[str] = "all" if groups == inner == 1 else names if groups < rounds else ""
        return super().read(c) | {"depth": rounds * inner, "layers.shared": shared}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        stack = spec.stacks[-1]
        inner = inner_layers(stack)
        counts = {"num_hidden_layers": stack.depth // inner, "num_hidden_groups": len(stack.blocks) // inner}
        return super().write(spec) | counts | {"inner_group_num": inner}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        stack, found = spec.stacks[-1], super().weights(spec)
        rules = [rule for rule in found.rules if "{i}" not in rule.theirs]
        for i in range(len(stack.blocks)):
            group, layer = divmod(i, inner_layers(stack))
            theirs = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{layer}"
            rules += block_rules(theirs, PARTS, f"{stack.name}.blocks.{i}")
        project = Rule("albert.encoder.embedding_hidden_mapping_in.{p}", f"{stack.name}.project.{{p}}")
        return replace(found, rules=(*rules, project))
