"""BERT as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert import Bert
from anyformer.families.bert_like import Causal


class BertDecoder(Causal, Bert, kind="bert_decoder"):
    """BERT with a causal mask."""

    architectures = ("BertLMHeadModel",)
