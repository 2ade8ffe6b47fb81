"""Phi-3-small (2024): block-sparse and dense layers in turn, a cut GEGLU, and the constants of muP.

The public library has no class for it: its code was published with its weights. Files are read by the names in them,
and the tests hold it against a reference of their own.
"""

from typing import Any

from anyformer.families.config_keys import SpecView, divisor, each, flag, must, number, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset, sizes
from anyformer.families.key_groups import arranged, each_layer
from anyformer.families.llama_like import PRE_NORMS
from anyformer.families.statemap import StateMap, block_rules, decoder_map
from anyformer.families.tensor_ops import PerHead
from anyformer.parts.patterns.block_sparse import BlockSparse
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import pattern_of


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
        "ids": {"bos": 100257, "eos": [100257]},
    }
    presets = (
        Preset("phi-3-small-8k", "Phi-3 small 8k (2024)", sizes(4096, 32, 32, 8, 14336)
               | {"layers.order": "sparse, dense", "layers.dense": {},
                "layers.sparse": {"attention.pattern": sparse(64, 16, 8)}}, 7_392_272_384, also=("phi-3-small",),
               published="7,392,274,432 in released files, which store 32 tables of 64 angles beside the weights",
               evidence="the released config as quoted in the tests and lists of three other projects; the maths from "
               "another project's port of the published code",
               note="no class in the public library. Servers set the logits of some reserved ids to minus infinity; "
               "here they are what the weights say"),
    )  # fmt: skip
    architectures = ("Phi3SmallForCausalLM",)
    keys = {
        **usual(vocab_size=100352, max_position_embeddings=8192, hidden_size=4096, num_hidden_layers=32),
        **usual(num_attention_heads=32, layer_norm_epsilon=1e-5, initializer_range=0.02, tie_word_embeddings=True),
        **usual(embedding_dropout_prob=0.1, attention_dropout_prob=0.0, ffn_dropout_prob=0.1),
        **usual(bos_token_id=100257, eos_token_id=100257),
        "num_key_value_heads": whole(8, "attention.kv_heads", null=True, derived=True),
        "hidden_act": must("gegelu"),
        "gegelu_limit": number(20.0, "ffn.clamp"),
        "ff_intermediate_size": whole(14336, "ffn.width"),
        # A width by a rule, in place of the number; no released file has it.
        "ff_dim_multiplier": must(None),
        # How their kernel is cut, and what their code pads for it, is of no effect.
        **each(whole(64), "blocksparse_block_size", "blocksparse_triton_kernel_block_size"),
        **each(flag(True), "gegelu_pad_to_256", "pad_sequence_to_multiple_of_64", "mup_use_scaling"),
        "blocksparse_num_local_blocks": whole(16),
        "blocksparse_vert_stride": whole(8),
        "blocksparse_homo_head_pattern": flag(False),
        "dense_attention_every_n_layers": whole(2),
        "rope_embedding_base": number(1e6, "position.theta"),
        "rope_position_scale": must(1.0),
        "rope_scaling": must(None),
        "mup_attn_multiplier": number(1.0),
        "mup_embedding_multiplier": number(10.0, "embed.scale"),
        "mup_width_multiplier": divisor(8.0, "head.scale"),
        # It says in which precision scores are computed.
        "reorder_and_upcast_attn": flag(False),
        # Some copies of the config have it; the code never read it, and its projections have biases.
        "attention_bias": flag(False),
    }

    small = {
        "num_hidden_layers": 4, "gegelu_limit": 1.5, "blocksparse_block_size": 3, "blocksparse_num_local_blocks": 2,
        "blocksparse_vert_stride": 3, "rope_embedding_base": 500.0, "mup_attn_multiplier": 2.0,
        "mup_embedding_multiplier": 3.0, "mup_width_multiplier": 7.0,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        every = c["dense_attention_every_n_layers"]
        if every < 1:
            c.problems.add("dense_attention_every_n_layers", f"{every} is not at least 1")
        if c["mup_width_multiplier"] == 0:
            c.problems.add("mup_width_multiplier", "0 can't divide logits; 1 leaves them as they are")
        scale, multiplier = "1/sqrt(head_dim)", float(c["mup_attn_multiplier"])
        if c["mup_use_scaling"]:
            scale = "1/head_dim" if multiplier == 1 else f"{multiplier}/head_dim"
        stride, heads = c["blocksparse_vert_stride"], max(c["num_attention_heads"], 1)
        # Few heads share the stripes out between them; a single one has nobody to differ from.
        shift = 0 if c["blocksparse_homo_head_pattern"] or heads == 1 else max(1, stride // heads)
        pattern = sparse(c["blocksparse_block_size"], c["blocksparse_num_local_blocks"], stride, shift)
        # The last of every n layers is dense.
        names = each_layer(c, lambda i: "sparse" if (i + 1) % max(every, 1) else "dense")
        kinds = arranged(names, {"sparse": {"attention.pattern": pattern}, "dense": {}})
        return super().read(c) | {"attention.scale": scale} | kinds

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        view = SpecView.of(spec)
        patterns = [pattern_of(view.stack, layer) for layer in view.stack.layers]
        dense = [i for i, pattern in enumerate(patterns) if not isinstance(pattern, BlockSparse)]
        usual = BlockSparse(block=64, local=16, stride=8, shift=1)
        first = next((pattern for pattern in patterns if isinstance(pattern, BlockSparse)), usual)
        root = view.layer.attention.scale == "1/sqrt(head_dim)"
        return super().write(spec) | {
            "hidden_act": "gegelu",
            "blocksparse_block_size": first.block,
            "blocksparse_num_local_blocks": first.local,
            "blocksparse_vert_stride": first.stride,
            "blocksparse_homo_head_pattern": first.shift == 0,
            "blocksparse_triton_kernel_block_size": first.block,
            # Beyond the depth: no layer is dense.
            "dense_attention_every_n_layers": dense[0] + 1 if dense else view.stack.depth + 1,
            "mup_use_scaling": not root,
            "mup_attn_multiplier": 1.0 if root else float(f"{view.get('attention.scale') * view.dims.head_dim:.10g}"),
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        # Rows of the two branches lie in turns.
        turns = PerHead(SpecView.of(spec).dims.ffn_width)
        return decoder_map(
            "model.layers",
            {"qkv": "self_attn.query_key_value", "o": "self_attn.dense", "down": "mlp.down_proj"}
            | {"tokens": "embed_tokens", "final": "final_layernorm"}
            | PRE_NORMS,
            *block_rules("model.layers.{i}", {"gate_up": "mlp.up_proj"}, op=turns),
            op=PerHead(),
            ignored=(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
        )
