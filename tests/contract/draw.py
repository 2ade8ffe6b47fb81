"""Random specs: every axis, every registered kind, sizes that reach past windows and chunks.

Kinds and fields are read from the registries and type hints, so a new leaf is drawn without an edit here. A draw that
the rules refuse is drawn again: the generator needs no second copy of the rules.
"""

import functools
import random
from typing import Any, Literal, get_args, get_origin

from anyformer.errors import SpecError
from anyformer.registry import OpenAxis
from anyformer.specs import Embed, FeedForward, Head, Init, Mixer, ModelSpec, Norm, Pattern, Position
from anyformer.specs.codec import MISSING, fields_of, is_axis, optional

CONTEXTS = (21, 64)
"""The longest document that is fed has 21 tokens: a model may have just as many positions, and rows still be padded."""
CONTEXT = 64
HEAD_DIMS = (4, 6, 8)

FIXED = {
    # Defaults of these are sized for long texts; here every bucket, row and clip must be reached by 20 tokens.
    ("position", "t5"): {"buckets": 8, "max_distance": 20},
    ("position", "shaw"): {"clip": 5},
    ("position", "disentangled"): {"buckets": 8, "max_distance": 14},
    ("position", "axial"): {"rows": 8, "columns": 8},
    ("rope scaling", "dynamic"): {"original": 8, "factor": 3.0},
    ("rope scaling", "yarn"): {"original": 8, "factor": 4.0},
    ("rope scaling", "llama3"): {"original": 16, "factor": 4.0},
    ("embed", "patches"): {"image": 8, "patch": 2, "channels": 2},
    # Within one chunk it is exact, and held to every promise; beyond, test_approximate.py says what it keeps.
    ("mixer", "lsh"): {"chunk": 64},
}


def leaf_table(rng: random.Random, axis: type[OpenAxis], kind: str, head_dim: int = 4) -> dict[str, Any]:
    """A node of this kind: required fields, and some others, drawn by their types."""
    if kind == "longrope":
        factors = [round(1 + rng.random() * 3, 3) for _ in range(head_dim)]
        half = head_dim // 2
        return {"kind": kind, "factor": 4.0, "original": 12, "short": factors[:half], "long": factors[half : 2 * half]}
    table: dict[str, Any] = {"kind": kind} | FIXED.get((axis.axis, kind), {})
    for name, (hint, field) in fields_of(axis.named(kind)).items():
        required = field.default is MISSING and field.default_factory is MISSING
        if name in table or (axis.axis, name) in LATER or not (required or rng.random() < 0.4):
            continue
        inner, _ = optional(hint)
        if is_axis(inner):
            turned = table.get("dims") or int(head_dim * table.get("fraction", 1.0))
            table[name] = leaf_table(rng, inner, rng.choice(inner.kinds()), turned)
        elif inner is bool:
            table[name] = rng.random() < 0.5
        elif get_origin(inner) is Literal:
            table[name] = rng.choice(get_args(inner))
        elif required and inner is int:
            table[name] = rng.randint(2, 9)
        elif required and inner is float:
            table[name] = round(1 + 3 * rng.random(), 3)
        elif name not in ELSEWHERE and inner in (int, float):
            usual = None if required or field.default is MISSING else field.default
            small = {int: (2, 3, 4, 5), float: (0.5, 1.5)}[inner]
            table[name] = inner(rng.choice(small if usual is None else (usual * 0.5, usual * 2, usual + 2)))
    return table


ELSEWHERE = ("dropout", "width", "eps", "token_types", "clamp", "offset_up")
"""Numbers that are drawn where they belong, or whose size would hide what is tested."""


LATER = (("embed", "position"), ("ffn", "down_bias"))
"""Fields that a spec gets after it was drawn, so that they change no other draw."""


def maybe(rng: random.Random, chance: float, value: Any) -> Any:
    return value if rng.random() < chance else None


NUMBERS = {
    **dict.fromkeys(("first", "last", "seed"), (0, 1, 2, 3, 5, 7, 9)),
    # These two must be right for the layer.
    "heads": (1, 2, 3, 4, 5, 6),
    "most": (CONTEXT,),
}


REPEATS = frozenset(kind for kind in Pattern.kinds() if Pattern.named(kind).extra is not Pattern.extra)
"""Patterns that count keys several times. They stand for what another one is in eval mode, and go with few other choices:
tests of pairs and of parity look at them, random specs do not."""
PATTERNS = [kind for kind in Pattern.kinds() if kind not in REPEATS]


