"""PLBART (Ahmad et al. 2021): BART of source code in Java and Python, and of English."""

from anyformer.families import bart_like as like
from anyformer.families import tasks
from anyformer.families.family import series, sizes


class PLBart(like.BartLike, kind="plbart"):
    """PLBART."""

    base = like.BART | {
        "context": 1024, "embed": {"kind": "tokens", "scale": "sqrt(width)"}, "ids": {"pad": 1, "bos": 0, "eos": [2]},
    }  # fmt: skip
    presets = series("plbart-{}", "PLBART {} (2021)",
        ("base", sizes(768, 6, 12) | {"vocab": 50005}, 139_220_736, "about 140M, as is generally known"),
        hub=("uclanlp/plbart-{}",), evidence="what the public class has by default",
        note=like.ZEROS,
    )  # fmt: skip
    architectures = ("PLBartForConditionalGeneration",)
    tasks = tasks.MBART
    keys = like.keys(50005, 768, (6, 6), 12, 3072, 1024, scaled=True, attention_dropout=0.1)
