"""The keys of a published config.json: what each may hold, and the field of a spec that goes with it both ways."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from anyformer.errors import nearest
from anyformer.families.config_values import DERIVED, Values
from anyformer.families.quantization import KEYS, refusal
from anyformer.specs.axes import Dims
from anyformer.specs.codec import fields_of
from anyformer.specs.formulas import evaluate
from anyformer.specs.layer import Layer, NormPlacement
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import Stack

ACTIVATIONS: dict[str, dict[str, str]] = {
    name: {"kind": kind}
    for kind, names in {
        "relu": "relu",
        "relu2": "relu2",
        "gelu": "gelu gelu_python",
        # The last of them with a constant of ten digits.
        "gelu_tanh": "gelu_new gelu_pytorch_tanh gelu_python_tanh gelu_fast",
        "gelu_quick": "quick_gelu",
        "silu": "silu swish",
        "tanh": "tanh",
    }.items()
    for name in names.split()
}
"""Published name -> our ungated kind."""

GATED: dict[str, dict[str, str]] = {
    "relu": {"kind": "reglu"},
    "sigmoid": {"kind": "glu"},
    "linear": {"kind": "bilinear"},
    "gelu": {"kind": "geglu", "form": "erf"},
    "gelu_python": {"kind": "geglu", "form": "erf"},
    "gelu_new": {"kind": "geglu", "form": "tanh"},
    "gelu_pytorch_tanh": {"kind": "geglu", "form": "tanh"},
    "quick_gelu": {"kind": "geglu", "form": "quick"},
    "silu": {"kind": "swiglu"},
    "swish": {"kind": "swiglu"},
}
"""Published name of the gate's activation -> our gated kind."""


class SpecView(NamedTuple):
    """A spec to be written as keys, and the layer that speaks for all; reading back shows what that hides."""

    spec: ModelSpec
    stack: Stack
    layer: Layer
    dims: Dims

    @classmethod
    def of(cls, spec: ModelSpec, stack: int = -1, layer: int = 0) -> "SpecView":
        """A layer of a spec: unless given, the first of its last stack."""
        chosen = spec.stacks[stack].layers[layer]
        return cls(spec, spec.stacks[stack], chosen, spec.dims(chosen, spec.stacks[stack]))

    def get(self, path: str, default: object = None) -> Any:
        """A field by its dotted name, sizes and scales as numbers; the default where its kind has no such field."""
        node, _, name = path.rpartition(".")
        if path in SIZES:
            return getattr(self.dims, SIZES[path])
        if not node:
            return getattr(self.spec, name)
        owner = getattr(self.layer if node in fields_of(Layer) else self.spec, node)
        leaf = node == "norm" and name not in fields_of(NormPlacement)
        value: Any = getattr(owner.leaf if leaf else owner, name, default)
        return evaluate(value, self.dims.names()) if name == "scale" else value


SIZES = {
    "depth": "depth",
    "attention.heads": "heads",
    "attention.kv_heads": "kv_heads",
    "attention.head_dim": "head_dim",
    "ffn.width": "ffn_width",
}
"""Fields that may be unset -> the size that they have then too."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a key may hold, and the fields of a spec that it is read into and written from."""

    what: str
    """What it must be, in words."""
    fits: Callable[[Any], bool]
    default: Any
    """What an absent key means: the default of the public class, which need not be what a checkpoint has."""
    null: bool = False
    """Whether null is a value of its own."""
    only: tuple[Any, ...] = ()
    """The values that we can express, if not all."""
    refuses: Callable[[Any], str | None] = lambda value: None
    """Why a value that fits can't be read."""
    sets: tuple[str, ...] = ()
    """Fields of a spec, by dotted names. The first of several keys that set a field is written, from the first of its
    fields; the others are older names of it, and count where they are given."""
    read: Callable[[Values, str], Mapping[str, Any]] = lambda c, name: {}
    """The value as changes of a spec."""
    write: Callable[[SpecView], Any] | None = None
    derived: bool = False
    """Whether the field is left unset where a spec derives the value by itself."""


Paths = str | tuple[str, ...]


def _field(
    sets: Paths, default: object, means: Callable[[Any, str], Any], says: Callable[[Any], Any]
) -> dict[str, Any]:
    """The two directions of a key: what its value means for each field, and what the value of the first one says."""
    paths = (sets,) if isinstance(sets, str) else sets
    if not paths:
        return {}
    return {
        "sets": paths,
        "read": lambda c, name: {path: means(c[name], path) for path in paths},
        "write": lambda view: says(view.get(paths[0], default)),
    }


LARGEST = 2**40
"""No size of a model comes near it, and rules that look for divisors stay quick below it."""


