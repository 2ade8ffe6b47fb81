"""What families with experts share: the names of their keys and tensors, and which of their layers are dense.

Most files have a tensor for each expert. The public classes hold all experts of a layer in one tensor, as do some files,
so both layouts are read; the released one is written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anyformer.errors import nearest
from anyformer.families import llama_like as like
from anyformer.families.config_keys import (
    GATED,
    NUMBERS,
    TEXTS,
    Key,
    SpecView,
    flag,
    is_whole,
    must,
    number,
    text,
    whole,
)
from anyformer.families.config_values import Values
from anyformer.families.key_groups import LAYERS, Arrangement, each_layer
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.tensor_ops import Slice, Stacked
from anyformer.specs.model import ModelSpec

BASE: dict[str, Any] = like.BASE | {"ffn": {"kind": "moe"}}
DEEPSEEK: dict[str, Any] = BASE | {"ffn": {"kind": "moe", "score": "sigmoid", "selection_bias": True}}
"""The router of DeepSeek-V3 and its relatives, without groups of experts."""
HEAD_NORM: dict[str, Any] = {"kind": "rmsnorm", "eps": 1e-6}

SINKS = Rule("model.layers.{i}.self_attn.sinks", "decoder.blocks.{i}.attention.body.mixer.sink_H")
"""A learned logit of each head that attends to nothing."""
PREDICTS = "eh_proj.weight"
"""What the extra layers of DeepSeek-V3's relatives have beside a block, by which they are known."""
LAYER, OURS = "model.layers.{i}", "decoder.blocks.{i}.ffn.body"
PROJECTIONS = {name: f"{name}_proj" for name in ("gate", "up", "down")}


def each(at: str = "mlp.experts", names: Mapping[str, str] = PROJECTIONS) -> tuple[Rule, ...]:
    """The rules of a tensor for each expert."""
    return tuple(
        Rule(f"{LAYER}.{at}.{{n}}.{theirs}.{{p}}", f"{OURS}.experts.{own}.{{p}}", Slice())
        for own, theirs in names.items()
    )


def fused(
    at: str = "mlp.experts", gate_up: str = "gate_up_proj", down: str = "down_proj", *,
    transposed: bool = False, interleaved: bool = False,
) -> tuple[Rule, ...]:  # fmt: skip
    """The rules of one tensor for all experts of a layer, with gate and up side by side."""
    inputs, one = Stacked(transposed=transposed, interleaved=interleaved), Stacked(transposed=transposed)
    return tuple(
        rule
        for p, ending in (("weight", ""), ("bias", "_bias"))
        for rule in (
            Rule(
                f"{LAYER}.{at}.{gate_up}{ending}",
                tuple(f"{OURS}.experts.{name}.{p}" for name in ("gate", "up")),
                inputs,
            ),
            Rule(f"{LAYER}.{at}.{down}{ending}", f"{OURS}.experts.down.{p}", one),
        )
    )


def tensors(
    parts: dict[str, str], *experts: tuple[Rule, ...], at: str = "mlp", router: str = "gate",
    bias: str = "gate.e_score_correction_bias", shared: str = "shared_experts", more: Sequence[Rule] = (),
    ignored: tuple[str, ...] = (), extra: str = "", forms: Mapping[str, str] | None = None,
) -> StateMap:  # fmt: skip
    """A table with experts: `experts` are the layouts that files may have, the released one first.

    Inside of `at`, `router`, `bias` and `shared` are the names of the router, of its bias for the choice and of the
    expert that all tokens go through; empty where the rules are among `more`.
    """
    rules = [Rule(f"{LAYER}.{at}.{router}.{{p}}", f"{OURS}.router.{{p}}"), *more]
    if bias:
        rules.append(Rule(f"{LAYER}.{at}.{bias}", f"{OURS}.selection_bias"))
    if shared:
        rules.append(Rule(f"{LAYER}.{at}.{shared}_gate.weight", f"{OURS}.shared_gate.weight"))
        rules += [Rule(f"{LAYER}.{at}.{shared}.{x}_proj.{{p}}", f"{OURS}.shared.{x}.{{p}}") for x in PROJECTIONS]
    made = [like.tensors(parts, *rules, *layout) for layout in experts or (each(), fused())]
    first, *others = (
        replace(table, ignored=(*table.ignored, *ignored), extra=extra, forms=forms or {}) for table in made
    )
    return replace(first, also=tuple(others))


