"""The architectures of llama.cpp that we read and write: each is a family of ours under other names.

A file's metadata is read as the config.json that the family's own files would have, and its tensors under the names
that they would have there. So a spec, its rules and its weights come from the family, and only what llama.cpp changes
stands here: the order of rows of q and k, norms stored with their 1 added, and frequencies that are a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyformer.errors import SpecError

FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
"""Tensors that hold what frequencies are divided by."""
SCALING = "rope.scaling."
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""How frequencies of Llama 3.1 and later are scaled, but for the factor; files hold what comes of it only."""

Metadata = Mapping[str, Any]
Lists = Mapping[str, Sequence[float]]
"""Tensors of factors, by name."""

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
HEAD_DIM = {"attention.key_length": "head_dim"}
MULTIPLE = {
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "vocab_size",
    "rope.scaling.finetuned",
    "rope.scale_linear",
}
"""Keys that say once more what others do, which is checked."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One of llama.cpp's, and the family of ours that it is."""

    name: str
    family: str
    keys: Mapping[str, str]
    """Its keys, without its name before them -> those of the family's config."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """What configs of such files have besides."""
    experts: bool = False
    """Whether it is the one with experts, of those with this name."""
    permuted: bool = False
    """Whether rows of q and k stand in pairs, as the kernel of llama.cpp turns them, and not in halves."""
    norm_offset: float = 0.0
    """What is added to the gains of norms in files."""
    transposed: tuple[str, ...] = ()
    """Parts of their names that matrices have which the family stores (in, out)."""
    read: Callable[[Metadata, Lists, dict[str, Any]], dict[str, Any]] = lambda given, lists, config: {}
    """What of a config the keys can't give one by one; `given` has them without the architecture's name."""
    write: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    """The same back."""
    also: frozenset[str] = frozenset()
    """Other keys that `read` looks at."""


def _scaling(given: Metadata, lists: Lists, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` of a config."""
    kind, factor = given.get(f"{SCALING}type"), given.get(f"{SCALING}factor", given.get("rope.scale_linear"))
    trained = given.get(f"{SCALING}original_context_length")
    if FACTORS in lists:
        return _from_factors(lists[FACTORS], config, trained)
    if LONG in lists or SHORT in lists:
        if LONG not in lists or SHORT not in lists:
            raise SpecError([f"{LONG if SHORT in lists else SHORT}: is missing; its like is there"])
        context = config["max_position_embeddings"]
        found = {"short_factor": [*lists[SHORT]], "long_factor": [*lists[LONG]], "rope_type": "longrope"}
        gain, usual = given.get(f"{SCALING}attn_factor"), longrope_gain(context, trained or context)
        # Without it, llama.cpp has 1.
        gain = 1.0 if gain is None else gain
        own = {} if math.isclose(gain, usual, rel_tol=1e-6) else {"attention_factor": gain}
        return found | {"original_max_position_embeddings": trained or context} | own
    if kind in (None, "none") or factor in (None, 0.0, 1.0):
        return None
    if kind not in ("linear", "yarn"):
        raise SpecError([f"{SCALING}type: {kind!r:.40} can't be read (known: none, linear, yarn)"])
    more = {"original_max_position_embeddings": trained} if kind == "yarn" and trained else {}
    return {"rope_type": kind, "factor": factor} | more


def longrope_gain(context: int, trained: int) -> float:
    """What the public class multiplies cosines and sines with, unless told."""
    scale = context / trained
    return 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(trained))


def _from_factors(factors: Sequence[float], config: Mapping[str, Any], trained: int | None) -> dict[str, Any] | None:
    """The scaling that these divisors come of: Llama 3's, or else themselves."""
    largest = max(factors, default=1.0)
    if all(factor == 1.0 for factor in factors):
        return None
    told = {"rope_type": "llama3", "factor": largest} | LLAMA3
    told |= {"original_max_position_embeddings": trained} if trained else {}
    same = llama3_factors(told, config["rope_theta"], 2 * len(factors))
    if all(math.isclose(mine, theirs, rel_tol=1e-5) for mine, theirs in zip(same, factors, strict=True)):
        return told
    context = config["max_position_embeddings"]
    both = {"short_factor": [*factors], "long_factor": [*factors], "original_max_position_embeddings": context}
    return {"rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0} | both


def llama3_factors(scaling: Mapping[str, Any], theta: float, head_dim: int) -> list[float]:
    """What each frequency is divided by: 1 for short waves, the factor for long ones, and a blend between."""
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    found: list[float] = []
    for i in range(head_dim // 2):
        turns = original / (2 * math.pi * theta ** (2 * i / head_dim))
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - share) / factor + share))
    return found


def _rope(given: Metadata, lists: Lists, config: dict[str, Any]) -> dict[str, Any]:
    return {"rope_scaling": _scaling(given, lists, config)}


def _write_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    if kind not in ("linear", "yarn", "llama3"):
        # That of Phi-3 is in tensors; what else there is shows when the file is read back.
        return {}
    original = scaling.get("original_max_position_embeddings")
    # Llama 3's is a tensor, of which the trained length can't be told.
    found = {} if kind == "llama3" else {f"{SCALING}type": kind, f"{SCALING}factor": scaling["factor"]}
    return found | ({f"{SCALING}original_context_length": original} if original is not None else {})


ROPE = frozenset(f"{SCALING}{name}" for name in ("type", "factor", "original_context_length", "attn_factor"))


