"""RoPE: what a rotation keeps, both layouts, partial heads, and every scaling against the published functions."""

import pytest
import torch

from anyformer.parts.positions.rope import Rope
from anyformer.parts.positions.rope_scaling import DynamicNtk, Linear, Llama3, LongRope, RopeScaling, Yarn
from tests.parts.samples import dims, held, lifted, random
from tests.tolerances import assert_close, difference

SIZES = dims(head_dim=16)
POS = torch.tensor([[0, 1, 2, 50, 1000], [7, 3, 11, 0, 5]])
LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])
PARTIAL = pytest.mark.parametrize(
    "part", [{}, {"fraction": 0.5}, {"fraction": 0.25}, {"dims": 6}], ids=["whole", "half", "quarter", "six"]
)


def turn(leaf, x, pos=POS, length=None, sizes=SIZES):
    angles = leaf.angles(held(leaf, sizes), pos, None if length is None else torch.full((1, 1), length), x)
    return leaf.rotate(x, angles)


@LAYOUTS
@PARTIAL
def test_rope_turns_each_pair_by_its_angle_and_leaves_the_rest(layout, part):
    leaf, x = Rope(layout=layout, theta=500.0, **part), random(2, 5, 3, 16)
    turned = part.get("dims", int(16 * part.get("fraction", 1.0)))
    expected = x.clone()
    for i in range(turned // 2):
        a, b = (i, i + turned // 2) if layout == "half" else (2 * i, 2 * i + 1)
        angle = (POS.double() * 500.0 ** (-2 * i / turned))[:, :, None]
        expected[..., a] = x[..., a] * angle.cos() - x[..., b] * angle.sin()
        expected[..., b] = x[..., b] * angle.cos() + x[..., a] * angle.sin()
    assert_close("formula", turn(leaf, x), expected)


@LAYOUTS
@PARTIAL
def test_rope_keeps_the_length_of_every_vector(layout, part):
    x = random(2, 5, 3, 16)
    assert_close("formula", turn(Rope(layout=layout, **part), x).norm(dim=-1), x.norm(dim=-1))


@LAYOUTS
@PARTIAL
def test_rope_products_depend_on_the_difference_of_positions_only(layout, part):
    leaf, q, k = Rope(layout=layout, **part), random(2, 5, 3, 16, seed=1), random(2, 5, 3, 16, seed=2)

    def products(shift):
        return torch.einsum("bthk,bshk->bhts", turn(leaf, q, POS + shift), turn(leaf, k, POS + shift))

    for shift in (1, 37, 5000):
        # Angles of thousands of radians have lost a few digits of their own.
        assert_close("promise", products(shift), products(0))
    moved = torch.einsum("bthk,bshk->bhts", turn(leaf, q, POS + 1), turn(leaf, k, POS))
    assert difference(moved, products(0)) > 1e-2


def test_rope_halves_equal_llama():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k = random(2, 5, 3, 16, seed=1), random(2, 5, 3, 16, seed=2)
    angle = POS.double()[..., None] * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    angle = torch.cat((angle, angle), -1)
    theirs = apply_rotary_pos_emb(q, k, angle.cos(), angle.sin(), unsqueeze_dim=2)
    for x, published in zip((q, k), theirs, strict=True):
        assert_close("oracle", turn(Rope(), x), published)


@pytest.mark.parametrize("rotary", [16, 10])
def test_rope_interleaved_equals_gpt_j(rotary):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    x = random(2, 5, 3, 16)
    with lifted():
        sin, cos = create_sinusoidal_positions(1001, rotary)[POS].chunk(2, -1)
    published = torch.cat((apply_rotary_pos_emb(x[..., :rotary], sin, cos), x[..., rotary:]), -1)
    assert_close("oracle", turn(Rope(layout="interleaved", dims=rotary), x), published)


def test_rope_layouts_are_a_permutation_of_each_other():
    x = random(2, 5, 3, 16)
    order = torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2)))
    assert_close("same", turn(Rope(), x[..., order]), turn(Rope(layout="interleaved"), x)[..., order])


@LAYOUTS
def test_rope_in_bf16_computes_angles_in_fp32(layout):
    leaf, angles = Rope(layout=layout), [1001 * 10000 ** (-2 * i / 16) for i in range(8)]
    first = torch.arange(8) if layout == "half" else torch.arange(0, 16, 2)
    # A vector with 1 on the first of each pair and 0 on the second becomes the cosines and the sines.
    x = torch.zeros(1, 1, 3, 16, dtype=torch.bfloat16)
    x[..., first] = 1
    found = turn(leaf, x, torch.tensor([[1001]]))[0, 0, 0]
    assert found.dtype == torch.bfloat16
    assert_close("bf16", found[first], torch.tensor(angles, dtype=torch.float64).cos())


