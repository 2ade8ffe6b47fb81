"""ViT (Dosovitskiy et al. 2020): an encoder of image patches with learned positions, answering from its first token."""

from dataclasses import replace
from typing import Any

from anyformer.families.config_keys import TABLE, Key, activation, are_whole, flag, is_whole, text, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, series, sizes
from anyformer.families.statemap import Rule, StateMap, block_rules
from anyformer.families.tasks import read_labels, write_labels
from anyformer.families.tensor_ops import Shaped
from anyformer.specs.embed_head import PatchEmbed
from anyformer.specs.model import ModelSpec

FILES = {
    **{"q": "attention.attention.query", "k": "attention.attention.key", "v": "attention.attention.value"},
    **{"o": "attention.output.dense", "up": "intermediate.dense", "down": "output.dense"},
    **{"attention_inner": "layernorm_before", "ffn_inner": "layernorm_after"},
}
MEMORY = {name: f"attention.{name}_proj" for name in "qkvo"} | {"up": "mlp.fc1", "down": "mlp.fc2"}
"""What the class calls parts in files, and in memory where that differs."""


def _side(default: int, sets: str) -> Key:
    """A side of a square, in pixels."""

    def fits(value: Any) -> bool:
        return is_whole(value) or (are_whole(value) and len(value) == 2 and value[0] == value[1])

    return replace(
        whole(default, sets),
        what="a whole number, or twice the same one",
        fits=fits,
        read=lambda c, name: {sets: c[name][0] if isinstance(c[name], list) else c[name]},
    )


class ViT(Family, kind="vit"):
    """ViT with a linear classifier on its class token. Released files of the backbone alone have a pooler, left out."""

    base = {
        "topology": "encoder",
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-12},
        "position": {"kind": "learned"},
        "ffn": {"kind": "gelu", "bias": True},
        "embed": {"kind": "patches", "image": 224, "patch": 16},
        "head": {"kind": "sequence", "labels": 1000},
    }
    presets = series("vit-{}-16", "ViT-{SIZE}/16 (2020)",
        ("b", sizes(768, 12, 12), 86_567_656, "85,798,656 without the classifier, which adds 769,000"),
        ("l", sizes(1024, 24, 16), 304_326_632, "303,301,632 without the classifier, which adds 1,025,000"),
        changes={"context": 197}, also=("vit-{}/16",),
        evidence="the publisher's code; the count of the backbone was recorded by another library",
        note="eps 1e-12 is that of the public class; the publisher's code has 1e-6",
    )  # fmt: skip
    architectures = ("ViTForImageClassification",)
    keys = {
        **usual(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
        **usual(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        **usual(initializer_range=0.02, layer_norm_eps=1e-12),
        "hidden_act": activation("gelu", more={"ffn.bias": True}),
        "image_size": _side(224, "embed.image"),
        "patch_size": _side(16, "embed.patch"),
        "num_channels": whole(3, "embed.channels"),
        "qkv_bias": flag(True, "attention.bias", off="o"),
        "num_labels": whole(None),
        "id2label": TABLE,
        # Of heads that are no part of this.
        "encoder_stride": whole(16),
        "pooler_output_size": whole(None),
        "pooler_act": text("tanh"),
    }
    small = {"image_size": 20, "patch_size": 5, "num_channels": 2, "num_labels": 7}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        found = super().read(c)
        tokens = (found["embed.image"] // max(found["embed.patch"], 1)) ** 2 + 1
        count, names = read_labels(c)
        return found | {"vocab": 0, "context": tokens, "head.labels": count, "head.names": list(names)}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        head = spec.head
        return super().write(spec) | write_labels(getattr(head, "names", ()), getattr(head, "labels", 0))

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        embed = spec.embed
        if not isinstance(embed, PatchEmbed):
            return StateMap(rules=())
        patch, table = (spec.width, embed.channels, embed.patch, embed.patch), Shaped((1, spec.context, spec.width))
        front = "vit.embeddings"
        return StateMap(
            rules=(
                Rule(f"{front}.cls_token", "embed.class_token", Shaped((1, 1, spec.width))),
                Rule(f"{front}.patch_embeddings.projection.weight", "embed.patches.weight", Shaped(patch)),
                Rule(f"{front}.patch_embeddings.projection.bias", "embed.patches.bias"),
                Rule(f"{front}.position_embeddings", "encoder.positions.0.table", table),
                *block_rules("vit.encoder.layer.{i}", FILES, "encoder.blocks.{i}"),
                Rule("vit.layernorm.{p}", "encoder.final_norm.{p}"),
                Rule("classifier.{p}", "head.answer.{p}"),
            ),
            ignored=(r"(vit\.)?pooler\.dense\.(weight|bias)", r"(vit\.)?embeddings\.mask_token"),
            prefix="vit.",
            forms={
                rf"^(vit\.)?layers\.(\d+)\.{MEMORY.get(part, name)}\.": rf"vit.encoder.layer.\2.{name}."
                for part, name in FILES.items()
            },
        )
