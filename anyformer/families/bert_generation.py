"""BERT as the halves of a sequence-to-sequence model (Rothe et al. 2019): no token types, and a head without a layer.

The class is a decoder if `is_decoder` says so. Joined with an encoder by cross-attention it is no class of its own.
"""

from dataclasses import replace

from anyformer.families import bert_like as like
from anyformer.families.config_keys import activation, flag, usual

IS_DECODER = replace(
    flag(False),
    sets=("topology",),
    read=lambda c, name: {"topology": "decoder" if c[name] else "encoder"},
    write=lambda view: view.spec.topology == "decoder",
)


class BertGeneration(like.BertLike, kind="bert_generation"):
    """BERT for generation with its LM head; without it, its encoder."""

    base = like.BASE | {
        "topology": "decoder",
        "vocab": 50358,
        "context": 512,
        "embed": {"kind": "tokens"},
        "head": {"kind": "lm", "tied": True, "bias": True},
        "ids": {"pad": 0, "bos": 2, "eos": [1]},
    }
    architectures = ("BertGenerationDecoder",)
    bodies = ("BertGenerationEncoder",)
    model_type = "bert-generation"
    encodes = True
    head = ("lm_head", "", "")
    keys = {
        **{name: key for name, key in like.keys(vocab=50358, context=512).items() if name != "type_vocab_size"},
        **usual(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
        **usual(bos_token_id=2, eos_token_id=1),
        "hidden_act": activation("gelu", more={"ffn.bias": True}),
        "is_decoder": IS_DECODER,
    }
    small = {"is_decoder": True}
