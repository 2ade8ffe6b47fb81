"""Phi-3-small (2024): block-sparse and dense layers in turn, a cut GEGLU, and the constants of muP.

The public library has no class for it: its code was published with its weights. Files are read by the names in them,
and the tests hold it against a reference of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, flag, ids, must, number, whole
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import PerHead, Rule, StateMap
from anyformer.families.window_keys import arranged, each_layer
from anyformer.parts.patterns.block_sparse import BlockSparse
from anyformer.parts.positions.rope import Rope
from anyformer.specs.embed_head import TokenEmbed, TokenHead
from anyformer.specs.formulas import Scale, evaluate
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import pattern_of

LAYER, BLOCK = "model.layers.{i}", "decoder.blocks.{i}"


def sparse(block: int, local: int, stride: int, shift: int = 1) -> str:
    """The pattern of a sparse layer; its stripes are shifted from head to head."""
    return f"block_sparse({block}, {local}, {stride}, {shift})"


class Phi3Small(Family, kind="phi3small"):
    """Phi-3-small with 8k tokens of context. The scaling of the 128k model is refused: it was not confirmed."""

    base = {
        "vocab": 100352,
        "context": 8192,
        "attention": {"heads": 1, "bias": "qkvo", "scale": "1/head_dim"},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e6},
        "ffn": {"kind": "geglu", "form": "quick", "clamp": 20.0, "offset": 1.0, "bias": True},
        "embed": {"kind": "tokens", "scale": 10.0},
        "head": {"kind": "lm", "tied": True, "scale": "1/8.0"},
        "init": {"kind": "normal", "std": 0.02},
        "ids": {"bos": 100257, "eos": [100257]},
    }
    presets = (
        Preset(
            name="phi-3-small-8k", also=("phi-3-small",), title="Phi-3 small 8k (2024)",
            changes={
                "width": 4096, "depth": 32, "attention.heads": 32, "attention.kv_heads": 8, "ffn.width": 14336,
                "layers": {
                    "order": "sparse, dense", "dense": {}, "sparse": {"attention.pattern": sparse(64, 16, 8)},
                },
            },
            params=7_392_272_384,
            published="7,392,274,432 in released files, which store 32 tables of 64 angles beside the weights",
            evidence="the released config as quoted in the tests and lists of three other projects; the maths from "
            "another project's port of the published code",
            note="no class in the public library. Servers set the logits of some reserved ids to minus infinity; here "
            "they are what the weights say",
        ),
    )  # fmt: skip
    architectures = ("Phi3SmallForCausalLM",)
    model_type = "phi3small"
    keys = {
        "vocab_size": whole(100352),
        "max_position_embeddings": whole(8192),
        "hidden_size": whole(4096),
        "num_hidden_layers": whole(32),
        "num_attention_heads": whole(32),
        "num_key_value_heads": whole(8, null=True),
        "hidden_act": must("gegelu"),
        "gegelu_limit": number(20.0),
        "ff_intermediate_size": whole(14336),
        # A width by a rule, in place of the number; no released file has it.
        "ff_dim_multiplier": must(None),
        "gegelu_pad_to_256": flag(True),
        "blocksparse_block_size": whole(64),
        "blocksparse_num_local_blocks": whole(16),
        "blocksparse_vert_stride": whole(8),
        "blocksparse_homo_head_pattern": flag(False),
        # How their kernel is cut, and what their code pads for it.
        "blocksparse_triton_kernel_block_size": whole(64),
        "pad_sequence_to_multiple_of_64": flag(True),
        "dense_attention_every_n_layers": whole(2),
        "rope_embedding_base": number(1e6),
        "rope_position_scale": must(1.0),
        "rope_scaling": must(None),
        "layer_norm_epsilon": number(1e-5),
        "initializer_range": number(0.02),
        "mup_use_scaling": flag(True),
        "mup_attn_multiplier": number(1.0),
        "mup_embedding_multiplier": number(10.0),
        "mup_width_multiplier": number(8.0),
        "embedding_dropout_prob": number(0.1),
        "attention_dropout_prob": number(0.0),
        "ffn_dropout_prob": number(0.1),
        "tie_word_embeddings": flag(True),
        # It says in which precision scores are computed.
        "reorder_and_upcast_attn": flag(False),
        # Some copies of the config have it; the code never read it, and its projections have biases.
        "attention_bias": flag(False),
        "bos_token_id": ids(100257),
        "eos_token_id": ids(100257),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        every = c["dense_attention_every_n_layers"]
        if every < 1:
            c.problems.add("dense_attention_every_n_layers", f"{every} is not at least 1")
        if c["mup_width_multiplier"] == 0:
            c.problems.add("mup_width_multiplier", "0 can't divide logits; 1 leaves them as they are")
        if c["mup_use_scaling"]:
            multiplier = float(c["mup_attn_multiplier"])
            scale: Scale = "1/head_dim" if multiplier == 1 else f"{multiplier}/head_dim"
        else:
            scale = "1/sqrt(head_dim)"
        stride, heads = c["blocksparse_vert_stride"], max(c["num_attention_heads"], 1)
        # Few heads share the stripes out between them; a single one has nobody to differ from.
        shift = 0 if c["blocksparse_homo_head_pattern"] or heads == 1 else max(1, stride // heads)
        pattern = sparse(c["blocksparse_block_size"], c["blocksparse_num_local_blocks"], stride, shift)
        # The last of every n layers is dense.
        names = each_layer(c, lambda i: "sparse" if (i + 1) % max(every, 1) else "dense")
        own = {
            "vocab": c["vocab_size"],
            "width": c["hidden_size"],
            "depth": c["num_hidden_layers"],
            "context": c["max_position_embeddings"],
            "embed.scale": float(c["mup_embedding_multiplier"]),
            "embed.dropout": float(c["embedding_dropout_prob"]),
            "attention.heads": c["num_attention_heads"],
            "attention.kv_heads": c["num_key_value_heads"],
            "attention.scale": scale,
            "attention.dropout": float(c["attention_dropout_prob"]),
            "position.theta": float(c["rope_embedding_base"]),
            "ffn.width": c["ff_intermediate_size"],
            "ffn.clamp": float(c["gegelu_limit"]),
            # Theirs is on what leaves the feed-forward.
            "ffn.dropout": float(c["ffn_dropout_prob"]),
            "norm.eps": float(c["layer_norm_epsilon"]),
            "head.tied": c["tie_word_embeddings"],
            "head.scale": f"1/{float(c['mup_width_multiplier'])}",
            "init.std": float(c["initializer_range"]),
        }
        return own | arranged(names, {"sparse": {"attention.pattern": pattern}, "dense": {}})

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims, ffn, embed, head = spec.dims(layer, stack), layer.ffn, spec.embed, spec.head
        patterns = [pattern_of(stack, each) for each in stack.layers]
        dense = [i for i, pattern in enumerate(patterns) if not isinstance(pattern, BlockSparse)]
        first = next(
            (p for p in patterns if isinstance(p, BlockSparse)), BlockSparse(block=64, local=16, stride=8, shift=1)
        )
        scale = evaluate(layer.attention.scale, dims.names()) * dims.head_dim
        root = layer.attention.scale == "1/sqrt(head_dim)"
        return {
            "vocab_size": spec.vocab,
            "hidden_size": spec.width,
            "num_hidden_layers": stack.depth,
            "max_position_embeddings": spec.context,
            "num_attention_heads": dims.heads,
            "num_key_value_heads": layer.attention.kv_heads,
            "hidden_act": "gegelu",
            "gegelu_limit": getattr(ffn, "clamp", None) or 20.0,
            "ff_intermediate_size": dims.ffn_width,
            "blocksparse_block_size": first.block,
            "blocksparse_num_local_blocks": first.local,
            "blocksparse_vert_stride": first.stride,
            "blocksparse_homo_head_pattern": first.shift == 0,
            "blocksparse_triton_kernel_block_size": first.block,
            # Beyond the depth: no layer is dense.
            "dense_attention_every_n_layers": dense[0] + 1 if dense else stack.depth + 1,
            "rope_embedding_base": layer.position.theta if isinstance(layer.position, Rope) else 1e6,
            "layer_norm_epsilon": layer.norm.leaf.eps,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "mup_use_scaling": not root,
            "mup_attn_multiplier": 1.0 if root else float(f"{scale:.10g}"),
            "mup_embedding_multiplier": _number(embed.scale, spec) if isinstance(embed, TokenEmbed) else 1.0,
            "mup_width_multiplier": float(f"{1 / _number(head.scale, spec):.10g}")
            if isinstance(head, TokenHead)
            else 1.0,
            "embedding_dropout_prob": embed.dropout,
            "attention_dropout_prob": layer.attention.dropout,
            "ffn_dropout_prob": ffn.dropout,
            "tie_word_embeddings": isinstance(head, TokenHead) and head.tied,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        stack = spec.stacks[-1]
        dims = spec.dims(stack.layers[0], stack)
        body, ffn = f"{BLOCK}.attention.body", f"{BLOCK}.ffn.body"
        parts = {
            "self_attn.dense": "attention.body.o",
            "mlp.down_proj": "ffn.body.down",
            "input_layernorm": "attention.inner",
            "post_attention_layernorm": "ffn.inner",
        }
        return StateMap(
            rules=(
                Rule("model.embed_tokens.weight", "embed.tokens.weight"),
                *(
                    rule
                    for p in ("weight", "bias")
                    for rule in (
                        Rule(
                            f"{LAYER}.self_attn.query_key_value.{p}",
                            tuple(f"{body}.{name}.{p}" for name in "qkv"),
                            PerHead(dims.kv_heads),
                        ),
                        # Rows of the two branches lie in turns.
                        Rule(f"{LAYER}.mlp.up_proj.{p}", (f"{ffn}.gate.{p}", f"{ffn}.up.{p}"), PerHead(dims.ffn_width)),
                    )
                ),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in parts.items()),
                Rule("model.final_layernorm.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.weight", "head.weight"),
            ),
            copies={"lm_head.weight": "model.embed_tokens.weight"},
            ignored=(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
            prefix="model.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "ff_intermediate_size": 40, "max_position_embeddings": 64,
            "gegelu_limit": 1.5, "blocksparse_block_size": 3, "blocksparse_num_local_blocks": 2,
            "blocksparse_vert_stride": 3, "rope_embedding_base": 500.0, "layer_norm_epsilon": 1e-3,
            "mup_attn_multiplier": 2.0, "mup_embedding_multiplier": 3.0, "mup_width_multiplier": 7.0,
            "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip


def _number(scale: Scale, spec: ModelSpec) -> float:
    return evaluate(scale, {"width": spec.width, "depth": spec.depth})
