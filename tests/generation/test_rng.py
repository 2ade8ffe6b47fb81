"""Draws by seed: even numbers that depend on nothing but the seed, the stream and the place."""

import pytest
import torch

from anyformer.generation.samplers.batched import keys, pick, uniform

CPU = torch.device("cpu")


def reference(seed: int, stream: int, step: int) -> float:
    """The same in Python's own whole numbers."""
    top = 2**64

    def mixed(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % top
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % top
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    key = mixed((mixed((seed + golden) % top) + stream * golden) % top)
    return (mixed((key + (step + 1) * golden) % top) >> 11) / 2**53


def test_uniform_is_the_published_mixing_of_64_bits():
    # The first number of SplitMix64 from state 0, as its authors print it.
    assert float(uniform(torch.tensor(0), torch.tensor(0))) == (0xE220A8397B1DCDAF >> 11) / 2**53
    for seed in (0, 1, 7, 2**63 - 1):
        found = uniform(keys(seed, 3, device=CPU)[:, None], torch.tensor([0, 1, 500]))
        assert found.tolist() == [[reference(seed, b, i) for i in (0, 1, 500)] for b in range(3)]


def test_keys_of_one_seed_are_streams_and_of_a_list_belong_to_their_row():
    one = keys(5, 4, device=CPU)
    assert len(set(one.tolist())) == 4
    assert torch.equal(one, keys(5, 2, samples=2, device=CPU))
    listed = keys([5, 6, 5], 3, device=CPU)
    assert listed[0] == listed[2] == one[0] != listed[1]
    assert torch.equal(keys([6, 5], 2, samples=2, device=CPU)[2:], one[:2])


def test_keys_without_a_seed_follow_the_generator_of_torch_and_others_leave_it_alone():
    torch.manual_seed(0)
    first, second = (keys(None, 2, device=CPU) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    keys(3, 2, device=CPU)
    assert torch.equal(keys(None, 2, device=CPU), first)


def chi_square(counts: torch.Tensor, want: torch.Tensor) -> float:
    return float(((counts - want) ** 2 / want).sum())


@pytest.mark.parametrize("along", ["steps", "streams", "seeds"])
def test_uniform_is_even_and_uncorrelated_along_every_axis(along):
    count = 100_000
    if along == "steps":
        found = uniform(keys(11, 1, device=CPU), torch.arange(count))
    elif along == "streams":
        found = uniform(keys(11, count, device=CPU), torch.tensor(3))
    else:
        found = uniform(keys(list(range(count)), count, device=CPU), torch.tensor(0))
    assert found.dtype == torch.float64
    assert 0 <= float(found.min()) < float(found.max()) < 1
    cells = (found * 100).long()
    # 99 degrees of freedom: 148 is exceeded by one sample in a thousand.
    assert chi_square(torch.bincount(cells, minlength=100), torch.full((100,), count / 100)) < 148
    pairs = (found[:-1] * 10).long() * 10 + (found[1:] * 10).long()
    assert chi_square(torch.bincount(pairs, minlength=100), torch.full((100,), (count - 1) / 100)) < 148


def test_pick_has_the_frequencies_of_a_softmax():
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(0))
    count = 60_000
    found = pick(logits.expand(count, 40), uniform(keys(2, count, device=CPU), torch.tensor(9)))
    # 39 degrees of freedom: 72 is exceeded by one sample in a thousand.
    assert chi_square(torch.bincount(found, minlength=40), count * logits[0].double().softmax(-1)) < 72


def test_pick_takes_the_token_whose_share_holds_the_point():
    logits = torch.tensor([0.25, 0.0, 0.5, 0.25]).log().expand(5, 4)
    points = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75], dtype=torch.float64)
    assert pick(logits, points).tolist() == [0, 0, 2, 2, 3]
