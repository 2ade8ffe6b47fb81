"""What sparse attention has beyond the zoo's protocol: global tokens, drawn blocks, and masks that GPT-2 is given."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import anyformer as af
from anyformer.errors import InputError, SpecError
from anyformer.families.family import Family
from anyformer.families.hf_bridge import from_hf, to_hf
from anyformer.families.io import load
from tests.families.cases import config_of
from tests.families.oracle import answer, lifted, oracle
from tests.tolerances import assert_close, difference

LENGTH = 23


def pair(kind, variant="tiny", *, seed=0, **changes):
    """A public model with random weights, and ours."""
    family = Family.named(kind)
    assert family is not None
    theirs = oracle(family, config_of(kind, variant) | changes, seed)
    return theirs, from_hf(theirs)


def rows(pad_id, *, side):
    """Three rows, the second of them padded, with three, one and no global tokens."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(3, 61, (3, LENGTH), generator=generator)
    real, marked = torch.ones(3, LENGTH, dtype=torch.long), torch.zeros(3, LENGTH, dtype=torch.long)
    real[1, : 7 if side == "left" else None] = 0
    if side == "right":
        real[1] = 1
        real[1, -7:] = 0
    marked[0, [0, 5, 22]] = 1
    marked[1, 12] = 1
    return ids.masked_fill(real == 0, pad_id), real, marked


@torch.no_grad()
@pytest.mark.parametrize("variant", ["tiny", "one-window", "untied"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_longformer_with_global_tokens_equals_the_published(variant, side):
    theirs, ours = pair("longformer", variant)
    ids, real, marked = rows(ours.spec.ids.pad, side=side)
    wanted = answer(theirs, input_ids=ids, attention_mask=real, global_attention_mask=marked)
    found = ours(ids, attention_mask=real, global_mask=marked).logits
    assert_close("oracle", found[real.bool()], wanted[real.bool()])
    # Every token of a row with global ones moves, and no other row does.
    plain = ours(ids, attention_mask=real).logits
    assert_close("oracle", plain[2], found[2])
    assert (plain[0] - found[0]).abs().amax(-1).min() > 1e-5


@torch.no_grad()
def test_longformer_without_a_token_marked_is_as_without_the_argument():
    _, ours = pair("longformer")
    ids = rows(1, side="left")[0]
    assert torch.equal(ours(ids).logits, ours(ids, global_mask=torch.zeros_like(ids)).logits)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["tiny", "long-decoder"])
def test_led_with_global_tokens_equals_the_published(variant):
    theirs, ours = pair("led", variant)
    ids, real, marked = rows(ours.spec.ids.pad, side="right")
    target = torch.randint(3, 61, (3, 11), generator=torch.Generator().manual_seed(6))
    wanted = answer(theirs, input_ids=ids, attention_mask=real, global_attention_mask=marked, decoder_input_ids=target)
    given = {"attention_mask": real, "global_mask": marked}
    assert_close("oracle", ours(ids, **given, decoder_input_ids=target).logits, wanted)
    cache = ours.new_cache(3, 11)
    parts = [ours(ids, **given, decoder_input_ids=target[:, :4], cache=cache).logits]
    parts += [ours(decoder_input_ids=target[:, i : i + 1], cache=cache).logits for i in range(4, 11)]
    assert_close("oracle", torch.cat(parts, 1), wanted)


@torch.no_grad()
def test_led_without_a_bias_of_logits_is_written_and_read_by_both(tmp_path):
    family = Family.named("led")
    assert family is not None
    spec = family.spec_from(family.small).vary({"head.bias": False})
    ours = af.build(spec, dtype=torch.float64, seed=1).eval()
    af.save(ours, tmp_path, format="hf")
    assert "final_logits_bias" not in load_file(tmp_path / "model.safetensors")
    ids, target = torch.arange(3, 23)[None], torch.arange(5, 13)[None]
    wanted = ours(ids, decoder_input_ids=target).logits
    again = load(tmp_path, dtype=torch.float64)
    assert again.spec == spec.vary({"head.bias": True})
    assert torch.equal(again(ids, decoder_input_ids=target).logits, wanted)
    with lifted():
        theirs = transformers.LEDForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert_close("oracle", answer(theirs, input_ids=ids, decoder_input_ids=target), wanted)


@torch.no_grad()
@pytest.mark.parametrize(
    ("block", "drawn", "length"),
    [(4, 1, 29), (4, 1, 64), (3, 2, 28), (2, 3, 23), (2, 3, 64), (1, 3, 40)],
)
def test_bigbird_equals_the_published_in_eval_mode_and_in_training(block, drawn, length):
    theirs, ours = pair("big_bird", block_size=block, num_random_blocks=drawn, num_hidden_layers=4)
    assert length > (5 + 2 * drawn) * block, "the class would turn to full attention"
    ids = torch.randint(3, 61, (2, length), generator=torch.Generator().manual_seed(2))
    wanted = answer(theirs, input_ids=ids)
    assert theirs.bert.attention_type == "block_sparse"
    assert_close("oracle", ours(ids).logits, wanted)
    # In training it draws its blocks; in eval mode it takes the first block for each of them, and counts it again.
    trained = answer(theirs.train(), input_ids=ids)
    assert difference(trained, wanted) > 1e-4
    assert_close("oracle", ours.train()(ids).logits, trained)
    assert_close("oracle", ours.eval()(ids).logits, wanted)


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True])
def test_bigbird_with_padding_inside_the_last_block_equals_the_published(training):
    theirs, ours = pair("big_bird", block_size=8, num_random_blocks=1)
    theirs.train(training)
    ours.train(training)
    ids = torch.randint(3, 61, (2, 64), generator=torch.Generator().manual_seed(2))
    real = torch.ones_like(ids)
    real[1, -7:] = 0
    wanted = answer(theirs, input_ids=ids, attention_mask=real)
    assert_close("oracle", ours(ids, attention_mask=real).logits[real.bool()], wanted[real.bool()])
    # On the left it would move the class's blocks, and does not move ours.
    turned = ours(ids.roll(7, 1), attention_mask=real.roll(7, 1)).logits.roll(-7, 1)
    assert_close("oracle", turned[1][real[1].bool()], wanted[1][real[1].bool()])


