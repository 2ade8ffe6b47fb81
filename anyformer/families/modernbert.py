"""ModernBERT (Warner et al. 2024): an encoder with RoPE, gated feed-forwards, and a window in two of three layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from anyformer.families import key_groups, tasks
from anyformer.families.config_keys import ACTIVATIONS, TEXTS, activation, each, flag, must, number, text, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, series, sizes
from anyformer.families.statemap import Rule, StateMap, block_rules
from anyformer.specs.model import ModelSpec

THETAS = {key_groups.FULL: ("global_rope_theta", 160000.0), key_groups.LOCAL: ("local_rope_theta", 10000.0)}
FIRST = {"norm": {"attention_placement": "none"}}
"""The first layer follows the norm of the embeddings, and has none of its own before attention."""

BASE: dict[str, Any] = {
    "norm": {"kind": "layernorm", "eps": 1e-5, "bias": False, "embedding": True},
    "position": {"kind": "rope"},
    "ffn": {"kind": "geglu", "form": "erf"},
    "head": {"kind": "lm", "tied": True, "bias": True, "transform": True, "transform_bias": False},
    # Published with all draws cut at two standard deviations.
    "init": {"kind": "gpt2", "std": 0.02},
}
NAMES = {ours["kind"]: name for name, ours in reversed(ACTIVATIONS.items())}
"""Our ungated activation -> its first published name."""
KEYS = {
    **key_groups.ROPE_KEYS,
    **usual(vocab_size=50368, hidden_size=768, intermediate_size=1152, num_hidden_layers=22, num_attention_heads=12),
    **usual(max_position_embeddings=8192, initializer_range=0.02, norm_eps=1e-5, attention_bias=False, mlp_bias=False),
    **usual(attention_dropout=0.0, embedding_dropout=0.0, mlp_dropout=0.0, tie_word_embeddings=True),
    **usual(pad_token_id=50283, eos_token_id=50282, bos_token_id=50281, cls_token_id=50281),
    "hidden_activation": activation("gelu", gated=True),
    "initializer_cutoff_factor": number(2.0, null=True),
    "norm_bias": flag(False, "norm.bias"),
    "layer_types": TEXTS,
    "global_attn_every_n_layers": whole(3),
    **each(number(None), "global_rope_theta", "local_rope_theta"),
    # It would count for both kinds of layers; the tables in rope_parameters say more.
    "rope_scaling": must(None),
    "local_attention": whole(128),
    # What local_attention says, halved.
    "sliding_window": whole(None),
    "decoder_bias": flag(True, "head.bias"),
    "classifier_bias": flag(False, "head.transform_bias"),
    "classifier_activation": replace(
        text("gelu"),
        sets=("head.activation",),
        read=lambda c, name: {"head.activation": activation("gelu").read(c, name)["ffn.kind"]},
        # GELU if there is no such name, which reading back will then name.
        write=lambda view: NAMES.get(view.get("head.activation"), "gelu"),
    ),
    # No logit depends on these.
    "classifier_pooling": text("cls"),
    **each(flag(False), "deterministic_flash_attn", "sparse_prediction", "repad_logits_with_grad"),
    "sparse_pred_ignore_index": whole(-100),
    "reference_compile": flag(False, null=True),
    "layer_norm_eps": number(1e-5),
    "position_embedding_type": must("absolute"),
}


def layers(names: list[str], window: str, thetas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Layers by name as changes of a spec; a window and a RoPE go with the kind of layer."""
    own = {
        "local": {"attention.pattern": window} | dict(thetas[key_groups.LOCAL]),
        "global": dict(thetas[key_groups.FULL]),
    }
    found = key_groups.arranged(names, own)
    return found | {"layers": dict(found.get("layers", {})) | {"0": FIRST}}


PARTS = {"o": "attn.Wo", "gate_up": "mlp.Wi", "down": "mlp.Wo", "attention_inner": "attn_norm", "ffn_inner": "mlp_norm"}


def heads(**ends: tasks.Task) -> dict[str, tasks.Task]:
    """Tasks behind the layer that its masked-LM head has too."""
    dense = {"dense": "head.dense", "norm": "head.norm", "answer": "classifier"}
    bias = {"classifier_bias": flag(False, "head.dense_bias")}
    return {
        end: replace(
            task, tensors=dense, kept=("activation",), head={"dense": True, "norm": True} | dict(task.head),
            keys=bias | dict(task.keys),
        )
        for end, task in ends.items()
    }  # fmt: skip


