"""ELECTRA as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.electra import Electra


class ElectraDecoder(Causal, Electra, kind="electra_decoder"):
    """ELECTRA with a causal mask."""

    architectures = ("ElectraForCausalLM",)
