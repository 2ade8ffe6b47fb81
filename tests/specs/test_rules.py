"""Every rule, broken once: its message, and nothing else. A rule without a case here fails the last test."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anyformer.specs import Mixer, ModelSpec, Pattern, rules
from anyformer.specs.findings import Finding, divisors
from tests.specs.small import data_with, problems_of, problems_with, small

pytestmark = pytest.mark.quick

PATCHES = {"topology": "encoder", "embed": {"kind": "patches", "image": 8, "patch": 4}}
SERIES = {"topology": "encoder", "vocab": 0, "embed": {"kind": "series"}}
REGRESSION = {"topology": "encoder", "head": {"kind": "regression"}}
BOTH = {"topology": "encoder-decoder"}
TWO = {**BOTH, "embed": {"kind": "tokens", "shared": False}, "source_vocab": 50}
SCALE = "give a number or a formula of sqrt, *, / and"

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "width 0": ({"width": 0}, "width: 0 is not at least 1"),
    "depth 0": ({"depth": 0}, "depth: 0 is not between 1 and 10000"),
    "absurd depth": ({"depth": 10**9}, f"depth: {10**9} is not between 1 and 10000"),
    "absurd width": ({"width": 10**9 + 7}, f"width: {10**9 + 7} is more than {2**20}, the largest that is taken for a size"),
    "width beyond all numbers": (
        {"width": 10**30}, f"width: a number of 100 bits is beyond all sizes; at most {2**53} is read"),
    "context 0": ({"context": 0}, "context: 0 is not at least 1"),
    "vocab below 0": ({"vocab": -1}, "vocab: -1 is not at least 0"),
    "pad beyond the vocabulary": (
        {"ids.pad": 32}, "ids.pad: 32 is not a token; ids run from 0 to vocab - 1 = 31"),
    "eos below 0": ({"ids.eos": [3, -1]}, "ids.eos[1]: -1 is not a token; ids run from 0 to vocab - 1 = 31"),
    "id without a vocabulary": (
        {**SERIES, "head": {"kind": "regression"}, "ids.bos": 1}, "ids.bos: 1 is not a token; vocab is 0"),
    "encoder overrides in a decoder": (
        {"encoder": {"depth": 2}}, "encoder: overrides a stack of an encoder-decoder, but topology is 'decoder'"),
    "encoder-decoder of a series": (
        {**BOTH, "embed": {"kind": "series"}},
        "embed.kind: 'series' feeds an encoder or a decoder; an encoder-decoder reads 'tokens'"),
    "no vocabulary": ({"vocab": None}, "vocab: is missing; a model that reads or predicts tokens needs their number"),
    "no vocabulary to predict": (
        {**SERIES, "head": "lm"}, "vocab: is missing; a model that reads or predicts tokens needs their number"),
    "empty source vocabulary": ({**TWO, "source_vocab": 0}, "source_vocab: 0 is not at least 1"),
    "source vocabulary of one stack": (
        {"source_vocab": 50},
        "source_vocab: has no effect: topology 'decoder' has one stack, which reads `vocab`; leave it out"),
    "one table for two vocabularies": (
        {**BOTH, "source_vocab": 50},
        "embed.shared: true is one table for both stacks, but the source has its own vocabulary (source_vocab = 50) beside "
        "the target's (vocab = 32); set embed.shared = false, or leave out source_vocab"),
    "source pad beyond its vocabulary": (
        {**TWO, "ids.source_pad": 50},
        "ids.source_pad: 50 is not a token of the source; its ids run from 0 to source_vocab - 1 = 49"),
    "source eos below 0": (
        {**TWO, "ids.source_eos": -1},
        "ids.source_eos: -1 is not a token of the source; its ids run from 0 to source_vocab - 1 = 49"),
    "pad that the source does not have": (
        {**TWO, "source_vocab": 20, "ids.pad": 30},
        "ids.source_pad: is missing: ids.pad = 30 is not among the 20 tokens of the source; say what fills its rows"),
    "source pad of one vocabulary": (
        {**BOTH, "ids.source_pad": 3},
        "ids.source_pad: has no effect: the source has no vocabulary of its own; set source_vocab, or leave it out"),
    "embed leaf": (
        {**PATCHES, "embed.patch": 3},
        "embed.patch: 3 does not tile an image of 8 pixels; pick a divisor of it"),
    "embed dropout": ({"embed": {"kind": "tokens", "dropout": 1.0}}, "embed.dropout: 1.0 is not in [0, 1)"),
    "head dropout": ({"head": {"kind": "token", "labels": 2, "dropout": -0.5}}, "head.dropout: -0.5 is not in [0, 1)"),
    "init leaf": ({"init": {"kind": "normal", "std": 0.0}}, "init.std: 0.0 is not above 0"),
    "added position": (
        {"embed": {"kind": "tokens", "position": {"kind": "learned", "offset": -1}}},
        "embed.position.offset: -1 is not at least 0"),
    "added position that is not added": (
        {"embed": {"kind": "tokens", "position": "alibi"}},
        "embed.position.kind: 'alibi' is not added to embeddings; pick one of axial, learned, sinusoidal"),
    "two added positions": (
        {"embed": {"kind": "tokens", "position": "learned"}, "position": "sinusoidal"},
        "embed.position: position 'sinusoidal' is added to the embeddings already; leave one of the two out"),
    "added position without room": (
        {"embed": {"kind": "tokens", "position": {"kind": "axial", "row_width": 16}}},
        "embed.position.row_width: 16 leaves no room for both tables in a width of 16"),
    "layers that share and differ": (
        {"layers": {"shared": "all", "0": {"position": "none"}}},
        "layers.shared: layers 0 and 1 share their parameters, but differ in position; make them equal, or give them "
        "different names"),
    "global projections of vectors": (
        {"topology": "encoder", "position": "disentangled", "attention.pattern": "window(3) | global_tokens(2)",
         "attention.global_projections": True},
        "attention.global_projections: can't be had with position 'disentangled', whose vectors go through one query and "
        "key projection"),
    "embed width": ({"embed": {"kind": "tokens", "width": 0}}, "embed.width: 0 is not at least 1"),
    "token types": ({"embed": {"kind": "tokens", "token_types": -1}}, "embed.token_types: -1 is not at least 0"),
    "task types": ({"embed": {"kind": "tokens", "task_types": -1}}, "embed.task_types: -1 is not at least 0"),
    "projection of nothing": (
        {"embed": {"kind": "tokens", "project": "last"}},
        "embed.project: has no effect: embed.width is the model's width, so nothing is projected"),
    "projection bias of nothing": (
        {"embed": {"kind": "tokens", "width": 16, "project_bias": True}},
        "embed.project_bias: has no effect: embed.width is the model's width, so nothing is projected"),
    "unshared table of one stack": (
        {"embed": {"kind": "tokens", "shared": False}},
        "embed.shared: has no effect: topology 'decoder' has one stack"),
    "bias that is neither there nor added": (
        {"head": {"kind": "lm", "adds_bias": False}}, "head.adds_bias: has no effect without head.bias"),
    "reversible with a norm after the add": (
        {"block.wiring": "reversible", "norm.placement": "post"},
        "block.wiring: 'reversible' recomputes a block's input from its output, which a norm after the add "
        "(placement 'post') prevents"),
    "merge of one stream": (
        {"block.merge": "concat"}, "block.merge: has no effect: only a reversible block has two streams"),
    "some layers reversible": (
        {"layers": {"0": {"block": {"wiring": "reversible"}}}},
        "block.wiring: 'reversible' runs two streams through all blocks, so every layer of a stack must have it, and the "
        "same merge"),
    "encoder of a double width": (
        {**BOTH, "encoder": {"block": {"wiring": "reversible", "merge": "concat"}}},
        "block.merge: 'concat' doubles the width, which only a head can read: the decoder reads this encoder; pick 'mean'"),
    "decoder that knows its end": (
        {"attention.pattern": "causal & (window(2) | edge_blocks(2, 1, 1))"},
        "attention.pattern: 'causal & (window(2) | edge_blocks(2))' reads how long its document is, which a decoder does "
        "not know before its end; a random pattern has past=True for that"),
    "global projections without global tokens": (
        {"attention.global_projections": True},
        "attention.global_projections: has no effect: 'causal' has no global tokens; write 'causal & (causal | global_tokens)'"),
    "marks of a target": (
        {**BOTH, "decoder": {"attention": {"pattern": "causal & (window(3) | global_tokens(2))"}}},
        "decoder.attention.pattern: 'causal & (window(3) | global_tokens(2))' reads marks, which global_mask gives to the "
        "source only; write marks=False and how many are first"),
    "repeated keys under a cap": (
        {"topology": "encoder", "attention.pattern": "bigbird_eval(4, 1) | symmetric_window(2)", "attention.softcap": 5.0},
        "attention.pattern: 'bigbird_eval(4, 1) | symmetric_window(2)' counts keys several times, which goes with mixer "
        "'softmax' and without a softcap only"),
    "repeated keys with vectors on values": (
        {"topology": "encoder", "attention.pattern": "bigbird_eval(4, 1) | symmetric_window(2)", "position": "shaw"},
        "attention.pattern: 'bigbird_eval(4, 1) | symmetric_window(2)' counts keys several times, which position 'shaw', with "
        "vectors on values, does not"),
    "shared keys in groups": (
        {"attention.mixer": "lsh"},
        "attention.kv_heads: 2 differs from heads=4, but mixer 'lsh' makes its keys from the queries"),
    "bias of shared keys": (
        {"attention.mixer": "lsh", "attention.kv_heads": 4, "attention.bias": "qk"},
        "attention.bias: 'k' has no effect: mixer 'lsh' makes its keys from the queries"),
    "cap on no scores": (
        {"attention.mixer": "linear", "attention.softcap": 5.0},
        "attention.softcap: can't be had: mixer 'linear' has no scores to cap"),
    "penalty on no scores": (
        {"attention.mixer": "linear", "position": "alibi"},
        "position.kind: 'alibi' adds to scores or values, which mixer 'linear' does not compute for every pair"),
    "window of a state": (
        {"attention.mixer": "linear", "attention.pattern": "window(3)"},
        "attention.pattern: 'window(3)' does not go with mixer 'linear': 'window(3)' leaves out tokens of a document, "
        "but one state holds all that was read; write 'causal' or 'full'"),
    "pattern beyond the context": (
        {"attention.pattern": "causal & (window(2) | global_tokens(33))"},
        "attention.pattern: first of 'global_tokens(33)': 33 is past the end of 32 tokens"),
    "token that sees no key": (
        {"attention.pattern": "causal & prefix(3)"},
        "attention.pattern: 'causal & prefix(3)' leaves some token without any key; add what every token sees, such as "
        "'| window(1)'"),
    "head that sees nothing": (
        {"attention.pattern": "heads(0, 3) & window(2)"},
        "attention.pattern: 'heads(0, 3) & window(2)' leaves some token without any key in head 3; add what every token "
        "sees, such as '| window(1)'"),
    "rounded scale of 1": (
        {"embed": {"kind": "tokens", "round_scale": True}}, "embed.round_scale: has no effect: embed.scale is 1"),
    "embed scale of a size it has not": (
        {"embed": {"kind": "tokens", "scale": "sqrt(heads)"}},
        f"embed.scale: 'sqrt(heads)' is not a scale; {SCALE} width, depth, such as '1/sqrt(head_dim)'"),
    "patches in a decoder": (
        {**PATCHES, "topology": "decoder"}, "embed.kind: 'patches' come all at once, so topology must be 'encoder'"),
    "image longer than the context": ({**PATCHES, "context": 4}, "context: 4 is shorter than an image: 5 tokens"),
    "pair of a series": (
        {**SERIES, "head": {"kind": "pair", "labels": 2}},
        "head.kind: 'pair' reads two texts by their token types: it needs embed.kind 'tokens' and one stack"),
    "no labels": ({"head": {"kind": "token", "labels": 0}}, "head.labels: 0 is not at least 1"),
    "no outputs": ({"head": {"kind": "regression", "outputs": 0}}, "head.outputs: 0 is not at least 1"),
    "tied to no table": (
        {**SERIES, "vocab": 32, "head": {"kind": "lm", "tied": True}},
        "head.tied: there is no token table to share: embed.kind is 'series'"),
    "head softcap": ({"head": {"kind": "lm", "softcap": 0.0}}, "head.softcap: 0.0 is not above 0"),
    "transform_bias without transform": (
        {"head": {"kind": "lm", "transform_bias": False}},
        "head.transform_bias: has no effect without head.transform"),
    "activation without transform": (
        {"head": {"kind": "lm", "activation": "relu"}}, "head.activation: has no effect without head.transform"),
    "gated activation": (
        {"head": {"kind": "lm", "transform": True, "activation": "glu"}},
        "head.activation: 'glu' is unknown; did you mean 'gelu'? (known: gelu, gelu_quick, gelu_tanh, relu, relu2, "
        "silu, tanh)"),
    "activation of a classifier": (
        {"topology": "encoder", "head": {"kind": "sequence", "labels": 2, "dense": True, "activation": "glu"}},
        "head.activation: 'glu' is unknown; did you mean 'gelu'? (known: gelu, gelu_quick, gelu_tanh, relu, relu2, "
        "silu, tanh)"),
    "dense bias without a layer": (
        {"head": {"kind": "token", "labels": 2, "dense_bias": False}}, "head.dense_bias: has no effect without dense"),
    "names of other classes": (
        {"head": {"kind": "token", "labels": 2, "names": ["a"]}},
        "head.names: there are 1 for 2 labels; give one for each, or none"),
    "one class of one": (
        {"head": {"kind": "sequence", "labels": 1, "problem": "single", "pool": "last"}},
        "head.problem: 'single' is one class of several, and labels is 1; pick 'regression' or 'multi', or leave it"),
    "state at no eos": (
        {"head": {"kind": "sequence", "labels": 2, "pool": "eos"}},
        "head.pool: 'eos' reads the state at the last eos of a row: it needs embed.kind 'tokens' and ids.eos"),
    "z of several classes at once": (
        {"head": {"kind": "sequence", "labels": 2, "pool": "last", "problem": "multi"}, "loss.z": 0.1},
        "loss.z: has no effect on a 'sequence' head"),
    "head scale": ({"head": {"kind": "lm", "scale": 0.0}}, "head.scale: is 0, which would erase what it multiplies"),
    "z below 0": ({"loss.z": -1.0}, "loss.z: -1.0 is not at least 0"),
    "smoothing of 1": ({"loss.label_smoothing": 1.0}, "loss.label_smoothing: 1.0 is not in [0, 1)"),
    "balance below 0": ({"ffn.kind": "moe", "loss.balance": -1.0}, "loss.balance: -1.0 is not at least 0"),
    "balance of no head": (
        {"ffn.kind": "moe", "head": "none", "loss.balance": 0.1}, "loss.balance: has no effect on a 'none' head"),
    "balance without a router": (
        {"loss.balance": 0.1},
        "loss.balance: has no effect: no layer has a router; pick ffn.kind 'moe', or leave it out"),
    "balance of a reversible stack": (
        {"ffn.kind": "moe", "block.wiring": "reversible", "loss.balance": 0.1},
        "loss.balance: can't be had with block.wiring 'reversible', which keeps nothing of a layer for a loss to read; "
        "pick another wiring, or leave it out"),
    "z of a regression": ({**REGRESSION, "loss.z": 0.1}, "loss.z: has no effect on a 'regression' head"),
    "smoothing without a head": (
        {"head": "none", "loss.label_smoothing": 0.1}, "loss.label_smoothing: has no effect on a 'none' head"),
    "two ways to add positions": (
        {"position": "learned", "layers": {"0": {"position": "none"}}},
        "position: learned, none: positions that are added to the embeddings must be the same in every layer"),
    "context beyond the positions": (
        {"position": {"kind": "axial", "rows": 4, "columns": 4}},
        "context: 32 is longer than the 16 positions that position.axial has"),
    "first token of a causal stack": (
        {"head": {"kind": "sequence", "labels": 2, "pool": "first"}},
        "head.pool: 'first' reads a token that attends to itself alone, as every layer is causal; pick 'last' or "
        "'mean'"),
    "no heads": ({"attention.heads": 0}, "attention.heads: 0 is not at least 1"),
    "heads that do not divide": (
        {"attention": {"heads": 3}},
        "attention.heads: 3 does not divide width=16; pick one of [1, 2, 4, 8, 16] or set attention.head_dim"),
    "no head_dim": ({"attention.head_dim": 0}, "attention.head_dim: 0 is not at least 1"),
    "kv_heads that do not divide": (
        {"attention.kv_heads": 3}, "attention.kv_heads: 3 does not divide heads=4; pick one of [1, 2, 4]"),
    "no kv_heads": ({"attention.kv_heads": 0}, "attention.kv_heads: 0 does not divide heads=4; pick one of [1, 2, 4]"),
    "bias of a letter": (
        {"attention.bias": "qx"}, "attention.bias: 'qx' is not a choice of the letters of 'qkvo', each once"),
    "bias twice": (
        {"attention.bias": "qq"},
        "attention.bias: 'qq' is not a choice of the letters of 'qkvo', each once"),
    "softcap": ({"attention.softcap": 0.0}, "attention.softcap: 0.0 is not above 0"),
    "clip": ({"attention.clip_qkv": -1.0}, "attention.clip_qkv: -1.0 is not above 0"),
    "attention dropout": ({"attention.dropout": 1.0}, "attention.dropout: 1.0 is not in [0, 1)"),
    "ffn dropout": ({"ffn": {"kind": "gelu", "dropout": -0.1}}, "ffn.dropout: -0.1 is not in [0, 1)"),
    "block dropout": ({"block.dropout": 2.0}, "block.dropout: 2.0 is not in [0, 1)"),
    "branch scale": ({"block.branch_scale": 0.0}, "block.branch_scale: is 0, which would erase what it multiplies"),
    "temperature length": ({"attention.temperature.length": 1}, "attention.temperature.length: 1 is not at least 2"),
    "temperature offset": (
        {"attention.temperature.offset": -1}, "attention.temperature.offset: -1 is not at least 0"),
    "temperature strength": (
        {"attention.temperature": {"kind": "log_n", "strength": 0.2}},
        "attention.temperature.strength: has no effect: 'log_n' has no strength; leave it out"),
    "values normed after": (
        {"attention.v_norm.when": "after"},
        "attention.v_norm.when: 'after' has no effect: values are normed before they are rotated or cached"),
    "decoder that sees later tokens": (
        {"attention.pattern": "full | window(3)"},
        "attention.pattern: 'full | window(3)' lets a token see later ones, which a decoder may not; "
        "write 'causal & (full | window(3))'"),
    "cross position without cross-attention": (
        {"attention.cross_position": True},
        "attention.cross_position: has no effect: topology 'decoder' has no cross-attention"),
    "cross position that nothing reads": (
        {"topology": "encoder-decoder", "attention.cross_position": True, "position": "learned"},
        "attention.cross_position: has no effect: position 'learned' neither turns queries and keys nor adds to scores"),
    "cross position with two lengths": (
        {"topology": "encoder-decoder", "attention.cross_position": True,
         "position": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original": 8}}},
        "attention.cross_position: can't be had with a RoPE scaling that depends on the length: source and target have "
        "their own lengths"),
    "pattern leaf": (
        {"attention.pattern": "window(0)"},
        "attention.pattern.size: 0 is not at least 1; a window holds the token itself"),
    "pattern leaf in a composite": (
        {"attention.pattern": "causal & (window(0) | chunked(4))"},
        "attention.pattern: size of 'window(0)': 0 is not at least 1; a window holds the token itself"),
    "position leaf": ({"position": {"kind": "rope", "theta": 0.0}}, "position.theta: 0.0 is not above 0"),
    "position leaf, deeper": (
        {"position": {"kind": "rope", "scaling": {"kind": "linear", "factor": 0.5}}},
        "position.scaling.factor: 0.5 is not at least 1"),
    "ffn leaf": ({"ffn": {"kind": "swiglu", "multiple_of": 0}}, "ffn.multiple_of: 0 is not at least 1"),
    "norm leaf": ({"norm.eps": 0.0}, "norm.eps: 0.0 is not above 0"),
    "norm of queries and keys": ({"attention.qk_norm.eps": -1.0}, "attention.qk_norm.eps: -1.0 is not above 0"),
    "norm of values": ({"attention.v_norm.eps": -1.0}, "attention.v_norm.eps: -1.0 is not above 0"),
    "placement that nothing reads": (
        {"norm": {"placement": "post", "attention_placement": "pre", "ffn_placement": "pre"}},
        "norm.placement: has no effect: attention_placement and ffn_placement say where all norms are; leave it out"),
    "parallel2 without inner norms": (
        {"block.wiring": "parallel2", "norm.placement": "post"},
        "block.wiring: 'parallel2' gives each branch a norm on its input, but placement 'post' has none; write "
        "'parallel'"),
    "parallel with two placements": (
        {"block.wiring": "parallel", "norm.ffn_placement": "output"},
        "block.wiring: 'parallel' shares one norm between the branches, so both need the same placement"),
    "parallel with one norm after the add": (
        {"block.wiring": "parallel", "norm.placement": "post", "norm.ffn_placement": "output"},
        "block.wiring: 'parallel' shares one norm between the branches, so both need the same placement"),
    "attention scale": (
        {"attention.scale": "1/sqrt(head_dm)"},
        f"attention.scale: '1/sqrt(head_dm)' is not a scale; {SCALE} width, heads, head_dim, depth, such as "
         f"'1/sqrt(head_dim)'"),
    "attention scale 0": ({"attention.scale": 0}, "attention.scale: is 0, which would erase what it multiplies"),
    "position that does not fit the head": (
        {"attention": {"heads": 4, "head_dim": 5}},
        "position.kind: 'rope' turns pairs: 5 of head_dim=5 dimensions is not an even number up to it"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_broken_rule_gives_its_one_line(name: str):
    changes, line = CASES[name]
    assert problems_with(changes) == [line]


@pytest.mark.parametrize(
    "changes",
    [
        {"head": {"kind": "sequence", "labels": 2, "pool": "first"}, "topology": "encoder"},
        {"attention.temperature": {"kind": "log_n"}},
        {"attention.temperature": {"kind": "log1p", "strength": 0.2}},
        {"embed": {"kind": "tokens", "scale": "sqrt(width)", "round_scale": True}},
        {"embed": {"kind": "tokens", "width": 8, "project": "last", "project_bias": True}},
        {"embed": {"kind": "tokens", "shared": False}, "topology": "encoder-decoder"},
        {"attention.cross_position": True, "topology": "encoder-decoder"},
        {"head": {"kind": "lm", "transform": True, "activation": "relu"}},
        {"block.wiring": "parallel", "norm.placement": "post"},
        {"norm": {"attention_placement": "post", "ffn_placement": "sandwich"}},
        {"position": {"kind": "axial", "rows": 4, "columns": 8}},
        {"layers": {"2": {"attention": {"head_dim": 8}}}},
        {"layers": {"2": {"attention": {"kv_heads": 4}}}},
        {"topology": "encoder", "attention.pattern": "symmetric_window(2)"},
        {"ids": {"pad": 0, "eos": [31]}},
    ],
)
def test_neighbour_of_a_broken_rule_is_allowed(changes: dict[str, Any]):
    assert isinstance(small(changes), ModelSpec)


def test_all_broken_rules_that_do_not_meet_are_named_together():
    changes = {
        "width": 15, "context": 0, "attention.kv_heads": 3, "attention.softcap": 0.0, "attention.pattern": "window(0)",
        "norm.eps": 0.0, "block.dropout": 2.0, "loss.z": -1.0, "ids.pad": 40, "head.tied": 1, "ffn": "swish",
        "embed": {"kind": "tokens", "dropout": 3.0}, "encoder": {"depth": 2},
    }  # fmt: skip
    data = data_with(changes | {"head": {"kind": "lm", "tied": 1}})
    assert [line.split(": ")[0] for line in problems_of(data)] == [
        "ffn.kind", "head.tied", "context", "ids.pad", "encoder", "embed.dropout", "loss.z", "attention.heads",
        "attention.softcap", "attention.pattern.size", "norm.eps", "block.dropout",
    ]  # fmt: skip


def test_all_leaves_of_a_composite_pattern_are_reported_under_the_pattern():
    assert problems_with({"attention.pattern": "causal & (window(0) | chunked(-1))"}) == [
        "attention.pattern: size of 'window(0)': 0 is not at least 1; a window holds the token itself",
        "attention.pattern: size of 'chunked(-1)': -1 is not at least 1; a chunk holds the token itself",
    ]


def test_unknown_topology_silences_the_rules_that_read_it():
    (line,) = problems_with({"topology": "encodr", "attention.pattern": "full", "encoder": {"depth": 2}})
    assert line.startswith("topology: 'encodr' is unknown")


@pytest.mark.parametrize(
    ("n", "found"), [(1, [1]), (12, [1, 2, 3, 4, 6, 12]), (16, [1, 2, 4, 8, 16]), (0, []), (-3, [])]
)
def test_divisors_are_all_that_divide(n: int, found: list[int]):
    assert divisors(n) == found


def test_divisors_of_a_huge_number_do_not_take_forever():
    assert divisors(10**12)[-2:] == [5 * 10**11, 10**12]


def test_mixer_leaf_is_asked_for_its_problems(monkeypatch):
    monkeypatch.setattr(Mixer.named("softmax"), "problems", lambda self: iter([("sinks", "are clogged")]))
    assert problems_with({}) == ["attention.mixer.sinks: are clogged"]


def test_every_place_where_a_rule_speaks_is_reached_by_a_case(monkeypatch):
    reached: set[tuple[str, int]] = set()
    makers = ("Finding", "at_least", "size", "above_zero", "share", "leaf", "factor")

    def spy(make: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            caller = sys._getframe(1)
            place = (caller.f_code.co_filename, caller.f_lineno)
            if make is Finding:
                reached.add(place)
                return make(*args)

            def heard() -> Iterator[Finding]:
                for finding in make(*args):
                    reached.add(place)
                    yield finding

            return heard()

        return called

    places: list[tuple[str, int, int, str]] = []
    file = inspect.getfile(rules)
    for node in ast.walk(ast.parse(inspect.getsource(rules))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers:
            places.append((file, node.lineno, node.end_lineno or node.lineno, ast.unparse(node)))
    for name in makers:
        monkeypatch.setattr(rules, name, spy(getattr(rules, name)))
    for changes, _ in CASES.values():
        problems_with(changes)
    monkeypatch.setattr(Mixer.named("softmax"), "problems", lambda self: iter([("sinks", "are clogged")]))
    problems_with({})
    silent = [
        what
        for file, first, last, what in places
        if not any(f == file and first <= line <= last for f, line in reached)
    ]
    assert len(places) > 40
    assert silent == []


def test_pattern_traits_of_a_pair_follow_from_its_parts():
    causal, full, chunked = (Pattern.named(k) for k in ("causal", "full", "chunked"))
    both, either = causal() & full(), causal() | full()
    assert (both.causal, either.causal) == (True, False)
    assert (both.shift_invariant, (both & chunked(size=2)).shift_invariant) == (True, False)
