"""MVP (Tang et al. 2022): BART, trained on many tasks at once."""

from anyformer.families import bart_like as like
from anyformer.families.config_keys import must, whole
from anyformer.families.family import Preset, sizes


class Mvp(like.BartLike, kind="mvp"):
    """MVP, without prompts of its own."""

    base = like.BART | {"context": 1024, "ids": {"pad": 1, "bos": 0, "eos": [2], "start": 2}}
    presets = (
        Preset("mvp", "MVP (2022)", sizes(1024, 12, 16) | {"vocab": 50267}, 406_293_504, hub=("RUCAIBox/mvp",),
               published="about 406M, as is generally known", evidence="what the public class has by default", note=like.ZEROS),
    )  # fmt: skip
    architectures = ("MvpForConditionalGeneration",)
    keys = {
        **like.keys(50267, 1024, (12, 12), 16, 4096, 1024, start=2),
        # Learned keys and values in front of those of the text, in every layer.
        "use_prompt": must(False),
        "prompt_length": whole(100),
        "prompt_mid_dim": whole(800),
    }
