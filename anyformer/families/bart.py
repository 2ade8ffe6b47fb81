"""BART (Lewis et al. 2019): an encoder-decoder with GPT-2's vocabulary, norms last and learned positions from row 2."""

from anyformer.families import bart_like as like
from anyformer.families.family import series, sizes


class Bart(like.BartLike, kind="bart"):
    """BART."""

    base = like.BART | {"vocab": 50265, "context": 1024, "ids": {"pad": 1, "bos": 0, "eos": [2], "start": 2}}
    presets = series("bart-{}", "BART {} (2019)",
        ("base", sizes(768, 6, 12), 139_420_416, "about 139M, as is generally known"),
        ("large", sizes(1024, 12, 16), 406_291_456, "about 406M, as is generally known"),
        hub=("facebook/bart-{}",),
        evidence="large is what the public class has by default; base is half as deep, as the paper says",
        note=like.ZEROS,
    )  # fmt: skip
    architectures = ("BartForConditionalGeneration",)
    keys = like.keys(50265, 1024, (12, 12), 16, 4096, 1024, start=2)
