"""Nomic's BERT (Nussbaum et al. 2024): BERT with RoPE and SwiGLU, without biases, for long texts."""

from dataclasses import replace

from anyformer.families import bert_like as like
from anyformer.families.config_keys import Key, activation, each, flag, must, number, usual, whole
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


def _both(default: str) -> Key:
    """The activation of the gates, which the head has too."""
    gated, plain = activation(default, gated=True), activation(default)
    return replace(
        gated, read=lambda c, name: {**gated.read(c, name), "head.activation": plain.read(c, name)["ffn.kind"]}
    )


class InMemory(like.BertLike):
    """The names of the public class in memory; in files its tensors keep those that they were published with."""

    body = "nomic_bert"
    head = ("cls.predictions", "transform.dense", "transform.layer_norm")
    layers = "layers"
    parts = like.LLAMA_PARTS


class NomicBert(InMemory, kind="nomic_bert"):
    """Nomic's BERT with its masked-LM head."""

    base = like.BASE | {
        "vocab": 30528,
        "context": 2048,
        "attention": {"heads": 1},
        "position": {"kind": "rope", "theta": 1000.0},
        "ffn": {"kind": "swiglu"},
        "head": {"kind": "lm", "tied": True, "bias": True, "transform": True, "activation": "silu"},
        "ids": {"pad": 0},
    }
    architectures = ("NomicBertForMaskedLM",)
    coded = True
    keys = {
        **usual(vocab_size=30528, hidden_size=768, num_hidden_layers=12, num_attention_heads=12),
        **usual(intermediate_size=3072, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, head_dim=None),
        **usual(max_position_embeddings=2048, initializer_range=0.02, layer_norm_eps=1e-12, pad_token_id=0),
        "hidden_act": _both("silu"),
        "type_vocab_size": whole(2, "embed.token_types"),
        "tie_word_embeddings": must(True),
        # The same in the words of the code that was published before the class was.
        **usual(n_embd=None, n_layer=None, n_head=None, n_inner=None, n_positions=None),
        "layer_norm_epsilon": number(None, "norm.eps"),
        "activation_function": must("swiglu"),
        "rotary_emb_fraction": must(1.0, 1),
        **each(must(None), "rotary_emb_scale_base", "rotary_scaling_factor"),
        **each(must(False, None), "rotary_emb_interleaved", "causal", "prenorm", "use_rms_norm", "parallel_block"),
        **each(must(False, None), "parallel_block_tied_norm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"),
        **each(must(False, None), "scale_attn_by_inverse_layer_idx"),
        "scale_attn_weights": must(True),
        **each(must(None, 0), "num_experts", "moe_top_k", "moe_every_n_layers", "num_shared_experts"),
        # How its kernels were chosen, and how it was trained.
        **each(flag(False), "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn"),
        **each(flag(False), "use_xentropy", "reorder_and_upcast_attn"),
        **each(number(None), "attn_pdrop", "embd_pdrop", "resid_pdrop"),
        **each(whole(None), "max_trained_positions", "pad_vocab_size_multiple"),
    }
    groups = (RopeKeys(theta=1000.0, spelled={"rope_theta": "rotary_emb_base"}),)
    embedding_norm = "emb_ln"
    layers = "encoder.layers"
    parts = {
        **{"qkv": "attn.Wqkv", "o": "attn.out_proj", "up": "mlp.fc11", "gate": "mlp.fc12", "down": "mlp.fc2"},
        **{"attention_after": "norm1", "ffn_after": "norm2"},
    }
    small = {"rope_theta": 500.0}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return replace(super().weights(spec), also=(InMemory.weights(spec),))
