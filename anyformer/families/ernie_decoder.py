"""ERNIE as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.ernie import Ernie


class ErnieDecoder(Causal, Ernie, kind="ernie_decoder"):
    """ERNIE with a causal mask."""

    architectures = ("ErnieForCausalLM",)
