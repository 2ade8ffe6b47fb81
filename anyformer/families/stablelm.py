"""StableLM (2023): LayerNorm, RoPE on a quarter of each head, SwiGLU; its largest runs both branches in parallel."""

from anyformer.families import llama_like as like
from anyformer.families.cohere import HEAD_NORM
from anyformer.families.config_keys import flag, must, usual, whole
from anyformer.families.family import Preset, sizes
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import Rule
from anyformer.families.tensor_ops import Slice


class StableLM(like.LlamaLike, kind="stablelm"):
    """StableLM 3B 4E1T and StableLM 2."""

    base = like.BASE | {
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.25},
    }
    presets = (
        Preset("stablelm-3b-4e1t", "StableLM 3B 4E1T (2023)", sizes(2560, 32, 32, 32, 6912, 50304, 4096), 2_795_443_200,
               also=("stablelm-3b",), published="2,795,443,200 on the publisher's page and in released files",
               evidence="the publisher's training file and two other projects"),
        Preset("stablelm-2-12b", "StableLM 2 12B (2024)", sizes(5120, 40, 32, 8, 13824, 100352, 4096)
               | {"block.wiring": "parallel", "attention.qk_norm": HEAD_NORM}, 12_143_185_920,
               published="12,143,605,760 on its card, which counts the 41 norms twice, once for each half of the "
               "machine",
               evidence="the publisher's training file and card; feed-forward and vocabulary from general knowledge, "
               "which the count confirms",
               note="norms have biases, as the count says; the training file says that they have none"),
    )  # fmt: skip
    architectures = ("StableLmForCausalLM",)
    keys = {
        **like.keys(2560, 32, 32, 32, 6912, 50304, 4096, eps=1e-5, eps_key="layer_norm_eps"),
        **usual(bos_token_id=0, eos_token_id=0),
        "use_qkv_bias": flag(False, "attention.bias", on="qkv"),
        "qk_layernorm": like.qk_norm_key(HEAD_NORM),
        "use_parallel_residual": flag(False, "block.wiring", on="parallel", off="serial"),
        # It would act on the feed-forward only, which a spec has no place for.
        "hidden_dropout": must(0.0),
        # Another word for the heads in released files; the public class only checks that it divides the width.
        "num_heads": whole(None),
    }
    groups = (RopeKeys(fraction=0.25),)
    tensors = like.tensors(
        like.LLAMA,
        *(
            Rule(
                f"model.layers.{{i}}.self_attn.{name}_layernorm.norms.{{n}}.weight",
                f"decoder.blocks.{{i}}.attention.body.{name}_norm.weight",
                Slice(),
            )
            for name in "qk"
        ),
    )
    small = like.small(qk_layernorm=True, use_parallel_residual=True, rope_theta=500.0, partial_rotary_factor=0.25)