def is_whole(value: object) -> bool:
    """A whole number of a sane size."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_number(value: object) -> bool:
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def are_whole(value: object) -> bool:
    """A whole number, or a list of them."""
    return is_whole(value) or (isinstance(value, list) and all(map(is_whole, value)))


def whole(default: int | None, sets: Paths = (), *, null: bool = False, derived: bool = False) -> Key:
    """A whole number."""
    field = _field(sets, default, lambda value, _: value, lambda value: value)
    null = null or default is None
    what = "a whole number of a sane size"
    return Key(what=what, fits=is_whole, default=default, null=null, derived=derived, **field)


def number(default: float | None, sets: Paths = (), *, null: bool = False, empty: float | None = None) -> Key:
    """A finite number; `empty` is what null means."""
    null = null or default is None
    field = _field(
        sets,
        default,
        lambda value, _: empty if value is None else float(value),
        lambda value: default if value is None and not null else value,
    )
    return Key(what="a finite number", fits=_is_number, default=default, null=null, **field)


def flag(default: bool, sets: Paths = (), *, null: bool = False, on: object = None, off: object = None) -> Key:
    """True or false: of a field that is neither, `on` or `off`, which are biases for all projections or for none."""

    def means(value: object, path: str) -> object:
        usual = ("qkvo" if value else "") if path == "attention.bias" else value
        given = on if value else off
        return usual if given is None else given

    field = _field(sets, default, means, lambda value: bool(value) and value != off)
    return Key(what="true or false", fits=lambda value: isinstance(value, bool), default=default, null=null, **field)


def divisor(default: float, sets: str) -> Key:
    """A finite number by which something is divided."""
    read = _field(
        sets,
        1 / default,
        lambda value, _: 1.0 if value == 1 else f"1/{float(value)}",
        lambda value: float(f"{1 / value:.10g}"),
    )
    return Key(what="a finite number", fits=_is_number, default=default, **read)


def activation(
    default: str | None,
    *,
    gated: bool = False,
    prefer: str = "gelu_pytorch_tanh",
    more: Mapping[str, Any] | None = None,
    also: str = "",
    known: Mapping[str, Mapping[str, str]] | None = None,
    what: str = "an activation",
) -> Key:
    """The activation of a feed-forward, and `more` that a feed-forward of a new kind begins with.

    `prefer` is how a family spells GELU by tanh, `also` another field that has the same activation, `known` what names
    mean where a family has its own, and `what` such a name in words.
    """
    meant = known or (GATED if gated else ACTIVATIONS)

    def read(c: Values, name: str) -> Mapping[str, Any]:
        if c[name] not in meant:
            gate = " of the gate" if gated else ""
            c.refuse(name, f"{c[name]!r} is {what}{gate} that we don't have{nearest(c[name], meant)}")
        kind = {f"ffn.{field}": value for field, value in meant.get(c[name], {"kind": "relu"}).items()}
        return kind | dict(more or {}) | ({also: kind["ffn.kind"]} if also else {})

    def write(view: SpecView) -> str:
        form = getattr(view.layer.ffn, "form", None)
        wanted = {"kind": view.layer.ffn.kind} | ({"form": form} if form else {})
        # The nearest thing if there is no such name, which reading back shows.
        names = [name for name, kind in meant.items() if kind == wanted] or ["silu"]
        return prefer if prefer in names else names[0]

    return replace(text(default), sets=("ffn.kind",), read=read, write=write)


def text(default: str | None) -> Key:
    """A text."""
    return Key(what="a text", fits=lambda value: isinstance(value, str), default=default, null=default is None)


def _listed(what: str, fits: Callable[[Any], bool]) -> Key:
    return Key(what=what, fits=lambda value: isinstance(value, list) and all(map(fits, value)), default=None, null=True)


TEXTS = _listed("a list of texts", lambda value: isinstance(value, str))
NUMBERS = _listed("a list of finite numbers", _is_number)
TABLE = Key(what="a table", fits=lambda value: isinstance(value, Mapping), default=None, null=True)
"""Each of them may be left out."""

FIELDS: dict[str, Paths] = {
    name: field
    for field, names in {
        "vocab": "vocab_size tgt_vocab_size",
        "width": "hidden_size n_embd n_embed d_model",
        "depth": "num_hidden_layers num_layers n_layers n_layer encoder_layers",
        "attention.heads": "num_attention_heads num_heads n_heads n_head encoder_attention_heads",
        "attention.kv_heads": "num_key_value_heads",
        "attention.head_dim": "head_dim d_kv attention_head_size",
        "attention.bias": "attention_bias",
        "attention.dropout": "attention_dropout attention_probs_dropout_prob attention_dropout_prob attn_pdrop",
        "ffn.width": "intermediate_size ffn_dim encoder_ffn_dim ffn_hidden_size feed_forward_size n_inner d_ff",
        "ffn.bias": "mlp_bias",
        "ffn.dropout": "mlp_dropout ffn_dropout_prob",
        "block.dropout": "resid_pdrop resid_dropout residual_dropout hidden_dropout",
        "embed.dropout": "embd_pdrop embed_dropout embedding_dropout embedding_dropout_prob",
        ("block.dropout", "embed.dropout"): "dropout hidden_dropout_prob",
        ("block.dropout", "embed.dropout", "attention.dropout", "ffn.dropout"): "dropout_rate",
        "context": "max_position_embeddings n_positions max_seq_len",
        "norm.eps": "layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon rms_norm_eps",
        "init.std": "initializer_range init_std",
        "init.factor": "initializer_factor",
        "head.tied": "tie_word_embeddings",
        "position.buckets": "relative_attention_num_buckets",
        "position.max_distance": "relative_attention_max_distance",
    }.items()
    for name in names.split()
}
"""What published names mean for a spec, nearly everywhere."""


def usual(**defaults: float | list[int] | None) -> dict[str, Key]:
    """Keys with their usual meaning, or of special ids, by the defaults of one public class.

    A size that a spec derives is left unset; of a feed-forward's width that is so if the class derives it too.
    """
    made: dict[str, Key] = {}
    for name, default in defaults.items():
        if name.endswith("_token_id") or isinstance(default, list):
            made[name] = Key(what="a token id or a list of them", fits=are_whole, default=default, null=True)
        elif isinstance(default, bool):
            made[name] = flag(default, FIELDS[name])
        elif isinstance(default, float):
            made[name] = number(default, FIELDS[name])
        else:
            field = FIELDS[name]
            made[name] = whole(default, field, derived=field in DERIVED and (default is None or field != "ffn.width"))
    return made


def each(key: Key, *names: str) -> dict[str, Key]:
    """Several keys that hold the same."""
    return dict.fromkeys(names, key)


def required(default: bool, why: str, wanted: str = "") -> Key:
    """A flag that must be true for this reason."""

    def read(c: Values, name: str) -> Mapping[str, Any]:
        if not c[name]:
            c.refuse(name, why, wanted)
        return {}

    return replace(flag(default), read=read, write=None if default else lambda view: True)


def embed_width(default: int | None = None) -> Key:
    """The width of the table of tokens, unless it is the model's."""

    def read(c: Values, name: str) -> Mapping[str, Any]:
        narrow = None if c[name] == c["hidden_size"] else c[name]
        if narrow is not None and not c["tie_word_embeddings"]:
            c.refuse("tie_word_embeddings", "false goes with a table as wide as the model only")
        return {"embed.width": narrow}

    return replace(whole(default), read=read, write=lambda view: view.spec.embed_width)


