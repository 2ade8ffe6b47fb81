"""DeBERTa, versions 2 and 3 (He et al. 2020, 2021): BERT with disentangled attention instead of a table of positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anyformer.families import bert_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import Key, SpecView, each, flag, must, number, text, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Preset, sizes
from anyformer.families.statemap import Rule, StateMap
from anyformer.parts.positions.disentangled import Disentangled
from anyformer.specs.model import ModelSpec

TERMS = {"c2p": "position.on_queries", "p2c": "position.on_keys"}
"""Names of the terms that the scheme adds to scores."""


SEEN = (
    "sizes from the publisher's notes; buckets, norm and biases are what the released configs are generally known to say "
    "and were not read again"
)


def scale_of(terms: int) -> str:
    """The scale of scores that are a sum of one more. (The public class takes this root in fp32, whatever its dtype.)"""
    return f"1/sqrt({1 + terms} * head_dim)"


def terms_of(value: str | list[str] | None) -> list[str]:
    """The terms of a text such as `p2c|c2p`, or of a list."""
    return [part.strip() for part in value.lower().split("|")] if isinstance(value, str) else value or []


def _terms() -> Key:
    def fits(value: Any) -> bool:
        parts = value.split("|") if isinstance(value, str) else value
        return isinstance(parts, list) and all(isinstance(part, str) for part in parts)

    def read(c: Values, name: str) -> Mapping[str, Any]:
        given = terms_of(c[name])
        if set(given) - set(TERMS) or (c["relative_attention"] and not given):
            c.refuse(name, f"{c[name]!r} is not a choice of {', '.join(TERMS)}, at least one of them")
        found = {path: term in given for term, path in TERMS.items()}
        return found | {"attention.scale": scale_of(sum(found.values()))}

    def write(view: SpecView) -> list[str]:
        return [term for term, path in TERMS.items() if view.get(path, False)]

    what = "a text such as 'p2c|c2p', or a list of such names"
    return Key(what=what, fits=fits, default=None, null=True, sets=tuple(TERMS.values()), read=read, write=write)


class DebertaV2(like.BertLike, kind="deberta-v2"):
    """DeBERTa with its masked-LM head. The head that version 3 was trained with, which tells replaced tokens, is left out."""

    base = like.BASE | {
        "vocab": 128100,
        "context": 512,
        "attention": {"heads": 1, "bias": "qkvo", "scale": scale_of(2)},
        "norm": {"kind": "layernorm", "eps": 1e-7, "placement": "post", "embedding": True},
        "position": {"kind": "disentangled", "norm": {"kind": "layernorm", "eps": 1e-7}},
        "embed": {"kind": "tokens"},
        "ids": {"pad": 0},
    }
    presets = (
        Preset("deberta-v3-xsmall", "DeBERTa v3 xsmall (2021)", sizes(384, 12, 6), 70_958_820,
               hub=("microsoft/deberta-v3-xsmall",), published="22M without the table of tokens", evidence=SEEN, note="with the masked-LM head"),
        Preset("deberta-v3-small", "DeBERTa v3 small (2021)", sizes(768, 6, 12), 142_024_548,
               hub=("microsoft/deberta-v3-small",), published="44M without the table of tokens", evidence=SEEN,
               note="with the masked-LM head"),
        Preset("deberta-v3-base", "DeBERTa v3 base (2021)", sizes(768, 12, 12), 184_551_780,
               hub=("microsoft/deberta-v3-base",), published="86M without the table of tokens", evidence=SEEN,
               note="with the masked-LM head"),
        Preset("deberta-v3-large", "DeBERTa v3 large (2021)", sizes(1024, 24, 16), 435_191_908,
               hub=("microsoft/deberta-v3-large",), published="304M without the table of tokens",
               evidence=SEEN, note="with the masked-LM head"),
    )  # fmt: skip
    architectures = ("DebertaV2ForMaskedLM",)
    tasks = tasks.DEBERTA
    body = "deberta"
    parts = like.PARTS | {
        name: f"attention.self.{long}_proj" for name, long in {"q": "query", "k": "key", "v": "value"}.items()
    }
    positions = "positions.1.table"
    unread = (r"mask_predictions\..*",)
    keys = {
        **like.keys(vocab=128100, context=512),
        "hidden_size": whole(1536, "width"),
        "num_hidden_layers": whole(24, "depth"),
        "num_attention_heads": whole(24, "attention.heads"),
        "intermediate_size": whole(6144, "ffn.width"),
        "type_vocab_size": whole(0, "embed.token_types"),
        "layer_norm_eps": number(1e-7, ("norm.eps", "position.norm.eps")),
        "relative_attention": flag(False),
        "share_att_key": flag(False),
        "pos_att_type": _terms(),
        "position_buckets": whole(-1),
        "max_relative_positions": whole(-1),
        "norm_rel_ebd": text("none"),
        "position_biased_input": flag(True),
        "tie_word_embeddings": flag(True),
        # Two layouts of the same head.
        "legacy": flag(True),
        "conv_kernel_size": must(0, None),
        **each(text(None), "conv_act", "pooler_hidden_act"),
        "conv_groups": whole(None),
        "embedding_size": whole(None),
        "attention_head_size": whole(None),
        "pooler_hidden_size": whole(None),
        "padding_idx": whole(None),
        **each(number(None), "pooler_dropout", "cls_dropout"),
        # Steps of a decoder that the public class has no code for.
        "z_steps": must(0, None),
    }
    # Heads of 12: the public class takes the root of three times that, 36, in fp32.
    small = {
        "hidden_size": 48, "type_vocab_size": 2, "relative_attention": True, "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "max_relative_positions": 14, "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        found, width = super().read(c), c["hidden_size"]
        head_dim = width // max(1, c["num_attention_heads"])
        for name, size in (("embedding_size", width), ("attention_head_size", head_dim)):
            if c[name] not in (None, size):
                c.refuse(name, f"{c[name]} is another size than the model's", str(size))
        if c["legacy"] and not c["tie_word_embeddings"]:
            # The other layout has no matrix of its own, whatever the key says.
            c.refuse(
                "tie_word_embeddings", "false is not read: the head of released models is the table of tokens", "true"
            )
        added = {"embed.position": {"kind": "learned"} if c["position_biased_input"] else None}
        if not c["relative_attention"]:
            # A plain encoder; what is said of distances means nothing.
            kept = {path: value for path, value in found.items() if not path.startswith("position.")}
            return kept | added | {"position.kind": "none"}
        if not c["share_att_key"]:
            c.refuse(
                "share_att_key", "false has further projections of distances in each layer, which we don't have", "true"
            )
        norms = {part.strip() for part in c["norm_rel_ebd"].lower().split("|")}
        if norms - {"none", "layer_norm"}:
            c.refuse("norm_rel_ebd", f"{c['norm_rel_ebd']!r} is neither 'none' nor 'layer_norm'")
        eps, farthest, buckets = found.pop("position.norm.eps"), c["max_relative_positions"], c["position_buckets"]
        distances = {
            "position.norm": {"kind": "layernorm", "eps": eps} if "layer_norm" in norms else None,
            "position.max_distance": c["max_position_embeddings"] if farthest < 1 else farthest,
            "position.buckets": buckets if buckets > 0 else None,
        }
        return found | added | distances

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        view = SpecView.of(spec)
        position = view.layer.position
        own: dict[str, Any] = {"position_biased_input": spec.embed.position is not None}
        if isinstance(position, Disentangled):
            own |= {
                "relative_attention": True,
                "share_att_key": True,
                "position_buckets": -1 if position.buckets is None else position.buckets,
                "max_relative_positions": position.max_distance,
                "norm_rel_ebd": "none" if position.norm is None else "layer_norm",
            }
        else:
            # The terms count in the scale even where there are none.
            own["pos_att_type"] = [*TERMS][: max(0, round(view.get("attention.scale") ** -2 / view.dims.head_dim) - 1)]
        return super().write(spec) | own

    @classmethod
    def rules(cls, spec: ModelSpec) -> tuple[Rule, ...]:
        return (
            Rule("deberta.encoder.rel_embeddings.weight", "encoder.positions.0.table"),
            Rule("deberta.encoder.LayerNorm.{p}", "encoder.positions.0.norm_{p}"),
        )

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        found, (old, dense, norm), new = super().weights(spec), cls.head, "lm_predictions.lm_head"
        parts = {f"{dense}.weight": "dense.weight", f"{dense}.bias": "dense.bias", "bias": "bias"}
        parts |= {f"{norm}.weight": "LayerNorm.weight", f"{norm}.bias": "LayerNorm.bias"}
        later = {f"{new}.{name}": f"{old}.{own}" for own, name in parts.items()}
        return replace(found, copies={**found.copies, **later})
