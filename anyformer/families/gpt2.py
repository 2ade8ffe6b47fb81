"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm first, GELU by tanh, tied head, biases everywhere."""

from typing import Any

from anyformer.families.config_keys import Key, activation, flag, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset, series, sizes
from anyformer.families.statemap import Rule, block_rules, decoder_map
from anyformer.families.tensor_ops import Joined, Transposed
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST

BASE: dict[str, Any] = {
    "attention": {"heads": 1, "bias": "qkvo"},
    "norm": {"kind": "layernorm", "eps": 1e-5},
    "position": {"kind": "learned"},
    "ffn": {"kind": "gelu_tanh", "bias": True},
    "head": {"kind": "lm", "tied": True},
}
"""The design that families without LLaMA's choices start from."""
GELU_NEW = activation("gelu_new", prefer="gelu_new", more={"ffn.bias": True})
"""The key of the activation, in GPT-2 and those that spell it alike."""
GPT2_INIT: dict[str, Any] = {"kind": "gpt2", "std": 0.02}
MATRICES = {"qkv": "attn.c_attn", "o": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
"""The matrices of a block."""
NORMS = {"attention_inner": "ln_1", "ffn_inner": "ln_2", "final": "ln_f"}
ENDS = {"tokens": "wte", "positions": "wpe"}


CONVOLUTIONS = tuple(
    Rule(rule.theirs.replace("{p}", p), tuple(name.replace("{p}", p) for name in rule.ours), op)
    for rule in block_rules("transformer.h.{i}", MATRICES)
    for p, op in (("weight", Transposed()), ("bias", Joined()))
)
"""The matrices of a block, in GPT as in GPT-2: weights are stored (in, out)."""


def size_keys(
    vocab: int, context: int = 1024, width: int = 768, depth: int = 12, heads: int = 12, *, dropout: float = 0.1,
    tied: bool = True, **more: int | None,
) -> dict[str, Key]:  # fmt: skip
    """Keys that GPT, GPT-2, GPT-BigCode and GPT-J share, with the defaults of one public class."""
    return {
        **usual(vocab_size=vocab, n_positions=context, n_embd=width, n_layer=depth, n_head=heads),
        **usual(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, layer_norm_epsilon=1e-5),
        **usual(initializer_range=0.02, tie_word_embeddings=tied, **more),
        "n_ctx": whole(None),
    }


EVIDENCE = "the publisher's hyperparameter files and two other projects; the count was recorded by another library"


class GPT2(Family, kind="gpt2"):
    """GPT-2."""

    base = BASE | {"vocab": 50257, "context": 1024, "init": GPT2_INIT, "ids": {"bos": 50256, "eos": [50256]}}
    presets = (
        Preset("gpt2-small", "GPT-2 small (2019)", sizes(768, 12, 12), 124_439_808,
               also=("gpt-2-small", "gpt2", "gpt-2"), hub=("openai-community/gpt2",),
               published="124,439,808; OpenAI says 124M, the paper's 117M was a miscount", evidence=EVIDENCE),
        *series("gpt2-{}", "GPT-2 {} (2019)",
            ("medium", sizes(1024, 24, 16), 354_823_168,
             "354,823,168; OpenAI says 355M, the paper's 345M was a miscount",
             "released files hold 24 causal masks beside the weights: 379,988,992 numbers"),
            ("large", sizes(1280, 36, 20), 774_030_080, "774,030,080; OpenAI says 774M",
             "released files hold 36 causal masks beside the weights: 811,778,816 numbers"),
            ("xl", sizes(1600, 48, 25), 1_557_611_200, "1,557,611,200; OpenAI says 1558M, most people 1.5B",
             "released files hold 48 causal masks beside the weights: 1,607,942,848 numbers"),
            also=("gpt-2-{}",), hub=("openai-community/gpt2-{}",), evidence=EVIDENCE),
    )  # fmt: skip
    architectures = ("GPT2LMHeadModel",)
    also_types = ("gpt-sw3",)
    before_types = True
    keys = {
        **size_keys(50257, n_inner=None, bos_token_id=50256, eos_token_id=50256),
        "activation_function": GELU_NEW,
        "scale_attn_weights": flag(True, "attention.scale", on="1/sqrt(head_dim)", off=1.0),
        "scale_attn_by_inverse_layer_idx": flag(False),
        # It only says in which precision scores are computed.
        "reorder_and_upcast_attn": flag(False),
    }
    tensors = decoder_map(
        "transformer.h", NORMS | ENDS, *CONVOLUTIONS, ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",)
    )

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        scale = "1/sqrt(head_dim)" if c["scale_attn_weights"] else "1"
        by_layer = range(1, min(c["n_layer"], DEEPEST)) if c["scale_attn_by_inverse_layer_idx"] else ()
        return super().read(c) | {f"layers.{i}.attention.scale": f"{scale}/{i + 1}" for i in by_layer}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        scales = {layer.attention.scale for layer in spec.stacks[-1].layers}
        return super().write(spec) | {"scale_attn_by_inverse_layer_idx": len(scales) > 1}
