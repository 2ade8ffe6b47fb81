"""Language models inside the checkpoints of multimodal classes, as data: where their keys and their tensors are.

Such a model is one of a family that we read: its keys stand in `text_config`, and its tensors have a prefix. What is left
out of the file is named here, never guessed: the vision tower and what joins it to the text. A tower that is loaded is a
model of its text family, and is written as that family's own class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from anyformer.errors import SpecError
from anyformer.families.config_keys import Key
from anyformer.families.config_values import REMOTE, Values, read_by
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.tensor_ops import Stacked
from anyformer.specs.codec import Problems
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    from anyformer.families.family import Family

TIED = "tie_word_embeddings"
MOVED = ("bos_token_id", "eos_token_id", "pad_token_id", "quantization_config", REMOTE, TIED)
"""Keys beside the table that say something about the text as well."""
ALSO = {"num_experts": "num_local_experts"}
"""Keys that may have another name in a file."""
ANY = Key(what="anything", fits=lambda value: True, default=None, null=True)
TOKENS = ("image_token_id", "image_token_index")
QWEN_TOKENS = (
    *TOKENS, "video_token_id", "vision_token_id", "vision_start_token_id", "vision_end_token_id", "spatial_merge_size",
)  # fmt: skip
LLAVA = (*TOKENS, "projector_hidden_act", "vision_feature_layer", "vision_feature_select_strategy", "image_seq_length")
NAMES = {r"^(?:model\.)?language_model\.lm_head\.": "lm_head.", r"^(?:model\.)?language_model\.(?:model\.)?": "model."}
"""How a language model's tensors are called in all these files -> how its own class calls them."""
VISION = r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..*"


