"""All that is known about a spec, in a paragraph, for printing, for drawing and as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anyformer.explain.axes import PLACEMENTS, Axis, Placed, axes_of
from anyformer.explain.costs import STORED, Cost, Machine, check_contexts, cost, usual_contexts
from anyformer.explain.drawing import picture_of, sketch
from anyformer.explain.groups import Group, groups
from anyformer.explain.words import join, some, text_of
from anyformer.families.family import Preset
from anyformer.families.zoo import known
from anyformer.specs.count import dtype_bytes
from anyformer.specs.model import ModelSpec
from anyformer.specs.number_format import params

WIRED = {
    "serial": "",
    "parallel": "; its branches run in parallel",
    "parallel2": "; its branches run in parallel",
    "reversible": "; its branches alternate between two streams and can be run backwards",
}
KINDS = 3
"""Kinds of layers that a paragraph describes; more are in the table of axes."""


def summary(spec: ModelSpec) -> str:
    """What the model is, in a few sentences."""
    layers = some(spec.stacks[-1].depth, "layer")
    if len(spec.stacks) > 1:
        layers = f"{join([f'{stack.depth} {stack.name}' for stack in spec.stacks])} layers"
    if any(stack.shared for stack in spec.stacks):
        layers += f" that share {some(sum(len(stack.blocks) for stack in spec.stacks), 'set')} of parameters,"
    size = f"a width of {spec.width:,} and {params(spec.count().params)} parameters"
    size += f", made for up to {some(spec.context, 'token')}"
    made = f"{_article(spec.topology).capitalize()} of {layers} with {size}."
    known = f" of a vocabulary of {spec.input_vocab:,}" if spec.embed.reads == "input_ids" else ""
    tied = " from the embedding table" if getattr(spec.head, "tied", False) else ""
    other = f" of another of {spec.vocab:,}" if spec.source_vocab is not None and spec.head.predicts_tokens else ""
    known += "" if spec.embed.position is None else f" with {spec.embed.position.called()} positions"
    ends = f"It reads {spec.embed.called()}{known} and answers with {spec.head.called()}{other}{tied}."
    return " ".join([made, *_layers(spec), ends])


def _layers(spec: ModelSpec) -> list[str]:
    alike = groups(spec)
    if len(alike) == 1:
        return [f"Every layer has {_layer(alike[0])}."]
    if len(alike) > KINDS:
        return [f"Its layers are of {len(alike)} kinds."]
    texts = [f"{group.where()}: {_layer(group)}." for group in alike]
    return [text[0].upper() + text[1:] for text in texts]


def _layer(group: Group) -> str:
    layer, dims = group.layer, group.dims
    heads = f"{some(dims.heads, 'head')} of {dims.head_dim}"
    if dims.kv_heads < dims.heads:
        kind = "MQA" if dims.kv_heads == 1 else "GQA"
        shared = "one key and value head" if dims.kv_heads == 1 else f"{dims.kv_heads} key and value heads"
        heads = f"{some(dims.heads, 'query head')} of {dims.head_dim} that share {shared} ({kind})"
    sees = f"the attention pattern {group.pattern}"
    crossing = "attention to the encoder" if group.stack.cross else ""
    ffn = f"{_article(layer.ffn.called())} feed-forward of {dims.ffn_width:,}"
    both = dict.fromkeys((layer.norm.of_attention(), layer.norm.of_ffn()))
    norm = f"{layer.norm.leaf.called()} {join([PLACEMENTS[each][0] for each in both])}"
    position = layer.position.called()
    known = position if position.startswith("no ") else f"{position} positions"
    parts = [heads, known, sees, crossing, ffn, "no norm" if list(both) == ["none"] else norm]
    return join([part for part in parts if part]) + WIRED[layer.block.wiring]


def _article(name: str) -> str:
    """`a SwiGLU`: by the letter as it is said, which is near enough for names."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def exemptions(spec: ModelSpec) -> list[str]:
    """What keeps a promise only in part, each with its layers."""
    found: dict[str, list[str]] = {}
    for group in groups(spec):
        mixer, position = group.layer.attention.mixer, group.layer.position
        if not mixer.exact:
            found.setdefault(f"mixer {mixer.called()} {mixer.approximation()}", []).append(group.where())
        if position.needs_length:
            why = (
                "depends on the length of the text: it reads one length, declared for each forward or cache "
                "(rope_length=, default: the document's own), and keeps every promise at the same declared length"
            )
            found.setdefault(f"position {text_of(position)} {why}", []).append(group.where())
    return [f"{', '.join(places)}: {text}" for text, places in found.items()]