def activation_name(view: SpecView) -> str:
    """The published name of the experts' activation; the nearest thing if there is none, which reading back shows."""
    leaf: Any = getattr(view.layer.ffn, "expert", view.layer.ffn)
    form = getattr(leaf, "form", None)
    wanted = {"kind": leaf.kind} | ({"form": form} if form else {})
    return next((name for name, kind in GATED.items() if kind == wanted), "silu")


def activation(default: str = "silu") -> Key:
    """The activation of the experts, which is that of the dense layers too."""

    def read(c: Values, name: str) -> Mapping[str, Any]:
        if c[name] not in GATED:
            c.refuse(name, f"{c[name]!r} is an activation of the gate that we don't have{nearest(c[name], GATED)}")
        return {"ffn.expert": GATED.get(c[name], GATED["silu"])}

    return replace(text(default), sets=("ffn.expert",), read=read, write=activation_name)


def dense_width(default: int) -> Key:
    """The inner width of dense layers; where there are none, it has no meaning, and is that of an expert."""

    def write(view: SpecView) -> int:
        dense = (layer for layer in view.stack.layers if not layer.ffn.routes)
        return view.spec.dims(next(dense, view.layer), view.stack).ffn_width

    return replace(whole(default), write=write)


def shared_width(default: int | None, each: str | None = None) -> Key:
    """The inner width of the shared expert, 0 if there is none; or how many there are as wide as `each` says."""

    def read(c: Values, name: str) -> Mapping[str, Any]:
        return {"ffn.shared_width": (c[name] or 0) * (c[each] if each else 1) or None}

    def write(view: SpecView) -> int:
        total = view.get("ffn.shared_width") or 0
        return -(-total // view.dims.ffn_width) if each else total

    return replace(whole(default, null=True), read=read, write=write)


def _one_of(names: Sequence[str], default: int | None, field: str) -> dict[str, Key]:
    """A number under several names of the public class, one of which must be there unless it has a default."""

    def read(c: Values, name: str) -> Mapping[str, Any]:
        if all(c[name] is None for name in names):
            c.problems.add(name, "is missing")
        return {field: c[name]}

    def read_other(c: Values, name: str) -> Mapping[str, Any]:
        # A number of each layer, which must all be the same, is said once by another name.
        usual = {*c[first]} if isinstance(c[first], list) else {c[first]}
        if c[name] is not None and first in c.given and usual not in ({None}, {c[name]}):
            c.refuse(name, f"is {c[name]}, and {first} is {c[first]}; keep one of them")
        return {field: c[name]}

    first, *others = names
    # Where all layers are dense, any number will do.
    key = replace(whole(default, field, null=True), read=read, write=lambda view: view.get(field) or default or 1)
    return {first: key, **{name: replace(whole(None, field), read=read_other) for name in others}}


def expert_keys(
    experts: int | None, top_k: int | None, *, count: str = "num_experts", chosen: str = "num_experts_per_tok",
    width: int | None = None, dense: int | None = None, normalise: bool | None = None,
) -> dict[str, Key]:  # fmt: skip
    """The keys of experts with the defaults of one public class.

    `width` is that of an expert and `dense` that of a dense layer, where a class has a key for each; otherwise
    `intermediate_size` is that of an expert. `normalise` is None if it has no such key.
    """
    counts = [count, *(name for name in ("num_experts", "num_local_experts", "n_routed_experts") if name != count)]
    return {
        **_one_of(counts, experts, "ffn.experts"),
        **_one_of([chosen] if chosen == "num_experts_per_tok" else [chosen, "num_experts_per_tok"], top_k, "ffn.top_k"),
        **({} if width is None else {"moe_intermediate_size": whole(width, "ffn.width")}),
        **({} if dense is None else {"intermediate_size": dense_width(dense)}),
        **({} if normalise is None else {"norm_topk_prob": flag(normalise, "ffn.normalise", null=True, off=False)}),
        "hidden_act": activation(),
        # Of training only.
        "output_router_logits": flag(False, null=True),
        "router_aux_loss_coef": number(0.001, null=True),
        "router_jitter_noise": number(0.0, null=True),
    }


def no_groups() -> dict[str, Key]:
    """Keys of groups of experts, of which there may be one only."""
    return {"n_group": must(1, None), "topk_group": must(1, None)}


@dataclass(frozen=True, kw_only=True)
class DenseKeys:
    """Which layers are dense."""

    keys: Mapping[str, Key]
    is_dense: Callable[[Values, int], Any]
    said: Callable[[Sequence[bool]], Mapping[str, Any]]
    """The keys that say which layers are dense."""
    width: str = "intermediate_size"
    """The key of their inner width."""

    def read(self, c: Values) -> Mapping[str, Any]:
        kind = GATED.get(c["hidden_act"], GATED["silu"]) | {"width": c[self.width]}
        dense = {f"ffn.{name}": value for name, value in kind.items()}
        names = each_layer(c, lambda i: "dense" if self.is_dense(c, i) else "sparse")
        return {LAYERS: Arrangement(names, {"dense": dense, "sparse": {}})}

    def write(self, spec: ModelSpec) -> Mapping[str, Any]:
        return self.said([not layer.ffn.routes for layer in spec.stacks[-1].layers])


def first_dense(default: int, name: str = "first_k_dense_replace") -> DenseKeys:
    """The first layers, by their number."""
    return DenseKeys(
        keys={name: whole(default, null=True)},
        is_dense=lambda c, i: i < (c[name] or 0),
        said=lambda dense: {name: [*dense, False].index(False)},
    )


def listed_dense(default: Sequence[int] = ()) -> DenseKeys:
    """Some layers by a list, and all but every n-th (Qwen)."""

    def is_dense(c: Values, i: int) -> bool:
        listed = default if c["mlp_only_layers"] is None else c["mlp_only_layers"]
        return i in listed or (i + 1) % max(c["decoder_sparse_step"], 1) != 0

    return DenseKeys(
        keys={"mlp_only_layers": NUMBERS, "decoder_sparse_step": at_least_one(1)},
        is_dense=is_dense,
        said=lambda dense: {"mlp_only_layers": [i for i, yes in enumerate(dense) if yes], "decoder_sparse_step": 1},
    )


def at_least_one(default: int) -> Key:
    """A whole number above 0."""
    return replace(whole(default), what="a whole number above 0", fits=lambda value: is_whole(value) and value > 0)


def typed_dense(first: Callable[[Values], int] = lambda c: 0, **more: Key) -> DenseKeys:
    """A list of the type of every layer; without one, the first so many."""

    def is_dense(c: Values, i: int) -> bool:
        types = c["mlp_layer_types"]
        if types is None:
            return i < first(c)
        if i == 0 and len(types) != len(each_layer(c, str)):
            c.problems.add("mlp_layer_types", f"lists {len(types)} layers, but there are {c['num_hidden_layers']}")
        if i == 0 and (odd := sorted({*types} - {"dense", "sparse"})):
            c.refuse("mlp_layer_types", f"{odd[0]!r} is a kind of layer that this family does not have")
        return i < len(types) and types[i] == "dense"

    return DenseKeys(
        keys={"mlp_layer_types": TEXTS, **more},
        is_dense=is_dense,
        said=lambda dense: {"mlp_layer_types": ["dense" if yes else "sparse" for yes in dense]},
    )


def small(count: str = "num_experts", **more: Any) -> dict[str, Any]:
    """A small config with few experts, a number of them that is no power of two."""
    few = {count: 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "intermediate_size": 24}
    return like.small(rope_theta=500.0) | few | more


class MoeLike(like.LlamaLike):
    """LLaMA's design and names with experts, of which a family says what it has otherwise."""

    base = BASE
    tensors = tensors(like.LLAMA)

    @classmethod
    def view(cls, spec: ModelSpec) -> SpecView:
        """A sparse layer speaks for all; what dense ones have otherwise is said by keys of their own."""
        sparse = [i for i, layer in enumerate(spec.stacks[-1].layers) if layer.ffn.routes]
        return SpecView.of(spec, -1, sparse[0] if sparse else 0)
