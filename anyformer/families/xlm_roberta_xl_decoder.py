"""XLM-RoBERTa XL as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.xlm_roberta_xl import XlmRobertaXl


class XlmRobertaXlDecoder(Causal, XlmRobertaXl, kind="xlm_roberta_xl_decoder"):
    """XLM-RoBERTa XL with a causal mask."""

    architectures = ("XLMRobertaXLForCausalLM",)
