"""GPT (Radford et al. 2018): the first of them, with norms after each addition and no norm at the end."""

from anyformer.families.config_keys import activation, whole
from anyformer.families.family import Family, Preset, sizes
from anyformer.families.gpt2 import BASE, CONVOLUTIONS, size_keys
from anyformer.families.statemap import decoder_map

NAMES = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
"""This family's 'gelu' is the one by tanh."""


class GPT(Family, kind="gpt"):
    """The first GPT."""

    base = BASE | {"vocab": 40478, "context": 512, "norm": {"kind": "layernorm", "eps": 1e-5, "placement": "post"}}
    presets = (
        Preset("gpt", "GPT (2018)", sizes(768, 12, 12), 116_534_784,
               published="paper and release say 117M",
               evidence="defaults of the publisher's training code; the vocabulary is the public class's default",
               note="released files hold 12 causal masks beside the weights: 119,680,512 numbers"),
    )  # fmt: skip
    architectures = ("OpenAIGPTLMHeadModel",)
    model_type = "openai-gpt"
    before_types = True
    keys = size_keys(40478, 512) | {
        "afn": activation(
            "gelu", known={name: {"kind": kind} for name, kind in NAMES.items()}, more={"ffn.bias": True}
        ),
        "n_special": whole(0),
    }
    tensors = decoder_map(
        "transformer.h",
        {"attention_after": "ln_1", "ffn_after": "ln_2", "tokens": "tokens_embed", "positions": "positions_embed"},
        *CONVOLUTIONS,
        ignored=(r"(transformer\.)?(h\.\d+\.attn\.bias|position_ids)",),
    )
