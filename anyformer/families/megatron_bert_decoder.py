"""Megatron-BERT as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.megatron_bert import MegatronBert


class MegatronBertDecoder(Causal, MegatronBert, kind="megatron_bert_decoder"):
    """Megatron-BERT with a causal mask."""

    architectures = ("MegatronBertForCausalLM",)
