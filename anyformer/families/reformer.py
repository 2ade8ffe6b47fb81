"""Reformer (Kitaev et al. 2020): reversible blocks, LSH attention and local chunks in turn, axial positions."""

from collections.abc import Mapping
from typing import Any

from anyformer.families import config_keys
from anyformer.families.config_keys import TEXTS, Key, activation, each, flag, must, number, required, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset
from anyformer.families.key_groups import arranged
from anyformer.families.statemap import Rule, StateMap, block_rules
from anyformer.families.tasks import ANSWER, answer
from anyformer.families.tensor_ops import Shaped
from anyformer.parts.mixers.lsh import LSH
from anyformer.parts.patterns.chunked import Chunked
from anyformer.parts.positions.axial import Axial
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import pattern_of

LAYER = "reformer.encoder.layers.{i}"
PARTS = {
    "attention_inner": "attention.layer_norm",
    "o": "attention.output.dense",
    "ffn_inner": "feed_forward.layer_norm",
    "up": "feed_forward.dense.dense",
    "down": "feed_forward.output.dense",
}
EMBEDDED = "reformer.embeddings.position_embeddings"


def _is_counts(value: Any) -> bool:
    return config_keys.are_whole(value) and all(n >= 0 for n in (value if isinstance(value, list) else [value]))


def _pair(*default: int) -> Key:
    def fits(value: Any) -> bool:
        return isinstance(value, list | tuple) and len(value) == 2 and _is_counts(list(value))

    return Key(what="a list of two whole numbers", fits=fits, default=list(default))


KEYS: dict[str, Key] = {
    **usual(vocab_size=320, hidden_size=256, num_attention_heads=12, feed_forward_size=512, layer_norm_eps=1e-12),
    **usual(initializer_range=0.02, max_position_embeddings=4096, pad_token_id=0, eos_token_id=2),
    "attention_head_size": whole(64, "attention.head_dim"),
    "attn_layers": TEXTS,
    # Always as many as attn_layers lists.
    "num_hidden_layers": whole(None),
    "hidden_act": activation("relu", more={"ffn.bias": True}),
    "axial_norm_std": number(1.0),
    "axial_pos_embds": flag(True),
    "axial_pos_shape": _pair(64, 64),
    "axial_pos_embds_dim": _pair(64, 192),
    **each(whole(64), "local_attn_chunk_length", "lsh_attn_chunk_length"),
    **each(whole(1), "local_num_chunks_before", "lsh_num_chunks_before", "num_hashes"),
    **each(must(0), "local_num_chunks_after", "lsh_num_chunks_after"),
    "num_buckets": Key(what="a whole number, a list of them, or nothing", fits=_is_counts, default=None, null=True),
    "hash_seed": whole(None),
    "local_attention_probs_dropout_prob": number(0.05),
    "lsh_attention_probs_dropout_prob": number(0.0),
    "hidden_dropout_prob": number(0.05, ("block.dropout", "embed.dropout", "ffn.dropout")),
    "chunk_size_feed_forward": whole(0),
    "is_decoder": required(False, "without it this class lets tokens see later ones", "true"),
    # Both streams side by side are twice as wide as the table.
    "tie_word_embeddings": must(False),
    # Without effect: the loss in pieces, and what the released files have from an earlier form of the class.
    **each(whole(0), "chunk_size_lm_head", "intermediate_size", "num_chunks_before", "num_chunks_after"),
    "attention_probs_dropout_prob": number(0.1),
    "sinusoidal_pos_embds": must(False),
}
LAYERS = ["local", "lsh"] * 3


def local(chunk: int, before: int) -> str:
    """The pattern of a local layer: its own chunk and those before it."""
    return f"causal & chunked({chunk}, {before})"


def _row_width(position: Axial, spec: ModelSpec) -> int:
    return spec.width // 2 if position.row_width is None else position.row_width


def changes(local_chunk: int, lsh_chunk: int, names: list[str], mixer: Mapping[str, Any]) -> dict[str, Any]:
    """The layers of a preset, one chunk before each."""
    lsh = {"kind": "lsh", "chunk": lsh_chunk} | dict(mixer)
    own = {"local": {"attention.pattern": local(local_chunk, 1)}, "lsh": {"attention.mixer": lsh}}
    return arranged(names, own)


