"""XLM-RoBERTa (Conneau et al. 2019): RoBERTa for a hundred languages, with a vocabulary five times as large."""

from anyformer.families import roberta


class XlmRoberta(roberta.RobertaLike, kind="xlm_roberta"):
    """XLM-RoBERTa with its masked-LM head."""

    base = roberta.BASE | {"vocab": 250002}
    architectures = ("XLMRobertaForMaskedLM",)
    model_type = "xlm-roberta"
    second = True
