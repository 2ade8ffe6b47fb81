"""CamemBERT as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.camembert import Camembert


class CamembertDecoder(Causal, Camembert, kind="camembert_decoder"):
    """CamemBERT with a causal mask."""

    architectures = ("CamembertForCausalLM",)
