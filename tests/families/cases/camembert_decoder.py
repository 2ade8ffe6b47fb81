"""CamemBERT as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import camembert

VARIANTS = {"untied": camembert.VARIANTS["untied"]}