@torch.no_grad()
def test_bigbird_of_a_length_of_the_paper_equals_the_published_where_that_counts_no_block_twice():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    theirs, ours = pair("big_bird", block_size=64, num_random_blocks=3, max_position_embeddings=4096, **sizes)
    ids = torch.randint(3, 61, (1, 1024), generator=torch.Generator().manual_seed(2))
    assert_close("oracle", ours(ids).logits, answer(theirs, input_ids=ids))
    theirs.train()
    ours.train()
    wanted, found = (x.unflatten(1, (16, 64)) for x in (answer(theirs, input_ids=ids), ours(ids).logits))
    # Of 1024 tokens the class may draw the last block too, which all see anyway; it then has twice the weight.
    attention = theirs.bert.encoder.layer[0].attention.self
    np.random.seed(attention.seed)
    drawn = [attention._bigbird_block_rand_mask(4096, 4096, 64, 64, 3, last_idx=1024)[:14] for _ in range(2)]
    twice = {row + 1 for head in drawn for row in range(14) if 15 in head[row]}
    once = [row for row in range(16) if row not in twice]
    assert 2 < len(twice) < 10
    assert_close("oracle", found[:, once], wanted[:, once])
    assert all(difference(found[:, row], wanted[:, row]) > 1e-6 for row in twice)


def fixed(length, block, columns):
    """Child et al. 2019, section 4.3, both sets at once: the own block, and the last columns of every block."""
    return torch.tensor(
        [
            [k <= q and (q // block == k // block or k % block >= block - columns) for k in range(length)]
            for q in range(length)
        ]
    )


def banded(length, width):
    """A token and those before it, `width` in all."""
    return torch.tensor([[0 <= q - k < width for k in range(length)] for q in range(length)])


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "changes", "masks"),
    [
        (
            "sparse-transformer-enwik8",
            {"attention.pattern": "causal & fixed(5, 2)", "position.rows": 6, "position.columns": 5, "context": 30},
            [fixed(LENGTH, 5, 2)] * 3,
        ),
        (
            "gpt3-small",
            {"layers.banded.attention.pattern": "window(4)", "context": 30},
            [banded(LENGTH, n) for n in (LENGTH, 4, LENGTH)],
        ),
    ],
)
def test_preset_gives_the_logits_of_gpt2_that_is_given_its_masks(name, changes, masks):
    small = {"width": 36, "depth": 3, "attention.heads": 6, "ffn.width": 40, "vocab": 61, "norm.eps": 1e-3} | {
        "ids.bos": None,
        "ids.eos": [],
    }
    ours = af.build(af.spec(name, small | changes), dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(3)
    for tensor in ours.parameters():
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * 0.3)
    same = {"context": 30, "ffn.kind": ours.spec.ffn.kind, "ffn.bias": True, "head.tied": ours.spec.head.tied}
    dense = af.build(af.spec("gpt2-small", small | same), dtype=torch.float64).eval()
    for tensor in dense.parameters():
        # Biases that a preset lacks are 0.
        tensor.zero_()
    own = ours.state_dict()
    if "decoder.positions.0.rows" in own:
        place = torch.arange(30)
        rows, columns = own.pop("decoder.positions.0.rows"), own.pop("decoder.positions.0.columns")
        own["decoder.positions.0.table"] = rows[place // 5] + columns[place % 5]
    assert not dense.load_state_dict(own, strict=False).unexpected_keys
    with lifted():
        theirs = to_hf(dense, "gpt2")
    for layer, mask in zip(theirs.transformer.h, masks, strict=True):
        layer.attn.register_forward_pre_hook(
            lambda _, args, named, mask=mask: (args, named | {"attention_mask": mask[None, None]}), with_kwargs=True
        )
    ids = torch.randint(3, 61, (2, LENGTH), generator=generator)
    wanted = answer(theirs, input_ids=ids)
    assert_close("oracle", ours(ids).logits, wanted)
    assert difference(dense(ids).logits, wanted) > 1e-3, "the masks were not read"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "gpt2-small",
            {"position.length": 8},
            "context: 1024 is longer than the 8 positions that position.learned has",
        ),
        ("led-base", {"encoder.position.length": 8}, "context: 16384 is longer than the 8 positions"),
        ("led-base", {"decoder.position.length": 0}, "decoder.position.length: 0 is not at least 1"),
        ("sparse-transformer-enwik8", {"position.row_width": 9}, "position.row_width: has no effect"),
        ("bigbird-base", {"attention.heads": 6}, "12 are not the 6 heads of the layer"),
    ],
)
def test_preset_with_positions_or_draws_that_do_not_fit_is_refused_by_name(name, changes, message):
    with pytest.raises(SpecError) as info:
        af.spec(name, changes)
    assert message in str(info.value)


def test_led_refuses_a_target_longer_than_its_decoder_and_reads_a_source_that_is():
    _, ours = pair("led")
    ids = torch.full((1, 50), 5)
    assert ours(ids, decoder_input_ids=ids[:, :40]).logits.shape == (1, 40, 61)
    with pytest.raises(InputError, match="50 tokens are more than the 40 positions"):
        ours(ids, decoder_input_ids=ids)
