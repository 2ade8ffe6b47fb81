"""EuroBERT (Boizard et al. 2025): LLaMA's design as an encoder, for European languages."""

from anyformer.families import llama_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import flag, text, usual


class EuroBert(like.LlamaLike, kind="eurobert"):
    """EuroBERT with its masked-LM head."""

    base = like.BASE | {
        "topology": "encoder",
        "vocab": 128256,
        "context": 8192,
        "position": {"kind": "rope", "theta": 250000.0},
    }
    architectures = ("EuroBertForMaskedLM",)
    tasks = {
        tasks.SEQUENCE: tasks.sequence(
            "classifier", "dense", activation="gelu",
            keys={"classifier_pooling": tasks.pooling({"late": "late", "bos": "first", "mean": "mean"})},
        ),
        tasks.TOKEN: tasks.token(),
    }  # fmt: skip
    coded = True
    keys = {
        **like.keys(768, 12, 12, None, 3072, 128256, 8192, eps=1e-5, head_dim=None, attention_bias=False),
        **usual(bos_token_id=128000, eos_token_id=128001, pad_token_id=128001),
        "mlp_bias": flag(False, ("ffn.bias", "head.bias")),
        # Of heads for other tasks, and the mask as it is spelled.
        "classifier_pooling": text("late"),
        "clf_pooling": text(None),
        "mask_token": text(None),
    }