def must(*values: Any) -> Key:
    """A key that can only have these values; the first is what an absent one means."""
    words = " or ".join(repr(value) for value in values)
    return Key(what=words, fits=lambda value: True, default=values[0], null=True, only=values)


COMMON: dict[str, Key] = {
    "is_encoder_decoder": must(False, None),
    "is_decoder": flag(False),
    "add_cross_attention": must(False, None),
    "cross_attention_hidden_size": must(None),
    "tie_encoder_decoder": must(False, None),
    "pruned_heads": must(None, {}),
    **each(replace(TABLE, refuses=refusal), *KEYS),
    **usual(bos_token_id=None, eos_token_id=None, pad_token_id=None),
    "decoder_start_token_id": whole(None),
}
"""What every config may hold and may change what a model computes. A family's own keys come before these."""


def read_ids(c: Values, vocab: int) -> dict[str, Any]:
    """The special ids, as changes of a spec.

    An id outside of the vocabulary (-1, or a default that was left standing) can never be met and is left out.
    """

    def within(value: Any) -> list[int]:
        listed = value if isinstance(value, list) else [value]
        return [n for n in listed if n is not None and 0 <= n < vocab]

    found: dict[str, Any] = {"ids.eos": within(c["eos_token_id"])}
    for name, key in (("bos", "bos_token_id"), ("pad", "pad_token_id"), ("start", "decoder_start_token_id")):
        found[f"ids.{name}"] = next(iter(within(c[key])), None)
    return found


def write_ids(spec_ids: Any) -> dict[str, Any]:
    """The special ids as keys. Every one is written: an absent key would mean the public class's default."""
    eos = list(spec_ids.eos)
    return {
        "bos_token_id": spec_ids.bos,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": spec_ids.pad,
        "decoder_start_token_id": spec_ids.start,
    }
