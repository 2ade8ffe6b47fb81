"""data2vec's model of text (Baevski et al. 2022): RoBERTa that was trained to predict its teacher's states."""

from anyformer.families import roberta


class Data2VecText(roberta.RobertaLike, kind="data2vec_text"):
    """data2vec's model of text with its masked-LM head."""

    base = roberta.BASE | {"vocab": 50265}
    architectures = ("Data2VecTextForMaskedLM",)
    model_type = "data2vec-text"
    body = "data2vec_text"
    second = True