def pattern_leaf(rng: random.Random, kind: str, heads: int | None = None) -> str:
    """A pattern of this kind, with sizes that 21 tokens reach past."""
    values = []
    for name, (hint, field) in fields_of(Pattern.named(kind)).items():
        inner, _ = optional(hint)
        required = field.default is MISSING and field.default_factory is MISSING
        if not required and rng.random() < 0.5:
            continue
        if inner is bool:
            value = rng.random() < 0.5
        elif get_origin(inner) is Literal:
            value = rng.choice(get_args(inner))
        else:
            value = rng.choice(NUMBERS.get(name, (1, 2, 3, 5, 7, 9)))
            # A pattern that says how many heads there are must say what is true.
            value = heads if name == "heads" and heads is not None else value
        values.append(f"{name}={value!r}")
    return f"{kind}({', '.join(values)})"


def pattern_text(rng: random.Random, causal: bool, heads: int | None = None) -> str:
    text = pattern_leaf(rng, rng.choice(PATTERNS), heads)
    if rng.random() < 0.5:
        text = f"{text} {rng.choice('&|')} {pattern_leaf(rng, rng.choice(PATTERNS), heads)}"
    if causal and rng.random() < 0.1:
        return f"causal | {pattern_leaf(rng, 'prefix')}"
    return f"causal & ({text})" if causal else text


def norm_table(rng: random.Random) -> dict[str, Any]:
    table = leaf_table(rng, Norm, rng.choice(Norm.kinds()))
    if table.get("gain") == "none" and table["kind"] == "layernorm":
        table["bias"] = False
    return table


def attention_table(rng: random.Random, causal: bool | None, dropout: bool) -> dict[str, Any]:
    heads = rng.choice((1, 2, 3, 4, 5, 6))
    divisors = [d for d in range(1, heads + 1) if heads % d == 0]
    table = {
        "heads": heads,
        "kv_heads": maybe(rng, 0.7, rng.choice(divisors)),
        "head_dim": rng.choice(HEAD_DIMS),
        "pattern": None if causal is None else maybe(rng, 0.5, pattern_text(rng, causal, heads)),
        "mixer": leaf_table(rng, Mixer, rng.choice(("softmax", *Mixer.kinds()))),
        "bias": "".join(letter for letter in "qkvo" if rng.random() < 0.4) or None,
        "scale": rng.choice(("1/sqrt(head_dim)", "1/head_dim", 1.0, "1/sqrt(24)")),
        "softcap": maybe(rng, 0.25, 5.0),
        "temperature": maybe(
            rng, 0.15, rng.choice(({"kind": "log1p", "length": 4, "offset": heads % 2}, {"kind": "log_n", "length": 6}))
        ),
        "qk_norm": maybe(
            rng,
            0.3,
            norm_table(rng)
            | {"scope": rng.choice(("head", "heads", "whole")), "when": rng.choice(("before", "after"))},
        ),
        "v_norm": maybe(rng, 0.15, norm_table(rng) | {"scope": rng.choice(("head", "heads", "whole"))}),
        "clip_qkv": maybe(rng, 0.15, 0.6),
        "dropout": 0.2 if dropout else None,
    }
    if "global_tokens" in str(table["pattern"]) and rng.random() < 0.6:
        table["global_projections"] = True
    return {k: v for k, v in table.items() if v is not None}


def ffn_table(rng: random.Random, dropout: bool) -> dict[str, Any]:
    table = leaf_table(rng, FeedForward, rng.choice(FeedForward.kinds())) | {"width": rng.choice((8, 20, 33))}
    if rng.random() < 0.2 and "clamp" in fields_of(FeedForward.named(table["kind"])):
        table |= {"clamp": 1.5, "offset": 1.0}
    return table | ({"dropout": 0.2} if dropout else {})


COMPARING = ("choice",)
"""Heads that compare rows: a batch has three dimensions, which no test of any spec expects."""


def head_table(rng: random.Random, topology: str) -> dict[str, Any]:
    kind = rng.choice(("lm", "lm", "lm", *(kind for kind in Head.kinds() if kind not in COMPARING)))
    table = leaf_table(rng, Head, kind)
    if kind == "lm":
        table |= {"scale": rng.choice((1.0, "1/sqrt(width)", 0.5))} | ({"softcap": 4.0} if rng.random() < 0.2 else {})
    return table


