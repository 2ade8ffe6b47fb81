"""What BERT and its relatives share: the names of their keys and of their tensors."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from anyformer.families import tasks
from anyformer.families.config_keys import Key, activation, must, required, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family
from anyformer.families.statemap import Rule, StateMap, block_rules
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

BASE: dict[str, Any] = {
    "topology": "encoder",
    "attention": {"heads": 1, "bias": "qkvo"},
    "norm": {"kind": "layernorm", "eps": 1e-12, "placement": "post", "embedding": True},
    "position": {"kind": "learned"},
    "ffn": {"kind": "gelu", "bias": True},
    "embed": {"kind": "tokens", "token_types": 2},
    "head": {"kind": "lm", "tied": True, "bias": True, "transform": True},
}


def keys(*, vocab: int, context: int, act: str = "gelu", **more: int) -> dict[str, Key]:
    """The keys that all of them have, with the defaults of one public class; one activation serves layers and head."""
    return {
        **usual(vocab_size=vocab, hidden_size=768, num_hidden_layers=12, num_attention_heads=12),
        **usual(intermediate_size=3072, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
        **usual(max_position_embeddings=context, initializer_range=0.02, layer_norm_eps=1e-12),
        "hidden_act": activation(act, more={"ffn.bias": True}, also="head.activation"),
        "type_vocab_size": whole(2, "embed.token_types"),
        "position_embedding_type": must("absolute"),
        "is_decoder": must(False),
        **usual(tie_word_embeddings=True, **{"pad_token_id": 0} | more),
    }


LINEAR = {
    **{"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"},
    **{"o": "attention.output.dense", "up": "intermediate.dense", "down": "output.dense"},
}
PARTS = LINEAR | {"attention_after": "attention.output.LayerNorm", "ffn_after": "output.LayerNorm"}
"""What the parts of a layer are called: all but its norms, and all."""
NEXT_SENTENCE = (r"cls\.seq_relationship\.(weight|bias)",)
"""The head that is trained beside the masked-LM head, and that no logit depends on."""

LLAMA_PARTS = {
    **{name: f"self_attn.{name}_proj" for name in "qkvo"},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    **{"attention_after": "post_attention_layernorm", "ffn_after": "post_mlp_layernorm"},
}
"""What younger classes call them in memory."""


class BertLike(Family):
    """BERT's tensors, of which a family says how some are called."""

    body = "bert"
    tasks = tasks.BERT
    head: ClassVar[tuple[str, str, str]] = ("cls.predictions", "transform.dense", "transform.LayerNorm")
    """Names of the masked-LM head, of its layer and of its norm."""
    output: ClassVar[str] = ""
    """Name of the output matrix and of its only bias, if they are no part of the head."""
    layers: ClassVar[str] = "encoder.layer"
    parts: ClassVar[Mapping[str, str]] = PARTS
    """What the class calls its list of layers, within the body, and the parts of each."""
    embedding_norm: ClassVar[str] = "embeddings.LayerNorm"
    """What it calls the norm of the embeddings, within the body."""
    final: ClassVar[str] = ""
    """What it calls the norm after the last layer, within the body; empty: it has none."""
    positions: ClassVar[str] = "positions.0.table"
    """Where the stack keeps the table of positions."""
    unread: ClassVar[tuple[str, ...]] = ()
    """Patterns of further tensors that no logit depends on."""

    @classmethod
    def rules(cls, spec: ModelSpec) -> tuple[Rule, ...]:
        """Those that the family has beside BERT's."""
        return ()

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        stack, front = spec.stacks[-1].name, f"{cls.body}.embeddings"
        head, dense, norm = cls.head
        tied = isinstance(spec.head, TokenHead) and spec.head.tied
        out, table = cls.output or f"{head}.decoder", f"{front}.word_embeddings.weight"
        # The bias is stored twice. Where nothing is tied the class adds the second, and has no use for the first.
        used, other = f"{head}.bias", f"{out}.bias"
        if not tied or cls.output:
            used, other = other, used
        twice = {} if cls.output else {other: used}
        return StateMap(
            rules=(
                Rule(table, "embed.tokens.weight"),
                Rule(f"{front}.token_type_embeddings.weight", "embed.types.weight"),
                Rule(f"{front}.position_embeddings.weight", f"{stack}.{cls.positions}"),
                Rule(f"{cls.body}.{cls.embedding_norm}.{{p}}", f"{stack}.embedding_norm.{{p}}"),
                *cls.rules(spec),
                *block_rules(f"{cls.body}.{cls.layers}.{{i}}", cls.parts, f"{stack}.blocks.{{i}}"),
                Rule(f"{cls.body}.{cls.final}.{{p}}", f"{stack}.final_norm.{{p}}"),
                Rule(f"{head}.{dense}.{{p}}", "head.dense.{p}"),
                Rule(f"{head}.{norm}.{{p}}", "head.norm.{p}"),
                Rule(f"{out}.weight", "head.weight"),
                Rule(used, "head.bias"),
            ),
            copies={f"{out}.weight": table, **twice} if tied else {},
            ignored=(
                rf"({cls.body}\.)?embeddings\.(position_ids|token_type_ids)",
                rf"({cls.body}\.)?pooler\.dense\.(weight|bias)",
                *cls.unread,
                *(() if tied else (re.escape(other),)),
            ),
            prefix=f"{cls.body}.",
            renamed={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
        )


class NarrowBertLike(BertLike):
    """BERT whose tables may be narrower than the model: token types and the norm stand before the projection.

    The key of their width is `embed_width`.
    """

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        found = super().read(c)
        narrow = found["embed.width"] is not None
        return found | {"embed.project": "last" if narrow else "first", "embed.project_bias": narrow}

    @classmethod
    def rules(cls, spec: ModelSpec) -> tuple[Rule, ...]:
        return (Rule(f"{cls.body}.embeddings_project.{{p}}", f"{spec.stacks[-1].name}.project.{{p}}"),)


class Causal(Family):
    """What makes a decoder of an encoder's family: the same layers and tensors, each token seeing those before it.

    The classes without a head and for other tasks are the encoder's, which a config that `is_decoder` is no longer.
    """

    def __init_subclass__(cls, **rest: Any) -> None:
        if "kind" in rest:
            cls.base = cls.base | {"topology": "decoder"}
            cls.model_type = cls.model_type
            cls.bodies, cls.tasks = (), {}
            why = "without it this class lets tokens see later ones"
            cls.keys = cls.keys | {"is_decoder": required(False, why, "true")}
            cls.small = cls.small | {"is_decoder": True}
        super().__init_subclass__(**rest)
