"""GPT-NeoX (Black et al. 2022): attention and feed-forward in parallel, a norm each; RoPE on a quarter of each head."""

from anyformer.families.bloom import megatron
from anyformer.families.config_keys import activation, each, flag, number, usual
from anyformer.families.family import Family, Preset, series, sizes
from anyformer.families.gpt2 import BASE
from anyformer.families.key_groups import RopeKeys
from anyformer.families.statemap import decoder_map
from anyformer.families.tensor_ops import PerHead

SMALL = {"kind": "small"}
"""How they were trained; files speak of plain draws."""
SPELLED = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


class GPTNeoX(Family, kind="gpt_neox"):
    """GPT-NeoX-20B, and the Pythia models in the same format."""

    base = BASE | {
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.25},
        "ffn": {"kind": "gelu", "bias": True},
        "block": {"wiring": "parallel2"},
        "head": {"kind": "lm"},
    }
    presets = (
        Preset("gpt-neox-20b", "GPT-NeoX 20B (2022)", sizes(6144, 44, 64)
               | {"vocab": 50432, "context": 2048, "init": SMALL, "ffn.kind": "gelu_tanh", "ffn.width": 24576,
                  "ffn.bias": True},
               20_554_567_680, hub=("EleutherAI/gpt-neox-20b",), published="20,554,567,680 on its card",
               evidence="the authors' training file and one other project",
               note="trained with the fused kernel, whose GELU is the one by tanh; the public class reads 'gelu' by "
               "erf"),
        *series("pythia-{}", "Pythia {SIZE} (2023)",
            ("14m", sizes(128, 6, 4), 14_067_712, "14,067,712 in released files",
             "context 2048 by the training file; another project lists 512"),
            ("31m", sizes(256, 6, 8), 30_494_720, "30,494,720 in released files",
             "context 2048 by the training file; another project lists 1024"),
            ("70m", sizes(512, 6, 8), 70_426_624, "",
             "trained with a fused GELU by tanh; released files say 'gelu', which the public class reads by erf"),
            ("160m", sizes(768, 12, 12), 162_322_944),
            ("410m", sizes(1024, 24, 16), 405_334_016),
            ("1b", sizes(2048, 16, 8), 1_011_781_632),
            ("1.4b", sizes(2048, 24, 16), 1_414_647_808),
            ("2.8b", sizes(2560, 32, 32), 2_775_208_960),
            ("6.9b", sizes(4096, 32, 32) | {"vocab": 50432}, 6_857_302_016),
            ("12b", sizes(5120, 36, 40) | {"vocab": 50688}, 11_846_072_320, "",
             "36 layers, which the count confirms; a later copy of the training file says 40"),
            changes={"vocab": 50304, "context": 2048, "init": SMALL, "ids.bos": 0, "ids.eos": [0]},
            hub=("EleutherAI/pythia-{}",), published="{params:,} on its card",
            evidence="the authors' training files and tables and one other project"),
    )  # fmt: skip
    architectures = ("GPTNeoXForCausalLM",)
    keys = {
        **usual(vocab_size=50432, hidden_size=6144, num_hidden_layers=44, num_attention_heads=64),
        **usual(intermediate_size=24576, max_position_embeddings=2048, initializer_range=0.02, layer_norm_eps=1e-5),
        **usual(attention_dropout=0.0, attention_bias=True, tie_word_embeddings=False, bos_token_id=0, eos_token_id=2),
        "hidden_act": activation("gelu", more={"ffn.bias": True}),
        # Older names, which the public class does not read.
        **each(number(0.0), "attention_probs_dropout_prob", "hidden_dropout_prob"),
        "hidden_dropout": number(0.0, ("block.dropout", "embed.dropout")),
        "use_parallel_residual": flag(True, "block.wiring", on="parallel2", off="serial"),
    }
    groups = (RopeKeys(fraction=0.25, spelled=SPELLED, flat=False),)
    tensors = decoder_map(
        "gpt_neox.layers",
        megatron("attention") | {"tokens": "embed_in", "final": "final_layer_norm"},
        op=PerHead(),
        ignored=(
            r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
            r"(gpt_neox\.)?rotary_emb\.inv_freq",
        ),
        # What the head was called before it was called like everybody's.
        renamed={"embed_out.weight": "lm_head.weight"},
    )
    small = {"num_attention_heads": 2, "rotary_pct": 0.25, "rotary_emb_base": 500}