def draw_table(rng: random.Random, topology: str) -> dict[str, Any]:
    dropout = rng.random() < 0.25
    width = rng.choice((12, 16, 24))
    depth = rng.choice((1, 2, 3))
    stack_causal = {"decoder": True, "encoder": False, "encoder-decoder": None}[topology]
    attention = attention_table(rng, stack_causal, dropout)
    head = head_table(rng, topology)
    embed = {
        "kind": rng.choice(("tokens", "tokens", "tokens", *Embed.kinds()))
        if topology != "encoder-decoder"
        else "tokens"
    }
    embed = leaf_table(rng, Embed, embed["kind"])
    if embed["kind"] == "tokens":
        embed |= {"width": rng.choice((8, 10))} if rng.random() < 0.3 else {}
        embed |= {"scale": "sqrt(width)"} if rng.random() < 0.3 else {}
        embed |= {"token_types": 2} if rng.random() < 0.3 or head["kind"] == "pair" else {}
    # RoPE has scalings below it, so it is drawn more often.
    position = leaf_table(rng, Position, rng.choice((*Position.kinds(), "rope", "rope")), attention["head_dim"])
    table = {
        "topology": topology,
        "vocab": 37,
        "width": width,
        "depth": depth,
        "context": rng.choice(CONTEXTS),
        "attention": attention | ({"cross_position": rng.random() < 0.4} if topology == "encoder-decoder" else {}),
        "position": position,
        "ffn": ffn_table(rng, dropout),
        "norm": norm_table(rng) | {
            "placement": rng.choice(("pre", "pre", "post", "sandwich", "output", "none")),
            "embedding": rng.random() < 0.2,
        } | ({"final": rng.random() < 0.5} if rng.random() < 0.3 else {})
        | ({rng.choice(("attention_placement", "ffn_placement")): rng.choice(("pre", "output", "none"))} if rng.random() < 0.2 else {}),
        "block": {
            "wiring": rng.choice(("serial", "serial", "parallel", "parallel2", "reversible")),
            "branch_scale": rng.choice((1.0, 0.5)),
            "dropout": 0.1 if dropout else 0.0,
        },
        "embed": embed | ({"dropout": 0.1} if dropout else {}),
        "head": head,
        "loss": {"z": rng.choice((0.0, 1e-3)), "label_smoothing": rng.choice((0.0, 0.1))},
        "init": leaf_table(rng, Init, rng.choice(Init.kinds())),
        "ids": {"start": 1, "pad": 0},
    }  # fmt: skip
    if table["block"]["wiring"] == "reversible" and rng.random() < 0.5:
        table["block"]["merge"] = "concat"
    if table["norm"]["placement"] == "none":
        # Without any norm the states grow until a soft-cap is flat and hides everything.
        table["norm"]["final"] = True
    if depth > 1 and rng.random() < 0.4:
        other: dict[str, Any] = {"attention": {"kv_heads": attention["heads"]}, "ffn": ffn_table(rng, dropout)}
        if rng.random() < 0.5:
            other["attention"] = {"heads": 3, "kv_heads": rng.choice((1, 3)), "head_dim": rng.choice(HEAD_DIMS)}
        if not Position.named(position["kind"]).overrides("embed"):
            relative = [k for k in Position.kinds() if not Position.named(k).overrides("embed")]
            other["position"] = leaf_table(rng, Position, rng.choice(relative), attention["head_dim"])
        table["layers"] = {"order": rng.choice(("1 base, 1 other", "base, rest other")), "base": {}, "other": other}
        if stack_causal is not None:
            table["layers"]["0"] = {"attention": {"pattern": pattern_text(rng, stack_causal, attention["heads"])}}
    if topology == "encoder-decoder":
        table["encoder"] = (
            {"attention": {"pattern": pattern_text(rng, False, attention["heads"])}} if rng.random() < 0.5 else {}
        )
        table["decoder"] = {"attention": {"pattern": pattern_text(rng, True)}} if rng.random() < 0.5 else {}
        table["encoder"] |= {"depth": rng.choice((1, 2))} if "layers" not in table and rng.random() < 0.5 else {}
    return table


def two_vocabularies(spec: ModelSpec, rng: random.Random) -> ModelSpec:
    """The spec, or that of an encoder-decoder whose source has a vocabulary of its own, as about half of them have.

    It is larger or smaller than the target's, so that ids of the one do not all fit the other.
    """
    if spec.topology != "encoder-decoder" or rng.random() < 0.5:
        return spec
    return spec.vary({"source_vocab": rng.choice((29, 53)), "embed.shared": False, "ids.source_pad": 3})


def added_positions(spec: ModelSpec, rng: random.Random) -> ModelSpec:
    """The spec, or one with positions that are added to the embeddings beside those of the layers, where that can be."""
    kind = rng.choice([kind for kind in Position.kinds() if Position.named(kind).overrides("embed")])
    node = leaf_table(rng, Position, kind)
    if rng.random() < 0.7:
        return spec
    try:
        return spec.vary({"embed.position": node})
    except SpecError:
        return spec


