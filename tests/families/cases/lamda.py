"""LaMDA: what its preset is. It has no public class."""

SIZES = {"lamda-137b": (8192, 64, 128, 128, 128, 65536, 32000, 1024, 1e-06, True)}

FACTS = {
    "lamda-137b": {
        "topology": "decoder",
        "0/position.kind": "t5",
        "0/position.shared": True,
        "0/ffn.kind": "geglu",
        "0/ffn.form": "tanh",
        "0/attention.pattern": "causal",
    }
}