POOLING = tasks.pooling({"cls": "first", "mean": "mean"})


class ModernBertLike(Family):
    """What its encoder and its decoder share."""

    written_from = (-1, -1)
    keys = KEYS
    small = {"num_hidden_layers": 4, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2}
    window: ClassVar[str]
    """The pattern of a layer with a window, by half of its width."""
    head: ClassVar[str] = "head"
    """What files call the layer before the output matrix."""
    projections: ClassVar[Mapping[str, str]] = {"qkv": "attn.Wqkv"}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        every = c["global_attn_every_n_layers"]
        if every < 1:
            c.refuse("global_attn_every_n_layers", f"{every} is not at least 1")
        for key, _ in THETAS.values():
            if key in c.given and c[key] is None:
                c.problems.add(key, "None is not a finite number")
        types = c["layer_types"] or key_groups.each_layer(
            c, lambda i: key_groups.LOCAL if i % max(every, 1) else key_groups.FULL
        )
        ropes = key_groups.read_ropes(c, THETAS)
        names = key_groups.checked(c, types, c["local_attention"])
        pattern = cls.window.format(c["local_attention"] // 2)
        return super().read(c) | (layers(names, pattern, ropes) if ropes else {})

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        half, types = key_groups.window_of(spec)
        ropes = key_groups.write_ropes(spec, [key for key, _ in THETAS.values()])
        own = {"layer_types": types, "local_attention": 128 if half is None else 2 * half, "rope_scaling": None}
        return super().write(spec) | ropes | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        stack, table = spec.stacks[-1].name, "model.embeddings.tok_embeddings.weight"
        return StateMap(
            rules=(
                Rule(table, "embed.tokens.weight"),
                Rule("model.embeddings.norm.{p}", f"{stack}.embedding_norm.{{p}}"),
                *block_rules("model.layers.{i}", {**PARTS, **cls.projections}, f"{stack}.blocks.{{i}}"),
                Rule("model.final_norm.{p}", f"{stack}.final_norm.{{p}}"),
                Rule(f"{cls.head}.dense.{{p}}", "head.dense.{p}"),
                Rule(f"{cls.head}.norm.{{p}}", "head.norm.{p}"),
                Rule("decoder.{p}", "head.{p}"),
            ),
            copies={"decoder.weight": table},
            prefix="model.",
        )


def _sizes(width: int, depth: int, heads: int, ffn: int) -> dict[str, Any]:
    kinds = {key_groups.FULL: {"position.theta": 160000.0}, key_groups.LOCAL: {"position.theta": 10000.0}}
    names = ["local" if i % 3 else "global" for i in range(depth)]
    return sizes(width, depth, heads) | {"ffn.width": ffn} | layers(names, "symmetric_window(64)", kinds)


class ModernBert(ModernBertLike, kind="modernbert"):
    """ModernBERT with its masked-LM head."""

    base = {"topology": "encoder"} | BASE
    presets = series("modernbert-{}", "ModernBERT {} (2024)",
        ("base", _sizes(768, 22, 12, 1152), 149_655_232, "149,014,272 in a copy of the body; its card rounds to 149M",
         "", "the defaults of the public class; the count of the body in a released copy"),
        ("large", _sizes(1024, 28, 16, 2624), 395_881_664, "its card is generally known to round to 395M, which was "
         "not read again", "", "two copies of the released config"),
        changes={"vocab": 50368, "context": 8192, "ids.pad": 50283, "ids.eos": [50282], "ids.bos": 50281},
        hub=("answerdotai/ModernBERT-{}",),
        note="with the masked-LM head; a window of 128 means 64 tokens on either side",
    )  # fmt: skip
    architectures = ("ModernBertForMaskedLM",)
    tasks = heads(
        SequenceClassification=tasks.Task(kind="sequence", tensors={}, keys={"classifier_pooling": POOLING}),
        TokenClassification=tasks.token(),
        QuestionAnswering=tasks.answer(),
        MultipleChoice=tasks.Task(kind="choice", tensors={}, keys={"classifier_pooling": POOLING}),
    )
    window = "symmetric_window({})"
