"""BigBird as a decoder: full attention, each token seeing those before it."""

from typing import Any

from anyformer.families.bert_like import Causal
from anyformer.families.big_bird import FULL, BigBird
from anyformer.families.config_values import Values


class BigBirdDecoder(Causal, BigBird, kind="big_bird_decoder"):
    """BigBird with a causal mask, which its class has with full attention only."""

    architectures = ("BigBirdForCausalLM",)
    small = BigBird.small | {"attention_type": FULL}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        if c["attention_type"] != FULL:
            why = f"{c['attention_type']!r} lets tokens of this class see later ones"
            c.refuse("attention_type", why, repr(FULL))
        return super().read(c)
