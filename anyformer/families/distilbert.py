"""DistilBERT (Sanh et al. 2019): BERT with half of its layers and no token types."""

from anyformer.families import bert_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import activation, each, flag, must, number, usual, whole
from anyformer.families.family import Family
from anyformer.families.statemap import Rule, StateMap, block_rules
from anyformer.specs.model import ModelSpec

PARTS = {
    "q": "attention.q_lin", "k": "attention.k_lin", "v": "attention.v_lin", "o": "attention.out_lin",
    "attention_after": "sa_layer_norm", "up": "ffn.lin1", "down": "ffn.lin2", "ffn_after": "output_layer_norm",
}  # fmt: skip


class DistilBert(Family, kind="distilbert"):
    """DistilBERT with its masked-LM head."""

    base = like.BASE | {
        "vocab": 30522,
        "context": 512,
        "embed": {"kind": "tokens"},
        "ids": {"pad": 0},
    }
    architectures = ("DistilBertForMaskedLM",)
    tasks = tasks.DISTILBERT
    keys = {
        **usual(vocab_size=30522, max_position_embeddings=512, n_layers=6, n_heads=12, initializer_range=0.02),
        "dim": whole(768, "width"),
        "hidden_dim": whole(3072, "ffn.width"),
        **usual(dropout=0.1, attention_dropout=0.1, tie_word_embeddings=True, pad_token_id=0),
        "activation": activation("gelu", more={"ffn.bias": True}, also="head.activation"),
        # How the table of positions began; it is stored like any other.
        "sinusoidal_pos_embds": flag(False),
        # What tie_word_embeddings says, in the first files.
        "tie_weights_": must(True),
        # Of heads for other tasks.
        **each(number(0.1), "qa_dropout", "seq_classif_dropout"),
    }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        front = "distilbert.embeddings"
        return StateMap(
            rules=(
                Rule(f"{front}.word_embeddings.weight", "embed.tokens.weight"),
                Rule(f"{front}.position_embeddings.weight", "encoder.positions.0.table"),
                Rule(f"{front}.LayerNorm.{{p}}", "encoder.embedding_norm.{p}"),
                *block_rules("distilbert.transformer.layer.{i}", PARTS, "encoder.blocks.{i}"),
                Rule("vocab_transform.{p}", "head.dense.{p}"),
                Rule("vocab_layer_norm.{p}", "head.norm.{p}"),
                Rule("vocab_projector.{p}", "head.{p}"),
            ),
            copies={"vocab_projector.weight": f"{front}.word_embeddings.weight"},
            ignored=(r"(distilbert\.)?embeddings\.position_ids",),
            prefix="distilbert.",
        )
