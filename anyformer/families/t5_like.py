"""What T5 and its relatives share: the names of their keys and of their tensors."""

from dataclasses import replace
from typing import Any

from anyformer.families import family, tasks
from anyformer.families.config_keys import ACTIVATIONS, GATED, Key, activation, flag, must, read_ids, text, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.model import ModelSpec

BASE: dict[str, Any] = {
    "topology": "encoder-decoder",
    "context": 512,
    "attention": {"heads": 1, "scale": 1.0},
    "norm": {"kind": "rmsnorm", "eps": 1e-6},
    "position": {"kind": "t5", "buckets": 32, "max_distance": 128},
    "init": {"kind": "t5"},
    "loss": {"z": 1e-4},
    "ids": {"pad": 0, "eos": [1], "start": 0},
}


def sizes(width: int, depth: int, heads: int, head_dim: int, ffn: int) -> dict[str, int]:
    """Sizes of a preset as changes; both stacks are equally deep."""
    return family.sizes(width, depth, heads) | {"attention.head_dim": head_dim, "ffn.width": ffn}


FFNS = ACTIVATIONS | {f"gated-{gate}": kind for gate, kind in GATED.items()} | {"gated-gelu": GATED["gelu_new"]}
"""Names of feed-forwards; the gated GELU is the one by tanh."""


def keys(*, vocab: int, ffn: int, depth: int, heads: int, projection: str) -> dict[str, Key]:
    """The keys that all of them have, with the defaults of one public class."""
    return {
        **usual(vocab_size=vocab, d_model=512, d_kv=64, d_ff=ffn, num_layers=depth, num_heads=heads, n_positions=None),
        **usual(layer_norm_epsilon=1e-6, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1),
        **usual(relative_attention_num_buckets=32, relative_attention_max_distance=128),
        **usual(dropout_rate=0.1, initializer_factor=1.0),
        "num_decoder_layers": whole(None),
        "feed_forward_proj": activation(projection, known=FFNS, what="a feed-forward"),
        # What feed_forward_proj says in other words.
        "dense_act_fn": text(None),
        "is_gated_act": flag(False, null=True),
        "is_encoder_decoder": flag(True),
        "is_decoder": must(False),
    }


INSIDE = ("", "transformer.")
"""Where two of its classes have the body."""
TASKS = tasks.BART | {
    tasks.SEQUENCE: replace(tasks.BART[tasks.SEQUENCE], moved=INSIDE),
    tasks.TOKEN: tasks.token(encoder=True, moved=INSIDE),
}


class T5Like(family.Family):
    """What they share beyond their keys. The class without a head is the encoder alone."""

    encodes = True
    written_from = (0, 0)
    tasks = TASKS
    # Heads are narrower than the width, and stacks differ in depth.
    small = {
        "d_kv": 6, "num_layers": 2, "num_decoder_layers": 3, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 14, "eos_token_id": 1, "decoder_start_token_id": 0,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        found, decoder, special = super().read(c), c["num_decoder_layers"], read_ids(c, c["vocab_size"])
        found["context"] = c["n_positions"] or cls.base["context"]
        if c.bare:
            return found | {"topology": "encoder"}
        if not c["is_encoder_decoder"]:
            c.refuse(
                "is_encoder_decoder", "false changes what the model computes in a way that a spec can't say", "true"
            )
        if decoder not in (None, c["num_layers"]):
            found["decoder.depth"] = decoder
        # Every T5 starts with its padding.
        return found | ({"ids.start": special["ids.pad"]} if special["ids.start"] is None else {})

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        two = spec.topology == "encoder-decoder"
        return super().write(spec) | {"num_decoder_layers": spec.stacks[-1].depth, "is_encoder_decoder": two}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        rules = [Rule("shared.weight", "embed.tokens.weight"), Rule("lm_head.weight", "head.weight")]
        gated = len(spec.stacks[0].layers[0].ffn.inputs) > 1
        ffn = {"wi_0": "gate", "wi_1": "up", "wo": "down"} if gated else {"wi": "up", "wo": "down"}
        for stack, cross in (("encoder", {}), ("decoder", {"cross": "EncDecAttention"})):
            # A bias table stands in every layer that has its own, or in the first for all.
            bias = "layer.0.SelfAttention.relative_attention_bias.weight"
            rules.append(Rule(f"{stack}.block.0.{bias}", f"{stack}.positions.0.table"))
            rules.append(Rule(f"{stack}.block.{{i}}.{bias}", f"{stack}.blocks.{{i}}.attention.body.position.table"))
            rules.append(Rule(f"{stack}.final_layer_norm.weight", f"{stack}.final_norm.weight"))
            branches = {"attention": "SelfAttention", **cross, "ffn": "DenseReluDense"}
            for place, (branch, body) in enumerate(branches.items()):
                theirs, ours = f"{stack}.block.{{i}}.layer.{place}", f"{stack}.blocks.{{i}}.{branch}"
                names = ffn if branch == "ffn" else {name: name for name in "qkvo"}
                pairs = {f"{body}.{name}": f"body.{own}" for name, own in names.items()} | {"layer_norm": "inner"}
                rules += [Rule(f"{theirs}.{name}.weight", f"{ours}.{own}.weight") for name, own in pairs.items()]
        tables = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        return StateMap(
            rules=tuple(rules),
            copies=dict.fromkeys(tables, "shared.weight"),
            # A bias of the first cross-attention that the first release stored and no class reads.
            ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
            if spec.topology == "encoder-decoder"
            else (r"decoder\..*",),
        )
