"""What BERT and its relatives share: the names of their keys and of their tensors."""

import re
from typing import Any, ClassVar

from anyformer.families.config_keys import Key, activation, must, usual, whole
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


PARTS = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "o": "attention.output.dense", "attention_after": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "ffn_after": "output.LayerNorm",
}  # fmt: skip


class BertLike(Family):
    """BERT's tensors, of which a family says how some are called."""

    body: ClassVar[str] = "bert"
    """What the class calls all but the head."""
    head: ClassVar[tuple[str, str, str]] = ("cls.predictions", "transform.dense", "transform.LayerNorm")
    """Names of the masked-LM head, of its layer and of its norm."""
    parts: ClassVar[dict[str, str]] = PARTS
    """Names of the parts of a layer."""
    table: ClassVar[str] = "positions.0.table"
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
        # The bias is stored twice. Where nothing is tied the class adds the second, and has no use for the first.
        used, other = f"{head}.bias", f"{head}.decoder.bias"
        if not tied:
            used, other = other, used
        return StateMap(
            rules=(
                Rule(f"{front}.word_embeddings.weight", "embed.tokens.weight"),
                Rule(f"{front}.token_type_embeddings.weight", "embed.types.weight"),
                Rule(f"{front}.position_embeddings.weight", f"{stack}.{cls.table}"),
                Rule(f"{front}.LayerNorm.{{p}}", f"{stack}.embedding_norm.{{p}}"),
                *cls.rules(spec),
                *block_rules(f"{cls.body}.encoder.layer.{{i}}", cls.parts, f"{stack}.blocks.{{i}}"),
                Rule(f"{head}.{dense}.{{p}}", "head.dense.{p}"),
                Rule(f"{head}.{norm}.{{p}}", "head.norm.{p}"),
                Rule(f"{head}.decoder.weight", "head.weight"),
                Rule(used, "head.bias"),
            ),
            copies={f"{head}.decoder.weight": f"{front}.word_embeddings.weight", other: used} if tied else {},
            ignored=(
                rf"({cls.body}\.)?embeddings\.(position_ids|token_type_ids)",
                rf"({cls.body}\.)?pooler\.dense\.(weight|bias)",
                *cls.unread,
                *(() if tied else (re.escape(other),)),
            ),
            prefix=f"{cls.body}.",
            renamed={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
        )
