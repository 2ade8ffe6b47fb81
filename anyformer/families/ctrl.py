"""CTRL (Keskar et al. 2019): GPT-2's design with sines for positions, ReLU, scaled embeddings and a bias on logits."""

from dataclasses import replace

from anyformer.families import tasks
from anyformer.families.config_keys import must, usual, whole
from anyformer.families.family import Family
from anyformer.families.gpt2 import BASE
from anyformer.families.statemap import decoder_map


class CTRL(Family, kind="ctrl"):
    """CTRL."""

    base = BASE | {
        "norm": {"kind": "layernorm", "eps": 1e-6},
        "position": {"kind": "sinusoidal", "layout": "halves"},
        "ffn": {"kind": "relu", "bias": True},
        "embed": {"kind": "tokens", "scale": "sqrt(width)"},
        "head": {"kind": "lm", "tied": True, "bias": True},
    }
    architectures = ("CTRLLMHeadModel",)
    tasks = {tasks.SEQUENCE: replace(tasks.SCORE, tensors={"answer": "classifier"})}
    keys = {
        **usual(vocab_size=246534, n_positions=256, n_embd=1280, n_layer=48, n_head=16),
        **usual(resid_pdrop=0.1, embd_pdrop=0.1, initializer_range=0.02, tie_word_embeddings=True),
        "dff": whole(8192, "ffn.width"),
        # Only the last norm reads it; the others have this constant.
        "layer_norm_epsilon": must(1e-6),
        "n_ctx": whole(None),
    }
    tensors = decoder_map(
        "transformer.h",
        {name: f"multi_head_attention.W{name}" for name in "qkv"}
        | {"o": "multi_head_attention.dense", "up": "ffn.0", "down": "ffn.2"}
        | {"attention_inner": "layernorm1", "ffn_inner": "layernorm2", "tokens": "w", "final": "layernorm"},
        ignored=(r"(transformer\.)?pos_encoding",),
    )
    small = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
