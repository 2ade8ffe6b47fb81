"""BioGPT (Luo et al. 2022): GPT-2's design with scaled embeddings, positions from row 2 on, and OPT's names."""

from anyformer.families import opt
from anyformer.families.config_keys import activation, each, flag, number, usual
from anyformer.families.family import Family
from anyformer.families.gpt2 import BASE
from anyformer.families.statemap import decoder_map


class BioGPT(Family, kind="biogpt"):
    """BioGPT."""

    base = BASE | {
        "position": {"kind": "learned", "offset": 2},
        "ffn": {"kind": "gelu", "bias": True},
        "embed": {"kind": "tokens", "scale": "sqrt(width)"},
    }
    architectures = ("BioGptForCausalLM",)
    keys = {
        **usual(vocab_size=42384, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16),
        **usual(intermediate_size=4096, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
        **usual(max_position_embeddings=1024, initializer_range=0.02, tie_word_embeddings=True),
        **usual(pad_token_id=1, bos_token_id=0, eos_token_id=2),
        "hidden_act": activation("gelu", more={"ffn.bias": True}),
        "scale_embedding": flag(True, "embed.scale", on="sqrt(width)", off=1.0),
        # The public class has a constant for eps, and the others act in training only.
        "layer_norm_eps": number(1e-12),
        **each(number(0.0), "activation_dropout", "layerdrop"),
    }
    tensors = decoder_map(
        "biogpt.layers",
        opt.PARTS | opt.norms("inner") | {"positions": "embed_positions", "final": "layer_norm"},
        head="output_projection",
    )