def test_rope_rotates_values_only_if_asked():
    assert Rope(on_values=True).rotates_values()
    assert not Rope().rotates_values()


SHORT = tuple(1 + 0.1 * i for i in range(8))
LONG = tuple(1 + 0.9 * i for i in range(8))
SCALINGS = {
    "linear": (Linear(factor=4.0), {"factor": 4.0}),
    "dynamic": (DynamicNtk(factor=2.0, original=64), {"factor": 2.0}),
    "yarn": (Yarn(factor=8.0, original=64), {"factor": 8.0, "original_max_position_embeddings": 64}),
    "yarn_untruncated": (
        Yarn(factor=32.0, original=4096, truncate=False),
        {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
    ),
    "yarn_betas": (
        Yarn(factor=4.0, original=2048, beta_fast=20.0, beta_slow=2.0, attention_factor=0.9),
        {
            "factor": 4.0, "original_max_position_embeddings": 2048, "beta_fast": 20.0, "beta_slow": 2.0,
            "attention_factor": 0.9,
        },
    ),
    # The ramp ends beyond the last pair, begins before the first, and has no width at all.
    "yarn_long": (Yarn(factor=8.0, original=2**24), {"factor": 8.0, "original_max_position_embeddings": 2**24}),
    "yarn_short": (Yarn(factor=8.0, original=9), {"factor": 8.0, "original_max_position_embeddings": 9}),
    "yarn_steep": (Yarn(factor=8.0, original=6), {"factor": 8.0, "original_max_position_embeddings": 6}),
    "llama3": (
        Llama3(),
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    ),
    "llama3_low": (
        Llama3(factor=32.0, original=256, low=2.0, high=16.0),
        {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 16.0, "original_max_position_embeddings": 256},
    ),
    # Nothing between long and short waves (Llama 4 Scout).
    "llama3_step": (
        Llama3(factor=16.0, low=1.0, high=1.0),
        {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 8192},
    ),
    "longrope": (
        LongRope(factor=32.0, original=64, short=SHORT, long=LONG),
        {
            "factor": 32.0, "original_max_position_embeddings": 64, "short_factor": list(SHORT),
            "long_factor": list(LONG),
        },
    ),
    "longrope_gain": (
        LongRope(factor=1.0, original=64, short=SHORT, long=LONG, attention_factor=1.2),
        {
            "factor": 1.0, "original_max_position_embeddings": 64, "short_factor": list(SHORT),
            "long_factor": list(LONG), "attention_factor": 1.2,
        },
    ),
}  # fmt: skip


def frequencies(leaf, length):
    """What the scaling makes of the plain frequencies at this declared length."""
    own = held(leaf, SIZES)
    declared = torch.full((1, 1), length)
    return leaf.scaling.frequencies(own, declared, torch.float64, leaf.theta).flatten()


def test_table_of_this_file_holds_every_scaling():
    assert {leaf.kind for leaf, _ in SCALINGS.values()} == set(RopeScaling.kinds())


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("length", [10, 64, 65, 1000])
@pytest.mark.parametrize("case", SCALINGS)
def test_rope_scaling_equals_the_published_function(case, length, theta):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling, published = SCALINGS[case]
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, head_dim=16, max_position_embeddings=64,
        rope_parameters={"rope_type": scaling.kind, "rope_theta": theta} | published,
    )  # fmt: skip
    with lifted():
        theirs, gain = ROPE_INIT_FUNCTIONS[scaling.kind](config, torch.device("cpu"), seq_len=length)
    assert theirs.dtype == torch.float64
    ours = frequencies(Rope(theta=theta, scaling=scaling), length)
    # Relative to each frequency: the slow ones are thousands of times smaller than the first.
    assert_close("oracle", ours / theirs, torch.ones(8, dtype=torch.float64))
    assert_close("formula", torch.tensor(scaling.gain()).double(), torch.tensor(float(gain)).double())


def plain(theta=10000.0):
    return torch.tensor([theta ** (-2 * i / 16) for i in range(8)], dtype=torch.float64)


