"""ViT (Dosovitskiy et al. 2020): an encoder of image patches with learned positions, answering from its first token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Key, Values, activation_of, flag, number, plain_ffn, table, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import Rule, Shaped, StateMap
from anyformer.specs.embed_head import PatchEmbed, SequenceHead
from anyformer.specs.model import ModelSpec

PARTS = {
    "layernorm_before": ("layernorm_before", "attention.inner"),
    "attention.attention.query": ("attention.q_proj", "attention.body.q"),
    "attention.attention.key": ("attention.k_proj", "attention.body.k"),
    "attention.attention.value": ("attention.v_proj", "attention.body.v"),
    "attention.output.dense": ("attention.o_proj", "attention.body.o"),
    "layernorm_after": ("layernorm_after", "ffn.inner"),
    "intermediate.dense": ("mlp.fc1", "ffn.body.up"),
    "output.dense": ("mlp.fc2", "ffn.body.down"),
}
"""Name in files -> name in memory, and ours."""


def _side(default: int) -> Key:
    """A side of a square, in pixels."""
    side = whole(default)
    pair = "a whole number, or twice the same one"
    return Key(
        what=pair,
        fits=lambda value: (
            side.fits(value)
            or (isinstance(value, list) and len(value) == 2 and value[0] == value[1] and side.fits(value[0]))
        ),
        default=default,
    )


def _labels(c: Values) -> int:
    named, count = c["id2label"], c["num_labels"]
    if named is not None and count not in (None, len(named)):
        c.refuse("num_labels", f"{count} is not the number of names in id2label, {len(named)}")
    return len(named) if named is not None else 2 if count is None else count


def _preset(size: str, width: int, depth: int, heads: int, params: int, published: str) -> Preset:
    return Preset(
        name=f"vit-{size.lower()}-16", also=(f"vit-{size.lower()}/16",), title=f"ViT-{size}/16 (2020)",
        changes={"width": width, "depth": depth, "attention.heads": heads, "context": 197},
        params=params, published=published,
        evidence="the publisher's code; the count of the backbone was recorded by another library",
        note="eps 1e-12 is that of the public class; the publisher's code has 1e-6",
    )  # fmt: skip


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
        "init": {"kind": "normal", "std": 0.02},
    }
    presets = (
        _preset("B", 768, 12, 12, 86_567_656, "85,798,656 without the classifier, which adds 769,000"),
        _preset("L", 1024, 24, 16, 304_326_632, "303,301,632 without the classifier, which adds 1,025,000"),
    )
    architectures = ("ViTForImageClassification",)
    model_type = "vit"
    keys = {
        "hidden_size": whole(768),
        "num_hidden_layers": whole(12),
        "num_attention_heads": whole(12),
        "intermediate_size": whole(3072),
        "hidden_act": text("gelu"),
        "hidden_dropout_prob": number(0.0),
        "attention_probs_dropout_prob": number(0.0),
        "initializer_range": number(0.02),
        "layer_norm_eps": number(1e-12),
        "image_size": _side(224),
        "patch_size": _side(16),
        "num_channels": whole(3),
        "qkv_bias": flag(True),
        "num_labels": whole(None),
        "id2label": table(),
        # Of heads that are no part of this.
        "encoder_stride": whole(16),
        "pooler_output_size": whole(None),
        "pooler_act": text("tanh"),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        image, patch = (n[0] if isinstance(n, list) else n for n in (c["image_size"], c["patch_size"]))
        return {
            "vocab": 0,
            "width": c["hidden_size"],
            "depth": c["num_hidden_layers"],
            "context": (image // max(patch, 1)) ** 2 + 1,
            "embed.image": image,
            "embed.patch": patch,
            "embed.channels": c["num_channels"],
            "embed.dropout": float(c["hidden_dropout_prob"]),
            "attention.heads": c["num_attention_heads"],
            "attention.bias": "qkvo" if c["qkv_bias"] else "o",
            "attention.dropout": float(c["attention_probs_dropout_prob"]),
            "block.dropout": float(c["hidden_dropout_prob"]),
            "ffn.kind": plain_ffn(c, "hidden_act"),
            "ffn.bias": True,
            "ffn.width": c["intermediate_size"],
            "norm.eps": float(c["layer_norm_eps"]),
            "head.labels": _labels(c),
            "init.std": float(c["initializer_range"]),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack, embed, head = spec.stacks[-1], spec.embed, spec.head
        layer = stack.layers[0]
        if not isinstance(embed, PatchEmbed) or not isinstance(head, SequenceHead):
            raise TypeError("write() is for a spec with the ends of the family's base")
        names = [f"LABEL_{i}" for i in range(head.labels)]
        return {
            "hidden_size": spec.width,
            "num_hidden_layers": stack.depth,
            "num_attention_heads": layer.attention.heads,
            "intermediate_size": spec.dims(layer, stack).ffn_width,
            "hidden_act": activation_of(layer.ffn, gated=False),
            "hidden_dropout_prob": layer.block.dropout,
            "attention_probs_dropout_prob": layer.attention.dropout,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "layer_norm_eps": layer.norm.leaf.eps,
            "image_size": embed.image,
            "patch_size": embed.patch,
            "num_channels": embed.channels,
            "qkv_bias": "q" in layer.attention.bias,
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        embed = spec.embed
        if not isinstance(embed, PatchEmbed):
            return StateMap(rules=())
        patch = (spec.width, embed.channels, embed.patch, embed.patch)
        front, layer = "vit.embeddings", "vit.encoder.layer.{i}"
        return StateMap(
            rules=(
                Rule(f"{front}.cls_token", "embed.class_token", Shaped((1, 1, spec.width))),
                Rule(f"{front}.patch_embeddings.projection.weight", "embed.patches.weight", Shaped(patch)),
                Rule(f"{front}.patch_embeddings.projection.bias", "embed.patches.bias"),
                Rule(
                    f"{front}.position_embeddings", "encoder.positions.0.table", Shaped((1, spec.context, spec.width))
                ),
                *(
                    Rule(f"{layer}.{name}.{{p}}", f"encoder.blocks.{{i}}.{own}.{{p}}")
                    for name, (_, own) in PARTS.items()
                ),
                Rule("vit.layernorm.{p}", "encoder.final_norm.{p}"),
                Rule("classifier.{p}", "head.answer.{p}"),
            ),
            ignored=(r"(vit\.)?pooler\.dense\.(weight|bias)", r"(vit\.)?embeddings\.mask_token"),
            prefix="vit.",
            forms={
                rf"^(vit\.)?layers\.(\d+)\.{inside}\.": rf"vit.encoder.layer.\2.{name}."
                for name, (inside, _) in PARTS.items()
            },
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
            "image_size": 20, "patch_size": 5, "num_channels": 2, "num_labels": 7, "layer_norm_eps": 1e-3,
        }  # fmt: skip
