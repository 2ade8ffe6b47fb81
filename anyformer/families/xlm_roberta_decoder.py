"""XLM-RoBERTa as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.xlm_roberta import XlmRoberta


class XlmRobertaDecoder(Causal, XlmRoberta, kind="xlm_roberta_decoder"):
    """XLM-RoBERTa with a causal mask."""

    architectures = ("XLMRobertaForCausalLM",)
