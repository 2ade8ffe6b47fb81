"""What LLaMA and its relatives share: the names of their keys and of their tensors."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anyformer.families import tasks
from anyformer.families.config_keys import Key, activation, flag, number, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import Rule, StateMap, decoder_map

BASE: dict[str, Any] = {
    "norm": {"kind": "rmsnorm", "eps": 1e-5},
    "position": {"kind": "rope", "theta": 1e4},
    "ffn": {"kind": "swiglu"},
}
"""The design that most later families start from."""

ATTENTION = {name: f"self_attn.{name}_proj" for name in "qkvo"}
FFN = {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}
FUSED_FFN = {"gate_up": "mlp.gate_up_proj", "down": "mlp.down_proj"}
PRE_NORMS = {"attention_inner": "input_layernorm", "ffn_inner": "post_attention_layernorm"}
OUTPUT_NORMS = {"attention_outer": "post_attention_layernorm", "ffn_outer": "post_feedforward_layernorm"}
SANDWICH_NORMS = OUTPUT_NORMS | {"attention_inner": "input_layernorm", "ffn_inner": "pre_feedforward_layernorm"}
HEAD_NORMS = {name: f"self_attn.{name}" for name in ("q_norm", "k_norm")}
UNREAD = r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
"""Tables of frequencies that old files hold."""
LLAMA = ATTENTION | FFN | PRE_NORMS
"""The parts of a block, and what they are called in files."""


def tensors(parts: dict[str, str], *more: Rule) -> StateMap:
    """A table of tensors with the usual ends."""
    return decoder_map("model.layers", {"tokens": "embed_tokens", "final": "norm"} | parts, *more, ignored=(UNREAD,))


def keys(
    width: int, depth: int, heads: int, kv_heads: int | None, ffn: int, vocab: int, context: int, *,
    eps: float | None = 1e-6, eps_key: str = "rms_norm_eps", qk_norm: bool = False,
    act: str = "silu", act_key: str = "hidden_act", gated: bool = True, std: float = 0.02, tied: bool = False,
    **more: float | list[int] | None,
) -> dict[str, Key]:  # fmt: skip
    """The keys that all of them have, with the defaults of one public class: first those of `sizes`, in its order.

    `eps` is None if it has no such key; `qk_norm` says that the norms of queries and keys have the eps of the others.
    `more` are usual keys that it has besides.
    """
    normed = ("norm.eps", "attention.qk_norm.eps") if qk_norm else ("norm.eps",)
    return {
        **usual(vocab_size=vocab, hidden_size=width, intermediate_size=ffn, num_hidden_layers=depth),
        **usual(num_attention_heads=heads, max_position_embeddings=context, initializer_range=std),
        "num_key_value_heads": whole(kv_heads, "attention.kv_heads", null=True, derived=True),
        act_key: activation(act, gated=gated),
        **({} if eps is None else {eps_key: number(eps, normed)}),
        "attention_dropout": number(0.0, "attention.dropout", null=True, empty=0.0),
        **usual(tie_word_embeddings=tied, **more),
    }


def ids(bos: int | None, eos: int | list[int] | None, pad: int | None = None) -> dict[str, Key]:
    """The keys of special ids, with the defaults of one public class."""
    return usual(bos_token_id=bos, eos_token_id=eos, pad_token_id=pad)


def whole_heads(default: int | None) -> Key:
    """`head_dim` of a class whose heads are together as wide as the model, whatever it says."""

    def read(c: Values, name: str) -> dict[str, Any]:
        if c[name] is not None and c[name] * c["num_attention_heads"] != c["hidden_size"]:
            c.refuse(name, f"{c[name]} is not hidden_size / num_attention_heads, which the public class takes")
        return {}

    write = None if default is None else lambda view: view.dims.head_dim
    return replace(whole(default, null=True), read=read, write=write)


def qk_norm_key(norm: Mapping[str, Any], eps: str = "layer_norm_eps", *, default: bool = False) -> Key:
    """Whether queries and keys have norms, with the eps of the others, which is that of a key."""

    def read(c: Values, name: str) -> dict[str, Any]:
        return {"attention.qk_norm": {**norm, "eps": float(c[eps])} if c[name] else None}

    return replace(flag(default), read=read, write=lambda view: view.get("attention.qk_norm") is not None)


def small(**more: Any) -> dict[str, Any]:
    """A small config with special ids, also where the public class has none by default."""
    return {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} | more


class LlamaLike(Family):
    """LLaMA's design and names, of which a family says what it has otherwise."""

    base = BASE
    groups = (RopeKeys(),)
    tensors = tensors(LLAMA | HEAD_NORMS)
    tasks = tasks.LLAMA
    small = small(rope_theta=500.0)
