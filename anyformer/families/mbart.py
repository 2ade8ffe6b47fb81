"""mBART (Liu et al. 2020): BART in many languages, with norms first and one at the end of each stack."""

from anyformer.families import bart_like as like
from anyformer.families import tasks
from anyformer.families.family import series, sizes


class MBart(like.BartLike, kind="mbart"):
    """mBART, of 25 and of 50 languages. An answer of the former begins with the token of its language."""

    base = like.PRE | {
        "norm": like.PRE["norm"] | {"embedding": True}, "context": 1024, "embed": {"kind": "tokens", "scale": "sqrt(width)"},
        "ids": {"pad": 1, "bos": 0, "eos": [2]},
    }  # fmt: skip
    presets = series("mbart-large-{}", "mBART of {} languages (2020)",
        ("cc25", {"vocab": 250027}, 610_851_840, "about 610M, as is generally known"),
        ("50", {"vocab": 250054}, 610_879_488, "about 611M, as is generally known"),
        changes=sizes(1024, 12, 16), hub=("facebook/mbart-large-{}",),
        evidence="what the public class has by default; the vocabulary has a token for each language, as is generally known",
        note=like.ZEROS,
    )  # fmt: skip
    architectures = ("MBartForConditionalGeneration",)
    tasks = tasks.MBART
    keys = like.keys(50265, 1024, (12, 12), 16, 4096, 1024)
