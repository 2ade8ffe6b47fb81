"""RoFormer as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.roformer import RoFormer


class RoFormerDecoder(Causal, RoFormer, kind="roformer_decoder"):
    """RoFormer with a causal mask. No such model is published; its class is."""

    architectures = ("RoFormerForCausalLM",)