PRESET = ("name", "also", "title", "params", "published", "evidence", "note")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A spec, explained."""

    name: str
    spec: ModelSpec
    preset: Preset | None
    varied: bool
    """Whether the spec differs from the preset that it comes from."""
    summary: str
    axes: tuple[Axis, ...]
    by_part: Mapping[str, int]
    """Parameters of each part, most first."""
    weights_bytes: Mapping[str, int]
    """dtype -> bytes of all weights."""
    costs: tuple[Cost, ...]
    machine: Machine
    groups: tuple[Group, ...]
    exemptions: tuple[str, ...]

    @property
    def params(self) -> int:
        return sum(self.by_part.values())

    @property
    def title(self) -> str:
        if self.preset is None:
            return self.name
        return f"{self.name}: {self.preset.title}{', varied' if self.varied else ''}"

    def counted(self) -> str:
        """The count, against the number that is known of the released model."""
        text = f"{self.params:,} parameters counted"
        if self.preset is None:
            return f"{text}."
        if self.varied:
            return f"{text}; {self.preset.params:,} before it was varied."
        if not self.preset.released:
            return f"{text}; its weights were never released, so there is no exact number to compare with."
        gap = self.params - self.preset.params
        compared = f"{abs(gap):,} {'more' if gap > 0 else 'less'} than" if gap else "as many as"
        return f"{text}, {compared} the released model has."

    def data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "preset": _fields(self.preset, *PRESET) if self.preset else None,
            "varied": self.varied,
            "summary": self.summary,
            "spec": self.spec.to_data(),
            "axes": [{"axis": axis.name, "choices": [_choice(each) for each in axis.placed]} for axis in self.axes],
            "parameters": {"total": self.params, "by_part": dict(self.by_part)},
            "weights_bytes": dict(self.weights_bytes),
            "costs": [asdict(each) | {"kv_bytes_per_token": each.kv_bytes_per_token} for each in self.costs],
            "machine": asdict(self.machine) | {"balance": self.machine.balance},
            "layers": [_group(group) for group in self.groups],
            "exemptions": list(self.exemptions),
        }


def preset_of(source: str) -> Preset | None:
    """The preset that a source names, if it is no file and no directory."""
    found = None if Path(source).suffix == ".toml" or Path(source).is_dir() else known(source)
    return found and found[1]


def report(
    spec: ModelSpec,
    machine: Machine,
    *,
    name: str,
    preset: Preset | None = None,
    varied: bool = False,
    contexts: Sequence[int] = (),
    layer: int | None = None,
) -> Report:
    """Explain a spec: at these contexts (default: a few up to its own), and only the layers alike to `layer`."""
    count = spec.count()
    chosen = check_contexts(spec, contexts) if contexts else usual_contexts(spec)
    return Report(
        name=name,
        spec=spec,
        preset=preset,
        varied=varied,
        summary=summary(spec),
        axes=axes_of(spec, layer),
        by_part=dict(sorted(count.params_by_part.items(), key=lambda part: -part[1])),
        weights_bytes={dtype: count.params * dtype_bytes(dtype) for dtype in STORED},
        costs=tuple(cost(count, context, machine) for context in chosen),
        machine=machine,
        groups=tuple(groups(spec, layer)),
        exemptions=tuple(exemptions(spec)),
    )


def _fields(node: Any, *names: str) -> dict[str, Any]:
    return {name: list(value) if isinstance(value := getattr(node, name), tuple) else value for name in names}


def _choice(placed: Placed) -> dict[str, Any]:
    layers = {stack: list(indices) for stack, indices in placed.layers.items()}
    return _fields(placed.choice, "value", "words", "equation", "file") | {"layers": layers}


def _group(group: Group) -> dict[str, Any]:
    drawn = picture_of(group)
    return {
        "stack": group.stack.name,
        "layers": list(group.indices),
        "block": asdict(sketch(group)),
        "pattern": str(group.pattern),
        "drawn_as": str(drawn.drawn),
        "divided_by": drawn.divided,
        "grid": drawn.cells.astype(int).tolist(),
        "grids": {name: cells.astype(int).tolist() for name, cells in drawn.panels.items() if name},
    }
