"""Positions that are added to the embeddings: sinusoidal, learned, axial."""

import math

import pytest
import torch

from anyformer.parts.positions.axial import Axial
from anyformer.parts.positions.learned import Learned
from anyformer.parts.positions.sinusoidal import Sinusoidal
from tests.parts.samples import dims, held, lifted, random
from tests.tolerances import assert_close

LIKE = torch.zeros((), dtype=torch.float64)


def table(leaf, rows: int, width: int = 12, like=LIKE):
    sizes = dims(embed_width=width)
    return leaf.embed(held(leaf, sizes), torch.arange(rows)[None], like)[0]


@pytest.mark.parametrize("theta", [10000.0, 50.0])
def test_sinusoidal_equals_the_formula_of_the_paper(theta):
    found = table(Sinusoidal(theta=theta), 30)
    for p in (0, 1, 7, 29):
        phases = [p * theta ** (-2 * i / 12) for i in range(6)]
        expected = [wave(phase) for phase in phases for wave in (math.sin, math.cos)]
        assert_close("formula", found[p], torch.tensor(expected, dtype=torch.float64))


def apply_rotary(leaf, delta: int, width: int = 12):
    """M(delta) by the addition theorems: a rotation of each pair of sine and cosine by delta times its frequency."""
    frequency = leaf.constants(dims(embed_width=width))["frequency"]
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for i, f in enumerate(frequency):
        sin, cos = (2 * i, 2 * i + 1) if leaf.layout == "interleaved" else (i, i + width // 2)
        matrix[sin, sin] = matrix[cos, cos] = math.cos(delta * f)
        matrix[sin, cos], matrix[cos, sin] = math.sin(delta * f), -math.sin(delta * f)
    return matrix


@pytest.mark.parametrize("delta", [1, 5, 40])
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("endpoint", [False, True])
def test_sinusoidal_shift_is_one_matrix_for_all_positions(layout, endpoint, delta):
    leaf = Sinusoidal(layout=layout, endpoint=endpoint)
    found = table(leaf, 100)
    assert_close("formula", found[delta:], found[:-delta] @ apply_rotary(leaf, delta).T)


def test_sinusoidal_halves_equal_the_table_of_marian():
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    published = MarianSinusoidalPositionalEmbedding(80, 12).create_weight()
    assert_close("single", table(Sinusoidal(layout="halves"), 80), published)


def test_sinusoidal_with_endpoint_equals_the_table_of_fsmt():
    from transformers.models.fsmt.modeling_fsmt import SinusoidalPositionalEmbedding

    with lifted():
        published = SinusoidalPositionalEmbedding.get_embedding(80, 12, None)
    assert published.dtype == torch.float64
    assert_close("oracle", table(Sinusoidal(layout="halves", endpoint=True), 80), published)
    # FSMT counts from its pad id + 1.
    assert_close("oracle", table(Sinusoidal(layout="halves", endpoint=True, offset=2), 78), published[2:])


def test_sinusoidal_endpoint_of_the_narrowest_width_is_finite():
    assert table(Sinusoidal(endpoint=True), 5, width=2).isfinite().all()


def test_sinusoidal_in_bf16_computes_phases_in_fp32():
    found = table(Sinusoidal(), 2000, like=torch.zeros((), dtype=torch.bfloat16))
    exact = table(Sinusoidal(), 2000)
    assert found.dtype == torch.bfloat16
    # Phases in bf16 would be wrong by whole turns.
    assert_close("bf16", found, exact)


@pytest.mark.parametrize("offset", [0, 2, 5])
def test_learned_position_is_the_row_after_the_offset(offset):
    leaf, sizes = Learned(offset=offset), dims(context=20)
    own, pos = held(leaf, sizes), torch.tensor([[0, 1, 19], [3, 0, 7]])
    assert tuple(own["table"].shape) == (20 + offset, 12)
    found = leaf.embed(own, pos, LIKE)
    assert_close(
        "same", found, torch.stack([torch.stack([own["table"][p + offset] for p in row]) for row in pos.tolist()])
    )
    assert leaf.limit(20) == 20


@pytest.mark.parametrize("row_width", [None, 3, 10])
def test_axial_position_is_its_row_beside_its_column(row_width):
    leaf, sizes = Axial(rows=4, columns=5, row_width=row_width), dims()
    own, wide = held(leaf, sizes), 6 if row_width is None else row_width
    assert {n: tuple(t.shape) for n, t in own.items()} == {"rows": (4, wide), "columns": (5, 12 - wide)}
    found = leaf.embed(own, torch.arange(20)[None], LIKE)[0]
    for p in range(20):
        assert_close("same", found[p], torch.cat((own["rows"][p // 5], own["columns"][p % 5])))
    assert leaf.limit(1000) == 20


def test_added_positions_of_each_row_are_its_own():
    for leaf in (Sinusoidal(), Learned(), Axial(rows=8, columns=8)):
        own, pos = held(leaf, dims()), torch.tensor([[0, 1, 2], [5, 0, 63]])
        both = leaf.embed(own, pos, LIKE)
        assert_close("same", both, torch.cat([leaf.embed(own, row[None], LIKE) for row in pos]))


@pytest.mark.parametrize("leaf", [Learned(), Axial(rows=8, columns=8)], ids=["learned", "axial"])
def test_trained_positions_receive_gradients_where_they_were_used(leaf):
    own = held(leaf, dims())
    out = leaf.embed(own, torch.tensor([[0, 9]]), LIKE)
    out.backward(random(*out.shape))
    used = {name: tensor.grad.abs().sum(-1).nonzero().flatten().tolist() for name, tensor in own.items()}
    assert used == ({"table": [0, 9]} if leaf.kind == "learned" else {"rows": [0, 1], "columns": [0, 1]})


@pytest.mark.parametrize(
    ("leaf", "field"),
    [
        (Sinusoidal(theta=0.0), "theta"),
        (Learned(offset=-1), "offset"),
        (Axial(rows=0), "rows"),
        (Axial(columns=0), "columns"),
    ],
)
def test_added_position_setting_that_cannot_be_is_named(leaf, field):
    assert [where for where, _ in leaf.problems()] == [field]


@pytest.mark.parametrize(
    ("leaf", "width", "field"),
    [(Sinusoidal(), 7, "kind"), (Axial(row_width=12), 12, "row_width"), (Axial(), 1, "row_width")],
)
def test_added_position_that_does_not_fit_the_width_is_named(leaf, width, field):
    assert [where for where, _ in leaf.check(dims(embed_width=width))] == [field]
    assert not list(leaf.check(dims(embed_width=14)))
