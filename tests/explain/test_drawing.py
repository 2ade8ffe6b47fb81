"""Drawings of blocks: the boxes are those of the inventory, and lines fit and meet."""

import itertools

import pytest

from anyformer.errors import SpecError
from anyformer.explain.drawing import PLAIN, draw, sketch
from anyformer.explain.groups import groups
from tests.contract.draw import draw as random_spec
from tests.explain.specs import CHANGES, spec_named
from tests.specs.small import small

PRE = """
  x
  |
  +-------------+
  |    +--------+-------+
  |    |    RMSNorm     |
  |    +--------+-------+
  |    +--------+-------+
  |    | GQA 32/8, RoPE |
  |    |     causal     |
  |    +--------+-------+
 (+)------------+
  |
  +-------------+
  |    +--------+-------+
  |    |    RMSNorm     |
  |    +--------+-------+
  |    +--------+-------+
  |    |  SwiGLU 14336  |
  |    +--------+-------+
 (+)------------+
  |
  y
"""
PARALLEL_POST = """
  x
  |
  +-------------+-----------------+
  |    +--------+-------+   +-----+-----+
  |    | MHA 4, T5 bias |   | SwiGLU 64 |
  |    |     causal     |   +-----+-----+
  |    +--------+-------+         |
 (+)------------+-----------------+
  |
+-+---------+
| LayerNorm |
+-+---------+
  |
  y
"""


def drawing(spec, width=80):
    (group,) = groups(spec)
    return "\n" + "\n".join(draw(sketch(group), width)).translate(PLAIN) + "\n"


def test_drawing_of_a_serial_block_with_norms_first():
    assert drawing(spec_named("llama")) == PRE


def test_drawing_of_a_parallel_block_with_its_norm_in_the_residual():
    changes = {"attention": {"heads": 4}, "position": "t5", "block.wiring": "parallel"}
    found = drawing(small(changes | {"norm": {"kind": "layernorm", "placement": "post"}}))
    assert found == PARALLEL_POST


def norms_of(spec, group):
    """Norms of one layer in the inventory of weights."""
    prefix = f"{group.stack.name}.blocks.{group.indices[0]}."
    sites = {
        name.split(".")[3:5] and ".".join(name.split(".")[:5])
        for name in spec.count().weights
        if name.startswith(prefix)
    }
    return sum(site.endswith((".inner", ".outer", ".after")) for site in sites)


def norm_boxes(made):
    inside = sum(len(box) == 1 and "Norm" in box[0] for branch in made.branches for box in branch.boxes)
    return inside + sum(bool(branch.after) for branch in made.branches) + bool(made.shared) + bool(made.after)


def every_block():
    for topology, wiring, placement, other in itertools.product(
        ("decoder", "encoder-decoder"),
        ("serial", "parallel", "parallel2"),
        ("pre", "post", "sandwich", "output", "none"),
        (None, "pre", "output"),
    ):
        changes = {"topology": topology, "block.wiring": wiring, "norm.placement": placement}
        try:
            yield small(changes | ({"norm.ffn_placement": other} if other else {}))
        except SpecError:
            continue


def test_drawing_has_a_box_for_every_norm_of_the_inventory():
    seen = 0
    for spec in every_block():
        for group in groups(spec):
            assert norm_boxes(sketch(group)) == norms_of(spec, group), spec.to_toml()
            seen += 1
    assert seen > 60


@pytest.mark.parametrize("width", [60, 80, 120])
def test_drawing_fits_the_width_and_its_lines_meet(width):
    specs = [*every_block(), *map(spec_named, CHANGES), *map(random_spec, range(60))]
    for spec in specs:
        for group in groups(spec):
            lines = draw(sketch(group), width)
            assert max(map(len, lines)) <= width
            assert all(line == line.rstrip() for line in lines)
            assert_connected(lines)


UP = {"\u2502", "\u2514", "\u2518", "\u251c", "\u2534"}
DOWN = {"\u2502", "\u250c", "\u2510", "\u251c", "\u252c"}


def assert_connected(lines):
    """Whatever points down has something below it that points up, boxes of text apart."""
    rows = [line.ljust(200) for line in lines]
    for above, below in itertools.pairwise(rows):
        for a, b in zip(above, below, strict=True):
            if a in DOWN:
                assert b in UP or b in "xy+", "\n".join(lines)


def test_cross_attention_is_drawn_in_the_decoder_only():
    encoder, decoder = groups(spec_named("encoder-decoder"))
    assert [branch.name for branch in sketch(encoder).branches] == ["attention", "ffn"]
    assert [branch.name for branch in sketch(decoder).branches] == ["attention", "cross", "ffn"]
    assert "reads the encoder" in "\n".join(draw(sketch(decoder)))


def test_box_of_attention_names_what_changes_its_scores():
    (group,) = groups(small({"attention.softcap": 5.0, "attention.mixer": "relu", "attention.qk_norm": True}))
    assert sketch(group).branches[0].boxes[1] == ("GQA 4/2, RoPE", "causal", "normalised ReLU", "qk-norm, softcap 5")


def test_added_positions_are_no_matter_of_a_block():
    (group,) = groups(small({"position": "learned"}))
    assert sketch(group).branches[0].boxes[1][0] == "GQA 4/2"
