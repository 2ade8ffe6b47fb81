"""GTE (Zhang et al. 2024, mGTE): BERT with RoPE and gated feed-forwards, whose only bias is on the projection back."""

from dataclasses import replace

from anyformer.families import bert_like as like
from anyformer.families.config_keys import activation, usual, whole
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.model import ModelSpec


class InMemory(like.BertLike):
    """The names of the public class in memory; in files its tensors keep those that they were published with."""

    body, head, output = "gte", ("lm_head", "dense", "layer_norm"), "lm_head.decoder"
    layers = "layers"
    parts = like.LLAMA_PARTS


class Gte(InMemory, kind="gte"):
    """GTE with its masked-LM head, as the public class has it; its first release came with code of its own."""

    base = like.BASE | {
        "vocab": 250048,
        "context": 8192,
        "position": {"kind": "rope", "theta": 160000.0},
        "ffn": {"kind": "geglu", "down_bias": True},
        "embed": {"kind": "tokens", "token_types": 1},
        "ids": {"pad": 1},
    }
    architectures = ("GteForMaskedLM",)
    head = ("lm_head", "dense", "norm")
    layers = "encoder.layer"
    parts = {
        **{"qkv": "attention.qkv_proj", "o": "attention.o_proj", "down": "mlp.down_proj"},
        **{"attention_after": "attn_ln", "ffn_after": "mlp_ln"},
    }
    keys = {
        **usual(vocab_size=250048, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, head_dim=None),
        **usual(intermediate_size=3072, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0),
        **usual(max_position_embeddings=8192, initializer_range=0.02, layer_norm_eps=1e-12),
        "hidden_act": activation("gelu", gated=True, more={"ffn.down_bias": True}),
        "type_vocab_size": whole(1, "embed.token_types"),
        **usual(tie_word_embeddings=True, bos_token_id=None, eos_token_id=None),
        "pad_token_id": whole(1, null=True),
    }
    groups = (RopeKeys(theta=160000.0),)
    small = {"rope_theta": 500.0, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

    @classmethod
    def rules(cls, spec: ModelSpec) -> tuple[Rule, ...]:
        both = tuple(f"encoder.blocks.{{i}}.ffn.body.{name}.weight" for name in ("up", "gate"))
        return (Rule("gte.encoder.layer.{i}.mlp.up_gate_proj.weight", both),)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        # Its first release called the body `new`.
        found = replace(super().weights(spec), forms={r"^new\.": "gte."})
        return replace(found, also=(InMemory.weights(spec),))