def _phi3(given: Metadata, lists: Lists, config: dict[str, Any]) -> dict[str, Any]:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    found: dict[str, Any] = {
        "partial_rotary_factor": given.get("rope.dimension_count", head_dim) / head_dim,
        "original_max_position_embeddings": given.get(f"{SCALING}original_context_length")
        or config["max_position_embeddings"],
        # llama.cpp writes 0 for none.
        "sliding_window": given.get("attention.sliding_window") or None,
    }
    return found | _rope(given, lists, config)


def _write_phi3(config: Mapping[str, Any]) -> dict[str, Any]:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    context, trained = config["max_position_embeddings"], config["original_max_position_embeddings"]
    scaling = config.get("rope_scaling") or {}
    gain = scaling.get("attention_factor") or longrope_gain(context, trained)
    return {
        "rope.dimension_count": round(head_dim * config["partial_rotary_factor"]),
        f"{SCALING}original_context_length": trained,
        "attention.sliding_window": config["sliding_window"] or 0,
        **({f"{SCALING}attn_factor": gain} if scaling else {}),
    }


def _gemma(large: int) -> Callable[[Metadata, Lists, dict[str, Any]], dict[str, Any]]:
    """What Gemma's files leave to the program: the scale of scores, which only the model of so many layers derives
    from its width.
    """

    def read(given: Metadata, lists: Lists, config: dict[str, Any]) -> dict[str, Any]:
        by_width = config["num_hidden_layers"] == large
        scalar = config["hidden_size"] // config["num_attention_heads"] if by_width else config["head_dim"]
        caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} if large == GEMMA2_LARGE else {}
        found = {name: given.get(name, value) for name, value in caps.items()}
        return {"query_pre_attn_scalar": scalar} | found

    return read


GEMMA2_LARGE, GEMMA3_LARGE = 46, 62


def _gemma3(given: Metadata, lists: Lists, config: dict[str, Any]) -> dict[str, Any]:
    pattern = given.get("attention.sliding_window_pattern", 6)
    depth = config["num_hidden_layers"]
    local = [(i + 1) % pattern != 0 for i in range(depth)] if isinstance(pattern, int) else pattern
    return _gemma(GEMMA3_LARGE)(given, lists, config) | {
        "layer_types": ["sliding_attention" if each else "full_attention" for each in local],
        "rope_local_base_freq": given.get("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": given.get("final_logit_softcapping"),
        **_rope(given, lists, config),
    }


def _write_gemma2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in ("attn_logit_softcapping", "final_logit_softcapping")}


def _write_gemma3(config: Mapping[str, Any]) -> dict[str, Any]:
    types = [kind == "sliding_attention" for kind in config["layer_types"]]
    usual = types == [(i + 1) % 6 != 0 for i in range(len(types))]
    cap = config.get("final_logit_softcapping")
    return {
        "rope.freq_base_swa": config["rope_local_base_freq"],
        **({} if usual else {"attention.sliding_window_pattern": types}),
        **({} if cap is None else {"final_logit_softcapping": cap}),
        **_write_rope(config),
    }


WINDOW = {"attention.sliding_window": "sliding_window"}

EXPERTS = {
    "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(name="llama", family="llama", keys=SIZES | HEAD_DIM, permuted=True, read=_rope, write=_write_rope, also=ROPE),
    Architecture(name="qwen2", family="qwen2", keys=SIZES, read=_rope, write=_write_rope, also=ROPE,
                 fixed={"use_sliding_window": False}),
    Architecture(name="qwen3", family="qwen3", keys=SIZES | HEAD_DIM, read=_rope, write=_write_rope, also=ROPE,
                 fixed={"use_sliding_window": False}),
    Architecture(name="gemma2", family="gemma2", keys=SIZES | HEAD_DIM | WINDOW, norm_offset=1.0,
                 read=_gemma(GEMMA2_LARGE), write=_write_gemma2,
                 also=frozenset(("attn_logit_softcapping", "final_logit_softcapping"))),
    Architecture(name="gemma3", family="gemma3", keys=SIZES | HEAD_DIM | WINDOW, norm_offset=1.0, read=_gemma3,
                 write=_write_gemma3, fixed={"rope_theta": 1e6},
                 also=ROPE | {"attention.sliding_window_pattern", "rope.freq_base_swa", "final_logit_softcapping"}),
    Architecture(name="phi3", family="phi3", keys=SIZES, read=_phi3, write=_write_phi3,
                 also=ROPE | {"attention.sliding_window"}),
    Architecture(name="gpt2", family="gpt2", transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"), keys={
        "context_length": "n_positions", "embedding_length": "n_embd", "block_count": "n_layer",
        "feed_forward_length": "n_inner", "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    }),
    Architecture(name="llama", experts=True, family="mixtral", permuted=True, read=_rope, write=_write_rope, also=ROPE,
                 keys=SIZES | HEAD_DIM | EXPERTS | {"expert_count": "num_local_experts"}, fixed={"sliding_window": None}),
    Architecture(name="qwen2moe", experts=True, family="qwen2_moe", read=_rope, write=_write_rope, also=ROPE,
                 keys=SIZES | EXPERTS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
                 fixed={"use_sliding_window": False, "norm_topk_prob": False}),
    Architecture(name="qwen3moe", experts=True, family="qwen3_moe", read=_rope, write=_write_rope, also=ROPE,
                 keys=SIZES | HEAD_DIM | EXPERTS, fixed={"use_sliding_window": False, "norm_topk_prob": True}),
)  # fmt: skip
