"""CamemBERT (Martin et al. 2019): RoBERTa for French."""

from anyformer.families import roberta


class Camembert(roberta.RobertaLike, kind="camembert"):
    """CamemBERT with its masked-LM head."""

    base = roberta.BASE | {"vocab": 32005}
    architectures = ("CamembertForMaskedLM",)
    second = True