@dataclass(frozen=True, kw_only=True, eq=False)
class Tower:
    """A multimodal class, and the language model in it."""

    architectures: tuple[str, ...]
    model_type: str
    others: tuple[str, ...] = (VISION,)
    """Patterns of the tensors that are no part of the language model."""
    known: tuple[str, ...]
    """Keys beside the text's that are about something else than text."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of text configs that are a family's in all but name and defaults -> the family's. Other types are their own."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What absent keys of such a text config mean, where the family's class means something else."""
    theta: float | None = None
    """The same of RoPE's theta, which may stand in a table."""
    experts: tuple[Rule, ...] = ()
    """Where the experts may be in its files, other than where the family has them."""
    sections: bool = False
    """Whether RoPE has sections for time, height and width: with positions of a text they are all the same."""
    flat: bool = False
    """Whether older files have the keys of the text among the others."""
    refused: tuple[str, ...] = ()
    """Keys of the text by which the multimodal class computes something else than the text's class alone."""
    tied: bool = True
    """What an absent `tie_word_embeddings` means, where no file tells it."""
    either: bool = False
    """Whether words are tied if either config says so."""

    @property
    def keys(self) -> dict[str, Key]:
        """Keys of the config that are not the text's."""
        names = (*self.known, "vision_config", "text_config", "initializer_range", "is_encoder_decoder", *MOVED)
        return dict.fromkeys(names, ANY)

    def text_type(self, config: Mapping[str, Any], source: str = "") -> Any:
        """The type of the language model, as its family has it."""
        given, kind = config.get("text_config"), config.get("model_type")
        if kind not in (None, self.model_type):
            why = f"{kind!r} does not go with architectures {[*self.architectures]!r}, which are {self.model_type!r}"
            raise SpecError([f"model_type: {why}"], source)
        if not isinstance(given, Mapping) and not (self.flat and given is None):
            what = "is missing" if given is None else f"is {type(given).__name__}"
            raise SpecError([f"text_config: {what}; it must be a table of the keys of the language model"], source)
        return self.split(config)[1]["model_type"]

    def split(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A config's own keys, and those of the text in the words of its family's class."""
        given = config.get("text_config")
        flat = given is None and self.flat
        kept = self.keys | {"architectures": ANY, "model_type": ANY}
        text = {k: value for k, value in config.items() if not flat or k not in kept} if flat else dict(given or {})
        text.pop("architectures", None)
        kind = text.get("model_type", next(iter(self.types), None))
        if kind in self.types:
            text = {name: value for name, value in self.defaults.items() if ALSO.get(name) not in text} | text
        if self.sections:
            text |= {name: _plain(text[name]) for name in ("rope_scaling", "rope_parameters") if text.get(name)}
        if self.theta is not None and not _has_theta(text):
            text["rope_theta"] = self.theta
        moved = {name: config[name] for name in MOVED if config.get(name) is not None}
        text |= moved | {TIED: self.ties(config, text)} | {"model_type": self.types.get(kind, kind)}
        own = {name: value for name, value in config.items() if not flat or name not in text}
        return own, text

    def ties(self, config: Mapping[str, Any], text: Mapping[str, Any]) -> Any:
        """Whether the output matrix is the table of tokens."""
        outer, inner = config.get(TIED), text.get(TIED)
        if self.either and inner is not None:
            return outer or inner
        return next((value for value in (outer, inner) if value is not None), self.tied)

    def table(self, text: StateMap) -> StateMap:
        """The text family's table for the files of this class."""
        rest = (rule for rule in text.rules if ".experts." not in rule.theirs)
        more = (replace(text, rules=(*rest, *self.experts)),) if self.experts else ()
        first, *others = (
            replace(
                table,
                forms=NAMES | dict(table.forms),
                ignored=(*table.ignored, *self.others),
                others=self.others,
                also=(),
            )
            for table in (text, *text.also, *more)
        )
        return replace(first, also=tuple(others))

    def settled(self, config: Mapping[str, Any], stored: Iterable[str]) -> dict[str, Any]:
        """A config with what only its tensors tell: some released files don't say whether words are tied."""
        untied = any(name.endswith("lm_head.weight") for name in stored)
        return {TIED: not untied} | dict(config)


def _plain(rope: Any) -> Any:
    """A table of RoPE less its sections."""
    if not isinstance(rope, Mapping) or not isinstance(rope.get("mrope_section", []), list):
        return rope
    kept = {name: value for name, value in rope.items() if name not in ("mrope_section", "mrope_interleaved")}
    return kept | {name: "default" for name in ("type", "rope_type") if kept.get(name) == "mrope"}


def _has_theta(text: Mapping[str, Any]) -> bool:
    tables = (text, *(text.get(name) for name in ("rope_scaling", "rope_parameters")))
    return any(isinstance(table, Mapping) and table.get("rope_theta") is not None for table in tables)


QWEN2_SIZES: dict[str, Any] = {
    "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_window_layers": 80,
    "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
QWEN_VISION = (r"(?:model\.)?visual\..*",)
THEIRS, OURS = "model.layers.{i}.mlp.experts.", "decoder.blocks.{i}.ffn.body.experts."
TURNED = (
    Rule(f"{THEIRS}gate_up_proj", (f"{OURS}gate.weight", f"{OURS}up.weight"), Stacked(transposed=True)),
    Rule(f"{THEIRS}down_proj", f"{OURS}down.weight", Stacked(transposed=True)),
)
QWEN3_MOE: dict[str, Any] = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
    "max_position_embeddings": 128000, "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_experts": 60,
    "norm_topk_prob": True,
}  # fmt: skip

TOWERS = (
    Tower(
        architectures=("Qwen2VLForConditionalGeneration",), model_type="qwen2_vl", known=QWEN_TOKENS, others=QWEN_VISION,
        types={"qwen2_vl_text": "qwen2"}, defaults=QWEN2_SIZES, theta=1e6, sections=True, flat=True, tied=False, either=True,
    ),
    Tower(
        architectures=("Qwen2_5_VLForConditionalGeneration",), model_type="qwen2_5_vl", known=QWEN_TOKENS,
        others=QWEN_VISION, types={"qwen2_5_vl_text": "qwen2"}, defaults=QWEN2_SIZES, theta=1e6, sections=True, flat=True,
        tied=False, either=True,
    ),
    Tower(
        architectures=("Qwen3VLForConditionalGeneration",), model_type="qwen3_vl", known=QWEN_TOKENS, others=QWEN_VISION,
        types={"qwen3_vl_text": "qwen3"}, defaults={"max_position_embeddings": 128000}, theta=5e5, sections=True, tied=False,
    ),
    Tower(
        architectures=("Qwen3VLMoeForConditionalGeneration",), model_type="qwen3_vl_moe", known=QWEN_TOKENS,
        others=QWEN_VISION, types={"qwen3_vl_moe_text": "qwen3_moe"}, defaults=QWEN3_MOE, theta=5e5, sections=True,
        tied=False, experts=TURNED,
    ),
    Tower(
        architectures=("Gemma3ForConditionalGeneration",), model_type="gemma3",
        known=(*TOKENS, "boi_token_index", "eoi_token_index", "mm_tokens_per_image"), types={"gemma3_text": "gemma3_text"},
        refused=("use_bidirectional_attention",),
    ),
    Tower(
        architectures=("Mistral3ForConditionalGeneration",), model_type="mistral3",
        known=(*LLAVA, "multimodal_projector_bias", "spatial_merge_size"), types={"mistral": "mistral"},
    ),
    Tower(
        architectures=("InternVLForConditionalGeneration",), model_type="internvl", known=(*LLAVA, "downsample_ratio"),
        types={"qwen2": "qwen2"},
    ),
    Tower(
        architectures=("Llama4ForConditionalGeneration",), model_type="llama4",
        known=(*TOKENS, "boi_token_index", "eoi_token_index"), types={"llama4_text": "llama4_text"}, tied=False,
        others=(r"(?:vision_model|multi_modal_projector)\..*",),
    ),
)  # fmt: skip


def tower_of(config: Mapping[str, Any]) -> Tower | None:
    """The tower that a config describes, by its `architectures`, or else its `model_type`."""
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return next((tower for tower in TOWERS if set(tower.architectures) & {*map(str, named)}), None)
    return next((tower for tower in TOWERS if tower.model_type == config.get("model_type")), None)


@cache
def inside(tower: Tower, family: type[Family]) -> type[Family]:
    """The family, as the files of a multimodal class hold it. It keeps its kind: models are written as its own class."""
    renamed = family.model_type in set(tower.types.values()) - set(tower.types)
    reader = (tower if renamed else family).architectures[0]

    def parse(cls: type[Family], config: Mapping[str, Any]) -> tuple[dict[str, Any], Values]:
        own, text = tower.split(config)
        values = Values(own, tower.keys, Problems(), read_by(cls.architectures[0]))
        for name in tower.refused:
            if text.get(name):
                what = f"{text[name]!r} makes the text of {tower.architectures[0]} another model than {family.architectures[0]}"
                values.problems.add(f"text_config.{name}", f"{what}, which can't be read")
        changes, inner = family.parse(text, reader)
        values.take("text_config" if "text_config" in own else "", inner, beside=MOVED)
        return changes, values

    def weights(cls: type[Family], spec: ModelSpec) -> StateMap:
        return tower.table(family.weights(spec))

    own = {"parse": classmethod(parse), "weights": classmethod(weights), "tower": tower}
    names = {"architectures": tower.architectures, "model_type": tower.model_type, "bodies": ()}
    return type(family.__name__, (family,), own | names)
