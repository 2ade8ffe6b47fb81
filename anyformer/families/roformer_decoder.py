"""RoFormer as a decoder: the same layers, each token seeing those before it."""

from anyformer.families import roformer
from anyformer.families.config_keys import required


class RoFormerDecoder(roformer.RoFormerLike, kind="roformer_decoder"):
    """RoFormer with a causal mask. No such model is published; its class is."""

    base = roformer.BASE | {"topology": "decoder"}
    architectures = ("RoFormerForCausalLM",)
    # They are the encoder's, which a config that is_decoder is no longer.
    bodies = ()
    tasks = {}
    second = True
    keys = roformer.KEYS | {"is_decoder": required(False, "without it this class lets tokens see later ones", "true")}
    small = {"embedding_size": 20, "is_decoder": True}
