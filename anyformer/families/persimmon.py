"""Persimmon (Adept 2023): LayerNorm also on each head of queries and keys, RoPE on half of a head, squared ReLU."""

from anyformer.families import llama_like as like
from anyformer.families import tasks
from anyformer.families.bloom import megatron
from anyformer.families.config_keys import activation, must, usual, whole
from anyformer.families.family import Family
from anyformer.families.gpt2 import BASE
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import decoder_map
from anyformer.families.tensor_ops import PerHead

HEAD_NORMS = {"q_norm": "self_attn.q_layernorm", "k_norm": "self_attn.k_layernorm"}


class Persimmon(Family, kind="persimmon"):
    """Persimmon 8B."""

    base = BASE | {
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.5},
        "ffn": {"kind": "relu2", "bias": True},
        "head": {"kind": "lm"},
    }
    architectures = ("PersimmonForCausalLM",)
    tasks = tasks.GENERIC
    keys = {
        **usual(vocab_size=262144, hidden_size=4096, intermediate_size=16384, num_hidden_layers=36),
        **usual(num_attention_heads=64, max_position_embeddings=16384, initializer_range=0.02, layer_norm_eps=1e-5),
        **usual(attention_dropout=0.0, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2),
        "hidden_act": activation("relu2", more={"ffn.bias": True}),
        "qk_layernorm": like.qk_norm_key({"kind": "layernorm"}, default=True),
        # Released files have it; the public class has a key for each head.
        "num_key_value_heads": whole(None),
        # It would act on the feed-forward only, which a spec has no place for.
        "hidden_dropout": must(0.0),
    }
    groups = (RopeKeys(fraction=0.5),)
    tensors = decoder_map(
        "model.layers",
        megatron("self_attn") | HEAD_NORMS | {"tokens": "embed_tokens", "final": "final_layernorm"},
        op=PerHead(),
        ignored=(like.UNREAD,),
    )
    small = like.small(rope_theta=500.0, partial_rotary_factor=0.5)
