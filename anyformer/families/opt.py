"""OPT (Zhang et al. 2022): learned positions from row 2, ReLU, biases; its 350M model has norms last and a narrow table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anyformer.families.config_keys import activation, flag, number, special_ids, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset
from anyformer.families.gpt2 import BASE
from anyformer.families.statemap import Rule, StateMap, decoder_map
from anyformer.specs.model import ModelSpec


def _preset(
    size: str,
    width: int,
    depth: int,
    heads: int,
    params: int,
    published: str = "",
    note: str = "",
    more: Mapping[str, Any] | None = None,
) -> Preset:
    return Preset(
        name=f"opt-{size}",
        hub=(f"facebook/opt-{size}",) if size != "175b" else (),
        title=f"OPT {size.upper()} (2022)",
        changes={
            "width": width, "depth": depth, "attention.heads": heads, "vocab": 50272, "context": 2048,
            "ids.pad": 1, "ids.bos": 2, "ids.eos": [2],
        } | dict(more or {}),
        params=params,
        published=published or f"only its name, which rounds to {size.upper()}",
        evidence="the publisher's training code" + ("" if size == "175b" else " and one other project"),
        note=note,
    )  # fmt: skip


class OPT(Family, kind="opt"):
    """OPT."""

    base = BASE | {"position": {"kind": "learned", "offset": 2}, "ffn": {"kind": "relu", "bias": True}}
    presets = (
        _preset("125m", 768, 12, 12, 125_239_296, "125,239,296 in a released copy",
                "another library counts 1,536 fewer: two rows of the position table that no token reaches"),
        _preset("350m", 1024, 24, 16, 331_196_416, "only its name, which says 350M",
                "331M: a table 512 wide with projections in and out, norms last and none at the end",
                {"embed.width": 512, "norm.placement": "post"}),
        _preset("1.3b", 2048, 24, 32, 1_315_758_080,
                "1,315,753,984, recorded by another library without two rows of the position table"),
        _preset("2.7b", 2560, 32, 32, 2_651_596_800),
        _preset("6.7b", 4096, 32, 32, 6_658_473_984),
        _preset("13b", 5120, 40, 40, 12_853_473_280),
        _preset("30b", 7168, 48, 56, 29_974_540_288),
        _preset("66b", 9216, 64, 72, 65_719_701_504),
        _preset("175b", 12288, 96, 96, 174_604_468_224, note="norms come first, as in all sizes but 350M"),
    )  # fmt: skip
    architectures = ("OPTForCausalLM",)
    model_type = "opt"
    keys = special_ids(pad=1, bos=2, eos=2) | {
        "vocab_size": whole(50272, "vocab"),
        "hidden_size": whole(768, "width"),
        "num_hidden_layers": whole(12, "depth"),
        "ffn_dim": whole(3072, "ffn.width"),
        "max_position_embeddings": whole(2048, "context"),
        "do_layer_norm_before": flag(True),
        "_remove_final_layer_norm": flag(False),
        "word_embed_proj_dim": whole(None),
        "dropout": number(0.1, ("block.dropout", "embed.dropout")),
        "attention_dropout": number(0.0, "attention.dropout"),
        # Of no use in the public class, or of use in training only.
        "activation_dropout": number(0.0),
        "layerdrop": number(0.0),
        "num_attention_heads": whole(12, "attention.heads"),
        "activation_function": activation("relu"),
        "init_std": number(0.02, "init.std"),
        "enable_bias": flag(True, ("attention.bias", "ffn.bias")),
        "layer_norm_elementwise_affine": flag(True, "norm.bias"),
        "tie_word_embeddings": flag(True, "head.tied"),
    }
    small = {
        "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "ffn_dim": 40, "max_position_embeddings": 64,
        "num_attention_heads": 4, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        narrow, before = c["word_embed_proj_dim"], c["do_layer_norm_before"]
        if not c["tie_word_embeddings"] and narrow not in (None, c["hidden_size"]):
            c.refuse("tie_word_embeddings", "false goes with a table as wide as the model only")
        return super().read(c) | {
            "embed.width": None if narrow == c["hidden_size"] else narrow,
            "norm.gain": "weight" if c["layer_norm_elementwise_affine"] else "none",
            "norm.placement": "pre" if before else "post",
            "norm.final": False if before and c["_remove_final_layer_norm"] else None,
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        stack = spec.stacks[-1]
        before = stack.layers[0].norm.of_attention() == "pre"
        return super().write(spec) | {
            "do_layer_norm_before": before,
            "_remove_final_layer_norm": before and not stack.final_norm,
            "word_embed_proj_dim": spec.embed_width,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        slot = "inner" if spec.stacks[-1].layers[0].norm.of_attention() == "pre" else "after"
        norms = {f"attention_{slot}": "self_attn_layer_norm", f"ffn_{slot}": "final_layer_norm"}
        found = decoder_map(
            "model.decoder",
            "layers",
            {name: f"self_attn.{name}_proj" for name in "qkv"}
            | {"o": "self_attn.out_proj", "up": "fc1", "down": "fc2"}
            | norms,
            Rule("model.decoder.project_in.weight", "embed.project.weight"),
            Rule("model.decoder.project_out.weight", "head.project.weight"),
            tokens="embed_tokens",
            positions="embed_positions",
            final="final_layer_norm",
        )
        return replace(found, prefix="model.")
