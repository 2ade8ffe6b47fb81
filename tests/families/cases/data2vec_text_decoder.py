"""data2vec's model of text as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import data2vec_text

VARIANTS = {"untied": data2vec_text.VARIANTS["untied"]}

SEEDS = {"data2vec_text_decoder": 2}
