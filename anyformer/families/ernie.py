"""ERNIE 1.0 to 3.0 (Sun et al. 2019 to 2021): BERT, trained on masked words and names."""

from anyformer.families import bert_like as like
from anyformer.families.config_keys import must, whole


class Ernie(like.BertLike, kind="ernie"):
    """ERNIE with its masked-LM head. Its pooler and its next-sentence head are left out."""

    base = like.BASE | {"vocab": 18000, "context": 513, "ids": {"pad": 0}}
    architectures = ("ErnieForMaskedLM", "ErnieForPreTraining")
    body = "ernie"
    second = True
    keys = like.keys(vocab=30522, context=512) | {"task_type_vocab_size": whole(3), "use_task_id": must(False)}
    unread = like.NEXT_SENTENCE
