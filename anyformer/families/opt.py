"""OPT (Zhang et al. 2022): learned positions from row 2, ReLU, biases; its 350M model has norms last and a narrow table."""

from dataclasses import replace
from typing import Any

from anyformer.families.config_keys import activation, each, embed_width, flag, number, usual
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset, series, sizes
from anyformer.families.gpt2 import BASE
from anyformer.families.statemap import Rule, StateMap, decoder_map
from anyformer.families.tasks import DECODER, Task
from anyformer.specs.model import ModelSpec

PARTS = {
    **{name: f"self_attn.{name}_proj" for name in "qkv"},
    **{"o": "self_attn.out_proj", "up": "fc1", "down": "fc2", "tokens": "embed_tokens"},
}
"""Parts of a block, as all of fairseq's decoders have them, and the table of tokens."""


def norms(slot: str) -> dict[str, str]:
    """The norms of a block: before its branches (inner) or behind the additions (after)."""
    return {f"attention_{slot}": "self_attn_layer_norm", f"ffn_{slot}": "final_layer_norm"}


SHARED: dict[str, Any] = {"vocab": 50272, "context": 2048, "ids.pad": 1, "ids.bos": 2, "ids.eos": [2]}


class OPT(Family, kind="opt"):
    """OPT."""

    base = BASE | {"position": {"kind": "learned", "offset": 2}, "ffn": {"kind": "relu", "bias": True}}
    presets = (
        *series("opt-{}", "OPT {SIZE} (2022)",
            ("125m", sizes(768, 12, 12), 125_239_296, "125,239,296 in a released copy",
             "another library counts 1,536 fewer: two rows of the position table that no token reaches"),
            ("350m", sizes(1024, 24, 16) | {"embed.width": 512, "norm.placement": "post"}, 331_196_416,
             "only its name, which says 350M",
             "331M: a table 512 wide with projections in and out, norms last and none at the end"),
            ("1.3b", sizes(2048, 24, 32), 1_315_758_080,
             "1,315,753,984, recorded by another library without two rows of the position table"),
            ("2.7b", sizes(2560, 32, 32), 2_651_596_800),
            ("6.7b", sizes(4096, 32, 32), 6_658_473_984),
            ("13b", sizes(5120, 40, 40), 12_853_473_280),
            ("30b", sizes(7168, 48, 56), 29_974_540_288),
            ("66b", sizes(9216, 64, 72), 65_719_701_504),
            changes=SHARED, hub=("facebook/opt-{}",), published="only its name, which rounds to {SIZE}",
            evidence="the publisher's training code and one other project"),
        Preset("opt-175b", "OPT 175B (2022)", sizes(12288, 96, 96) | SHARED, 174_604_468_224,
               published="only its name, which rounds to 175B", evidence="the publisher's training code",
               note="norms come first, as in all sizes but 350M"),
    )  # fmt: skip
    architectures = ("OPTForCausalLM",)
    # The projection out of the body is a layer of our head, where there is one.
    tasks = {
        end: replace(task, tensors={"dense": "model.decoder.project_out", **task.tensors})
        for end, task in DECODER.items()
    }
    keys = {
        **usual(vocab_size=50272, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072),
        **usual(max_position_embeddings=2048, dropout=0.1, attention_dropout=0.0, init_std=0.02),
        **usual(tie_word_embeddings=True, pad_token_id=1, bos_token_id=2, eos_token_id=2),
        "do_layer_norm_before": flag(True),
        "_remove_final_layer_norm": flag(False),
        "word_embed_proj_dim": embed_width(),
        # Of no use in the public class, or of use in training only.
        **each(number(0.0), "activation_dropout", "layerdrop"),
        "activation_function": activation("relu"),
        "enable_bias": flag(True, ("attention.bias", "ffn.bias")),
        "layer_norm_elementwise_affine": flag(True, "norm.bias"),
    }
    small = {"pad_token_id": 1, "bos_token_id": 2}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        before = c["do_layer_norm_before"]
        return super().read(c) | {
            "norm.gain": "weight" if c["layer_norm_elementwise_affine"] else "none",
            "norm.placement": "pre" if before else "post",
            "norm.final": False if before and c["_remove_final_layer_norm"] else None,
        }

    @classmethod
    def with_task(cls, task: Task, c: Values, changes: dict[str, Any]) -> dict[str, Any]:
        found, narrow = super().with_task(task, c, changes), changes["embed.width"]
        dense = {"dense": True, "dense_width": narrow, "dense_bias": False, "activation": "none"}
        return found | ({} if narrow is None else {f"head.{name}": value for name, value in dense.items()})

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        stack = spec.stacks[-1]
        before = stack.layers[0].norm.of_attention() == "pre"
        return super().write(spec) | {
            "do_layer_norm_before": before,
            "_remove_final_layer_norm": before and not stack.norm.has_final(),
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        slot = "inner" if spec.stacks[-1].layers[0].norm.of_attention() == "pre" else "after"
        found = decoder_map(
            "model.decoder.layers",
            PARTS | norms(slot) | {"positions": "embed_positions", "final": "final_layer_norm"},
            Rule("model.decoder.project_in.weight", "embed.project.weight"),
            Rule("model.decoder.project_out.weight", "head.project.weight"),
        )
        return replace(found, prefix="model.")
