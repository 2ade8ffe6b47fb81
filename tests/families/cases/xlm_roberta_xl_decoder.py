"""XLM-RoBERTa XL as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import xlm_roberta_xl

VARIANTS = {"untied": xlm_roberta_xl.VARIANTS["untied"]}
