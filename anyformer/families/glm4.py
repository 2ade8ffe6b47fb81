"""GLM-4-0414 (2025): GLM-4 with norms before and after each branch."""

from anyformer.families import glm
from anyformer.families import llama_like as like
from anyformer.families.family import Preset, sizes


class Glm4(glm.Glm, kind="glm4"):
    """GLM-4-0414."""

    base = glm.Glm.base | {"norm": {"kind": "rmsnorm", "eps": 1e-5, "placement": "sandwich"}}
    presets = (
        Preset("glm-4-9b-0414", "GLM-4 9B 0414 (2025)", sizes(4096, 40, 32, 2, 13696, 151552, 32768) | glm.IDS,
               9_400_279_040, evidence="a training script of another project; that queries, keys and values have "
               "biases follows from the count; ids are the defaults of the public class",
               note="the 32B of the same series has no biases"),
    )  # fmt: skip
    architectures = ("Glm4ForCausalLM",)
    tensors = like.tensors(
        glm.PARTS | {"attention_outer": "post_self_attn_layernorm", "ffn_outer": "post_mlp_layernorm"}
    )