def test_rope_dynamic_up_to_the_original_length_changes_nothing_and_beyond_slows_down():
    leaf = Rope(scaling=DynamicNtk(factor=2.0, original=64))
    assert_close("formula", frequencies(leaf, 64), plain())
    assert_close("formula", frequencies(leaf, 3), plain())
    # The slowest pair ends where it would have ended at the original length, as NTK scaling intends.
    assert (frequencies(leaf, 256)[1:] < plain()[1:]).all()
    assert_close("formula", frequencies(leaf, 256), plain(10000.0 * (2 * 4 - 1) ** (16 / 14)))


def test_rope_longrope_takes_the_long_factors_beyond_the_original_length():
    leaf = Rope(scaling=LongRope(factor=4.0, original=64, short=SHORT, long=LONG))
    assert_close("formula", frequencies(leaf, 64), plain() / torch.tensor(SHORT, dtype=torch.float64))
    assert_close("formula", frequencies(leaf, 65), plain() / torch.tensor(LONG, dtype=torch.float64))


@pytest.mark.parametrize("case", ["dynamic", "longrope"])
def test_rope_scaling_by_length_reads_the_length_of_each_token(case):
    leaf = Rope(scaling=SCALINGS[case][0])
    own, lengths = held(leaf, SIZES), torch.tensor([[10, 64, 500, 65, 200], [64, 70, 1, 2, 3]])
    x = random(2, 5, 3, 16)
    found = leaf.rotate(x, leaf.angles(own, POS, lengths, x))
    for row in range(2):
        for t in range(5):
            one = (slice(row, row + 1), slice(t, t + 1))
            assert_close("formula", found[one], turn(leaf, x[one], POS[one], length=int(lengths[row, t])))


@pytest.mark.parametrize("case", ["dynamic", "longrope"])
def test_rope_scaling_by_length_without_a_length_is_refused(case):
    leaf = Rope(scaling=SCALINGS[case][0])
    assert leaf.needs_length
    with pytest.raises(TypeError, match="reads a length"):
        turn(leaf, random(2, 5, 3, 16))


@pytest.mark.parametrize("case", ["yarn", "longrope"])
def test_rope_scaling_gain_multiplies_what_is_turned(case):
    scaling = SCALINGS[case][0]
    assert scaling.gain() > 1
    x = random(2, 5, 3, 16)
    found = turn(Rope(fraction=1.0, scaling=scaling), x, length=100)
    assert_close("formula", found.norm(dim=-1), scaling.gain() * x.norm(dim=-1))


@pytest.mark.parametrize(
    ("leaf", "field"),
    [
        (Rope(theta=0.0), "theta"),
        (Rope(fraction=0.0), "fraction"),
        (Rope(fraction=1.5), "fraction"),
        (Rope(fraction=0.5, dims=4), "dims"),
        (Rope(scaling=Linear(factor=0.5)), "scaling.factor"),
        (Rope(scaling=Yarn(factor=2.0, original=0)), "scaling.original"),
        (Rope(theta=1.0, scaling=Yarn(factor=2.0, original=8)), "theta"),
        (Rope(scaling=Yarn(factor=2.0, original=8, beta_slow=0.0)), "scaling.beta_slow"),
        (Rope(scaling=Yarn(factor=2.0, original=8, beta_fast=1.0)), "scaling.beta_fast"),
        (Rope(scaling=Yarn(factor=2.0, original=8, attention_factor=0.0)), "scaling.attention_factor"),
        (Rope(scaling=LongRope(factor=2.0, original=1, short=(1.0,), long=(1.0,))), "scaling.original"),
        (Rope(scaling=Llama3(low=4.5)), "scaling.low"),
        (Rope(scaling=LongRope(factor=2.0, original=8, short=(1.0, -1.0), long=(1.0, 1.0))), "scaling.short"),
    ],
)
def test_rope_setting_that_cannot_be_is_named(leaf, field):
    assert [where for where, _ in leaf.problems()] == [field]


@pytest.mark.parametrize(
    ("leaf", "field"),
    [
        (Rope(dims=5), "kind"),
        (Rope(dims=18), "kind"),
        (Rope(fraction=0.05), "kind"),
        (Rope(dims=2, scaling=DynamicNtk(factor=2.0, original=8)), "scaling.kind"),
        (Rope(scaling=LongRope(factor=2.0, original=8, short=SHORT[:7], long=LONG)), "scaling.short"),
        (Rope(scaling=LongRope(factor=2.0, original=8, short=SHORT, long=LONG[:7])), "scaling.long"),
    ],
)
def test_rope_that_does_not_fit_the_head_is_named(leaf, field):
    assert [where for where, _ in leaf.check(SIZES)] == [field]