def other_bias(spec: ModelSpec, rng: random.Random) -> ModelSpec:
    """The spec, or one whose feed-forwards have a bias on the way back only, or on the way in only."""
    if rng.random() < 0.8:
        return spec
    try:
        return spec.vary({"ffn.down_bias": not spec.ffn.bias})
    except SpecError:
        return spec


def shared_layers(spec: ModelSpec, rng: random.Random) -> ModelSpec:
    """The spec, or that of a model whose layers share parameters, as about a quarter have of those that can."""
    order = rng.choice(("all", "all", "one, other", "one, rest other"))
    if rng.random() < 0.6:
        return spec
    try:
        return spec.vary({"layers.shared": order})
    except SpecError:
        return spec


@functools.cache
def draw(seed: int) -> ModelSpec:
    """The random spec of this seed. Of every ten, six are decoders, two encoders and two encoder-decoders."""
    rng = random.Random(seed)
    topology = ("decoder", "encoder", "decoder", "encoder-decoder", "decoder")[seed % 5]
    for _ in range(400):
        try:
            spec = two_vocabularies(ModelSpec.from_data(draw_table(rng, topology)), random.Random(-1 - seed))
            spec = other_bias(spec, random.Random(-3000 - seed))
            return shared_layers(added_positions(spec, random.Random(-2000 - seed)), random.Random(-1000 - seed))
        except SpecError:
            continue
    raise AssertionError(f"no valid spec in 400 draws for seed {seed}")


BASE: dict[str, Any] = {
    "vocab": 37, "width": 24, "depth": 2, "context": CONTEXT,
    "attention": {"heads": 6, "kv_heads": 3, "head_dim": 4}, "ffn": {"kind": "swiglu", "width": 20},
    "ids": {"start": 1, "pad": 0},
}  # fmt: skip


def every_kind() -> list[tuple[str, str]]:
    """(axis, kind) of everything registered."""
    axes: list[type[OpenAxis]] = [Position, Pattern, Norm, FeedForward, Mixer, Init, Embed, Head]
    nested = [Position.named("rope")]
    for leaf in nested:
        axes += [inner for hint, _ in fields_of(leaf).values() if is_axis(inner := optional(hint)[0])]
    return [(axis.axis, kind) for axis in axes for kind in axis.kinds()]


def spec_of_kind(axis: str, kind: str) -> ModelSpec:
    """A small spec that uses this kind, with some of its fields drawn."""
    for seed in range(100):
        try:
            return draw_kind(random.Random(seed), axis, kind)
        except SpecError as error:
            refused = error
    raise refused


def draw_kind(rng: random.Random, axis: str, kind: str) -> ModelSpec:
    """A small spec that uses this kind, if the draw is a valid one."""
    table = {k: dict(v) if isinstance(v, dict) else v for k, v in BASE.items()}
    if axis == "pattern":
        # Alone where it can be, in a decoder with what makes it causal; else beside a window, so that every token sees one.
        text = pattern_leaf(rng, kind)
        text = rng.choice((text, text, f"{text} | symmetric_window(1)"))
        table["topology"] = rng.choice(("decoder", "encoder"))
        if table["topology"] == "decoder" and Pattern.named(kind).causal is not True:
            text = f"causal | {text}" if kind == "prefix" else f"causal & ({text})"
        table["attention"]["pattern"] = text
        return ModelSpec.from_data(table)
    bases = {
        "position": Position,
        "norm": Norm,
        "ffn": FeedForward,
        "mixer": Mixer,
        "init": Init,
        "embed": Embed,
        "head": Head,
    }
    if axis in bases:
        node = leaf_table(rng, bases[axis], kind)
        if axis == "ffn":
            node["width"] = 20
    match axis:
        case "mixer":
            table["attention"]["mixer"] = node
            if Mixer.named(kind).shares_keys:
                table["attention"]["kv_heads"] = table["attention"]["heads"]
        case "embed":
            table |= {"embed": node, "topology": "encoder"}
        case "head":
            table |= {"head": node, "topology": "encoder"}
            if kind == "pair":
                table["embed"] = {"kind": "tokens", "token_types": 2}
        case "rope scaling":
            from anyformer.parts.positions.rope_scaling import RopeScaling

            table["position"] = {"kind": "rope", "scaling": leaf_table(rng, RopeScaling, kind)}
        case _:
            table[axis] = node
    return ModelSpec.from_data(table)
