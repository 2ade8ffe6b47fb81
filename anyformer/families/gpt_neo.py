"""GPT-Neo (Black et al. 2021): GPT-2 with a window in every second layer, unscaled scores and fewer biases."""

from typing import Any

from anyformer.families.config_keys import TEXTS, Key, is_whole, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family
from anyformer.families.gpt2 import BASE, ENDS, GELU_NEW, NORMS
from anyformer.families.key_groups import LOCAL, arranged, window_of
from anyformer.families.statemap import decoder_map
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST


def _is_types(value: object) -> bool:
    pairs: list[Any] = value if isinstance(value, list) else [None]
    return all(
        isinstance(pair, list) and len(pair) == 2 and TEXTS.fits(pair[0]) and is_whole(pair[1]) for pair in pairs
    ) and {kind for kinds, _ in pairs for kind in kinds} <= {"global", "local"}


class GPTNeo(Family, kind="gpt_neo"):
    """GPT-Neo. Its sizes were not confirmed, so it has no preset; its checkpoints are read."""

    base = BASE | {"attention": {"heads": 1, "bias": "o", "scale": 1.0}}
    architectures = ("GPTNeoForCausalLM",)
    keys = {
        **usual(vocab_size=50257, max_position_embeddings=2048, hidden_size=2048, num_layers=24, num_heads=16),
        **usual(intermediate_size=None, resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0),
        **usual(layer_norm_epsilon=1e-5, initializer_range=0.02, tie_word_embeddings=True),
        **usual(bos_token_id=50256, eos_token_id=50256),
        "attention_types": Key(
            what="a list of pairs: kinds of layers ('global' or 'local') and how often they are repeated",
            fits=_is_types,
            default=None,
            null=True,
        ),
        "attention_layers": TEXTS,
        "window_size": whole(256),
        "activation_function": GELU_NEW,
    }
    tensors = decoder_map(
        "transformer.h",
        {name: f"attn.attention.{name}_proj" for name in "qkv"}
        | {"o": "attn.attention.out_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
        | NORMS
        | ENDS,
        ignored=(r"(transformer\.)?h\.\d+\.attn\.attention\.(bias|masked_bias)",),
    )
    small = {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": 5}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        given = c["attention_types"]
        pairs = [[["global", "local"], 12]] if given is None else given
        names = [kind for kinds, count in pairs for kind in kinds * min(count, DEEPEST)]
        if len(names) != c["num_layers"]:
            c.problems.add("attention_types", f"names {len(names)} layers, but num_layers is {c['num_layers']}")
        if c["attention_layers"] not in (None, names):
            c.refuse("attention_layers", "says something else than attention_types; keep one of them")
        windows = {"local": {"attention.pattern": f"window({c['window_size']})"}, "global": {}}
        return super().read(c) | arranged(names, windows)

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        window, types = window_of(spec)
        return super().write(spec) | {
            "attention_types": [[["local" if kind == LOCAL else "global" for kind in types], 1]],
            "window_size": 256 if window is None else window,
        }
