"""RoBERTa as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.roberta import Roberta


class RobertaDecoder(Causal, Roberta, kind="roberta_decoder"):
    """RoBERTa with a causal mask."""

    architectures = ("RobertaForCausalLM",)