class Reformer(Family, kind="reformer"):
    """Reformer as a language model.

    The public class holds a bias for its head and does not add it; a model that was trained with it says
    head.adds_bias. With a cache its LSH layers see every key, where the public class looks up buckets.
    """

    base = {
        "norm": {"kind": "layernorm", "eps": 1e-12},
        "position": {"kind": "axial"},
        "ffn": {"kind": "relu", "bias": True},
        "block": {"wiring": "reversible", "merge": "concat"},
        "head": {"kind": "lm", "bias": True, "adds_bias": False},
    }
    presets = (
        Preset("reformer-enwik8", "Reformer on enwik8 (2020)", {
            "vocab": 258, "width": 1024, "depth": 12, "context": 65536, "attention.heads": 8, "ffn.width": 4096,
            "position.rows": 128, "position.columns": 512, "position.row_width": 256, "ids.pad": 0, "ids.eos": [2],
        } | changes(128, 256, ["local", "local", "lsh", "local"] * 3, {"buckets": 512, "rounds": 4, "seed": "none"}),
               149_182_722, published="only rounded, to 149M",
               evidence="a copy of its released config and the publisher's training file for enwik8",
               note="characters as bytes; its 258 ids need no tokenizer"),
        Preset("reformer-crime-and-punishment", "Reformer on Crime and Punishment (2020)", {
            "vocab": 320, "width": 256, "depth": 6, "context": 524288, "attention.heads": 2, "attention.head_dim": 64,
            "ffn.width": 512, "position.rows": 512, "position.columns": 1024, "position.row_width": 64,
            "ids.pad": 0, "ids.eos": [2],
        } | changes(64, 64, LAYERS, {"buckets": [64, 128], "seed": "none"}),
               2_748_224, published="nothing; counted on the public class",
               evidence="four copies of its released config, which agree"),
    )  # fmt: skip
    architectures = ("ReformerModelWithLMHead",)
    # Its class for sequences reads the first token, which sees no other in a decoder.
    tasks = {ANSWER: answer()}
    exempt = "the class counts positions by column, padding included, and beyond one chunk sees more keys with a cache than without"
    keys = KEYS
    small = {
        "hidden_size": 24, "num_attention_heads": 3, "attention_head_size": 8, "attn_layers": ["local", "lsh", "lsh"],
        "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [10, 14], "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4, "num_buckets": [4, 2], "num_hashes": 2, "hash_seed": 3, "is_decoder": True,
        "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        names = LAYERS if c["attn_layers"] is None else c["attn_layers"]
        unknown = sorted(set(names) - {"local", "lsh"})
        if unknown or not names:
            c.refuse("attn_layers", f"{unknown[0] if unknown else names!r} is no kind of layer", "'local' and 'lsh'")
        if c["num_hidden_layers"] not in (None, len(names)):
            c.problems.add(
                "num_hidden_layers", f"{c['num_hidden_layers']} differs from the {len(names)} of attn_layers"
            )
        buckets, chunk, context = c["num_buckets"], c["lsh_attn_chunk_length"], c["max_position_embeddings"]
        if buckets is None and "lsh" in names and context > max(chunk, 1) ** 3:
            why = "is unset, which means another number here than in the public class where rows may be this long"
            c.refuse("num_buckets", why, f"set, for example to about 2 for each chunk of {chunk} tokens")
        (rows, columns), widths = c["axial_pos_shape"], list(c["axial_pos_embds_dim"])
        position = {"kind": "axial", "rows": rows, "columns": columns, "row_width": widths[0]}
        if not c["axial_pos_embds"]:
            position = {"kind": "learned"}
        elif sum(widths) != c["hidden_size"]:
            c.problems.add("axial_pos_embds_dim", f"{widths} do not add up to hidden_size={c['hidden_size']}")
        own = {
            "local": {
                "attention.pattern": local(c["local_attn_chunk_length"], c["local_num_chunks_before"]),
                "attention.dropout": float(c["local_attention_probs_dropout_prob"]),
            },
            "lsh": {
                "attention.mixer": {
                    "kind": "lsh", "chunk": chunk, "before": c["lsh_num_chunks_before"], "rounds": c["num_hashes"],
                    "seed": "none" if c["hash_seed"] is None else c["hash_seed"], **({} if buckets is None else {"buckets": buckets}),
                },
                "attention.dropout": float(c["lsh_attention_probs_dropout_prob"] or 0.0),
            },
        }  # fmt: skip
        return {
            **super().read(c),
            "depth": len(names),
            "ffn.chunk": c["chunk_size_feed_forward"] or None,
            "position": position,
            **(arranged(names, own) if not unknown else {}),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        stack = spec.stacks[-1]
        hashing = [layer for layer in stack.layers if isinstance(layer.attention.mixer, LSH)]
        others = [layer for layer in stack.layers if layer not in hashing]
        found: dict[str, Any] = {}
        for layer in hashing[:1]:
            mixer: Any = layer.attention.mixer
            found |= {
                "lsh_attn_chunk_length": mixer.chunk, "lsh_num_chunks_before": mixer.before,
                "lsh_num_chunks_after": mixer.after, "num_hashes": mixer.rounds, "hash_seed": mixer.seed,
                "num_buckets": list(mixer.buckets) if isinstance(mixer.buckets, tuple) else mixer.buckets,
                "lsh_attention_probs_dropout_prob": layer.attention.dropout,
            }  # fmt: skip
        for layer in others[:1]:
            second = getattr(pattern_of(stack, layer), "second", None)
            cut = second if isinstance(second, Chunked) else Chunked(size=64)
            found |= {
                "local_attn_chunk_length": cut.size, "local_num_chunks_before": cut.before,
                "local_attention_probs_dropout_prob": layer.attention.dropout,
            }  # fmt: skip
        position = stack.layers[0].position
        if isinstance(position, Axial):
            row_width = _row_width(position, spec)
            found["axial_pos_shape"] = [position.rows, position.columns]
            found["axial_pos_embds_dim"] = [row_width, spec.width - row_width]
        return super().write(spec) | found | {
            "axial_pos_embds": isinstance(position, Axial),
            "attn_layers": ["lsh" if layer in hashing else "local" for layer in stack.layers],
            "num_hidden_layers": stack.depth,
            "chunk_size_feed_forward": getattr(stack.layers[0].ffn, "chunk", None) or 0,
            "tie_word_embeddings": False,
        }  # fmt: skip

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        stack = spec.stacks[-1]
        position = stack.layers[0].position
        rules = [
            Rule("reformer.embeddings.word_embeddings.weight", "embed.tokens.weight"),
            Rule(f"{EMBEDDED}.embedding.weight", "decoder.positions.0.table"),
            *block_rules(LAYER, PARTS),
            Rule("reformer.encoder.layer_norm.{p}", "decoder.final_norm.{p}"),
            Rule("lm_head.decoder.weight", "head.weight"),
            Rule("lm_head.bias", "head.bias"),
        ]
        if isinstance(position, Axial):
            width = _row_width(position, spec)
            shapes = {"rows": (position.rows, 1, width), "columns": (1, position.columns, spec.width - width)}
            rules += [
                Rule(f"{EMBEDDED}.weights.{i}", f"decoder.positions.0.{name}", Shaped(shape))
                for i, (name, shape) in enumerate(shapes.items())
            ]
        for i, layer in enumerate(stack.layers):
            shared = layer.attention.mixer.shares_keys
            names = {"q": "query_key", "v": "value"} if shared else {"q": "query", "k": "key", "v": "value"}
            rules += block_rules(f"{LAYER.format(i=i)}.attention.self_attention", names, f"decoder.blocks.{i}")
        return StateMap(
            rules=tuple(rules),
            # Older files hold the bias twice, and the numbers that a layer puts in place of scores.
            copies={"lm_head.decoder.bias": "lm_head.bias"},
            ignored=(r".*\.self_attention\.(self_)?mask_value_float(16|32)",),
            prefix="reformer.",
        )
