"""data2vec's model of text as a decoder: the same layers, each token seeing those before it."""

from anyformer.families.bert_like import Causal
from anyformer.families.data2vec_text import Data2VecText


class Data2VecTextDecoder(Causal, Data2VecText, kind="data2vec_text_decoder"):
    """data2vec's model of text with a causal mask."""

    architectures = ("Data2VecTextForCausalLM",)
