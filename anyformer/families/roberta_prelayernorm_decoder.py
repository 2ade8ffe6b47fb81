"""RoBERTa with its norms first as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.roberta_prelayernorm import RobertaPreLayerNorm


class RobertaPreLayerNormDecoder(Causal, RobertaPreLayerNorm, kind="roberta_prelayernorm_decoder"):
    """RoBERTa with its norms first with a causal mask."""

    architectures = ("RobertaPreLayerNormForCausalLM",)
