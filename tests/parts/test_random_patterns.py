"""Random patterns: how many are drawn, from what, and that BigBird's are those of its published code."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.errors import SpecError
from anyformer.parts.patterns.bigbird_random import BigBirdRandom
from anyformer.parts.patterns.random_blocks import RandomBlocks
from anyformer.parts.patterns.random_tokens import RandomTokens
from anyformer.specs import ModelSpec
from anyformer.specs.patterns import Pattern, Tokens
from anyformer.specs.random_choice import draw, scramble


def blocks_seen(pattern: Pattern, block: int, length: int, head: int = 0, layer: int = 0) -> list[list[int]]:
    """For each block of queries the blocks of keys; all tokens of a block must agree."""
    pos = np.arange(length)
    q, k = (Tokens(pos.reshape(shape), 0, length, head, layer) for shape in ((-1, 1), (1, -1)))
    dense = np.broadcast_to(pattern.allows(q, k), (length, length))
    begin = pos // block * block
    assert np.array_equal(dense, dense[begin][:, begin])
    return [np.flatnonzero(row).tolist() for row in dense[::block, ::block]]


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize(("block", "count", "length"), [(4, 3, 41), (1, 5, 23), (8, 2, 64), (4, 20, 30), (7, 1, 7)])
def test_random_blocks_are_exactly_count_distinct_ones(block, count, length, past):
    pattern = RandomBlocks(block=block, count=count, seed=3, past=past)
    total = -(-length // block)
    for head, layer in ((0, 0), (3, 1)):
        for own, seen in enumerate(blocks_seen(pattern, block, length, head, layer)):
            among = own + 1 if past else total
            assert len(seen) == min(count, among)
            assert max(seen) < among


@pytest.mark.parametrize("past", [False, True])
def test_random_tokens_are_random_blocks_of_one(past):
    tokens, blocks = RandomTokens(count=3, past=past), RandomBlocks(block=1, count=3, past=past)
    assert blocks_seen(tokens, 1, 29, 2, 1) == blocks_seen(blocks, 1, 29, 2, 1)


def test_random_blocks_depend_on_seed_layer_head_and_number_of_blocks_only():
    def seen(seed: int = 0, layer: int = 0, head: int = 0, length: int = 256) -> list[list[int]]:
        return blocks_seen(RandomBlocks(block=8, count=3, seed=seed), 8, length, head, layer)

    assert seen() == seen()
    # The last block may be shorter: there are as many blocks, so they are the same.
    assert seen() == seen(length=250)
    others = [seen(seed=1), seen(layer=1), seen(head=1), seen(length=248)[:31], seen(seed=1, layer=1), seen(head=2)]
    everything = [seen()[:31], *others]
    assert all(a[:31] != b[:31] for a, b in itertools.combinations(everything, 2))


def test_random_draws_of_the_past_do_not_read_the_length():
    pattern = RandomBlocks(block=4, count=2, past=True)
    assert not pattern.needs_length
    assert blocks_seen(pattern, 4, 64)[:8] == blocks_seen(pattern, 4, 32)


def test_draws_are_close_to_even():
    drawn = np.stack(draw(3, np.full(4000, 16), (0, 1, 2, np.arange(4000))))
    counts = np.bincount(drawn.ravel(), minlength=16)
    # 750 each, with a standard deviation of 25.
    assert counts.min() > 640
    assert counts.max() < 860
    assert all(np.diff(drawn, axis=0).ravel() > 0)


def test_scrambled_numbers_have_31_bits_and_differ():
    numbers = {scramble(a, b) for a in range(100) for b in range(100)}
    assert len(numbers) > 9990
    assert 0 <= min(numbers) < max(numbers) < 2**31
    assert scramble(1, 2) != scramble(2, 1)


class Published:
    """The published code's draws while it trains."""

    def __init__(self, block: int, count: int, heads: int, most: int) -> None:
        from transformers import BigBirdConfig
        from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

        config = BigBirdConfig(
            hidden_size=heads, num_attention_heads=heads, block_size=block, num_random_blocks=count,
            max_position_embeddings=most,
        )  # fmt: skip
        self.block, self.count, self.heads = block, count, heads
        self.attention = BigBirdBlockSparseAttention(config).train()

    def draws(self, length: int, layer: int) -> np.ndarray:
        """(heads, blocks - 2, count)."""
        a, block = self.attention, self.block
        state = np.random.get_state()
        np.random.seed(layer)
        try:
            if length in (1024, 3072, 4096):
                most = a.max_seqlen
                rows = [
                    a._bigbird_block_rand_mask(most, most, block, block, self.count, 1024) for _ in range(self.heads)
                ]
                return np.stack([row[: length // block - 2] for row in rows])
            plan: Any = a._get_rand_attn_plan(length, block, self.count)
            return np.stack(a._bigbird_block_rand_mask_with_head(length, length, block, block, self.heads, *plan))
        finally:
            np.random.set_state(state)


CASES = [(64, 3, 4, 4096, 768), (64, 3, 4, 4096, 1024), (64, 3, 3, 4096, 3072), (64, 3, 2, 4096, 4096)]
CASES += [(64, 3, 3, 1024, 1024), (16, 3, 2, 1024, 192), (16, 2, 3, 512, 400), (8, 1, 5, 256, 64), (4, 2, 2, 64, 64)]


@pytest.mark.parametrize(("block", "count", "heads", "most", "length"), CASES)
def test_bigbird_random_blocks_are_those_of_the_published_code(block, count, heads, most, length):
    published = Published(block, count, heads, most)
    pattern = BigBirdRandom(block=block, count=count, heads=heads, most=most)
    for layer in (0, 1, 7):
        drawn = published.draws(length, layer)
        pos = np.arange(0, length, block)
        for head in range(heads):
            q, k = (Tokens(pos.reshape(shape), 0, length, head, layer) for shape in ((-1, 1), (1, -1)))
            dense = pattern.allows(q, k)
            assert not dense[[0, -1]].any()
            assert [set(np.flatnonzero(row)) for row in dense[1:-1]] == [set(row) for row in drawn[head].tolist()]


def test_bigbird_random_of_a_short_document_sees_it_whole():
    pattern = BigBirdRandom(block=4, count=1, heads=2, most=64)
    assert all(len(seen) == 7 for seen in blocks_seen(pattern, 4, 28))
    assert [len(seen) for seen in blocks_seen(pattern, 4, 29)] == [0, 1, 1, 1, 1, 1, 1, 0]


def ask(pattern: Pattern, lengths: torch.Tensor, heads: int, layer: int) -> torch.Tensor:
    """All heads of rows with documents of these lengths."""
    pos, head = torch.arange(48)[None].expand(len(lengths), -1), torch.arange(heads)[:, None, None]
    length = lengths[:, None].expand(-1, 48)
    q = Tokens(pos[:, None, :, None], 0, length[:, None, :, None], head, layer)
    return pattern.allows(q, Tokens(pos[:, None, None, :], 0, length[:, None, None, :], head, layer))


def test_random_patterns_in_one_compiled_graph_draw_the_same():
    """Of several models and layers: after a few of them the compiler takes their numbers for variables."""
    compiled = torch.compile(ask, fullgraph=True, backend="eager")
    bigbird = [BigBirdRandom(block=block, count=1, heads=3, most=64) for block in (2, 3)]
    for pattern, layer in ((RandomBlocks(block=4, count=2), 0), *itertools.product(bigbird, (1, 2))):
        for lengths in (torch.tensor([48, 31]), torch.tensor([20, 40])):
            found = compiled(pattern, lengths, 3, layer)
            for row, length in enumerate(lengths.tolist()):
                pos = np.arange(length)
                q, k = (Tokens(pos.reshape(shape), 0, length, 2, layer) for shape in ((-1, 1), (1, -1)))
                assert np.array_equal(found[row, 2, :length, :length].numpy(), pattern.allows(q, k))


@pytest.mark.parametrize("text", ["random_tokens(2000)", "random_blocks(4, 1000)", "random_blocks(4, 17)"])
def test_random_pattern_that_draws_more_than_there_is_is_refused(text):
    with pytest.raises(SpecError, match=r"is more than the (64 tokens|16 blocks) that a document may have"):
        ModelSpec.from_data(
            {
                "topology": "encoder",
                "vocab": 9,
                "width": 8,
                "depth": 1,
                "context": 64,
                "attention": {"heads": 2, "pattern": text},
            }
        )
