"""Every spec generates: padded == alone == without a cache == streamed, to the token, and seeds repeat."""

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.model.model import Model
from anyformer.specs import ModelSpec
from tests.contract.contracts import model_of, prefix_of
from tests.contract.draw import draw
from tests.generation.talking import talking
from tests.quick import few
from tests.tolerances import assert_close

SEEDS = talking(range(120))
NEW = 10
PROMPTS = (11, 4, 7)


def prompts(spec: ModelSpec, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # A prefix is fed at once, so no prompt may be shorter.
    least = prefix_of(spec) if spec.topology == "decoder" else 0
    return [torch.randint(0, spec.input_vocab, (max(n, least),), generator=generator) for n in PROMPTS]


def padded(rows: list[Tensor], *, left: bool) -> tuple[Tensor, Tensor]:
    """Rows beside each other, with noise for padding, and the mask of real tokens."""
    width = max(len(row) for row in rows) + 2
    ids, mask = torch.full((len(rows), width), 3), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


def options(model: Model) -> dict:
    # A length is declared for all rows, as the promises hold at one length.
    return {"max_new_tokens": NEW} | ({"rope_length": 25} if model.reads_length else {})


def new_tokens(model: Model, found: Tensor, width: int) -> Tensor:
    return found[:, 1:] if model.spec.topology == "encoder-decoder" else found[:, width:]


@pytest.mark.parametrize("seed", few(SEEDS, 10))
def test_generate_of_a_random_spec_gives_the_same_tokens_in_every_way(seed):
    spec = draw(seed)
    model = model_of(spec)
    given, rows = options(model), prompts(spec, seed)
    alone = [af.generate(model, row[None], **given) for row in rows]
    for row, found in zip(rows, alone, strict=True):
        assert found.shape == (1, NEW + (1 if spec.topology == "encoder-decoder" else len(row)))
        assert torch.equal(found, af.generate(model, row[None], use_cache=False, **given))
    # Tokens repeat easily, so the probabilities that they came from are compared too.
    sure = torch.cat([af.generate(model, row[None], details=True, **given).logprobs for row in rows])
    want = torch.cat([new_tokens(model, found, len(row)) for row, found in zip(rows, alone, strict=True)])
    for left in (True, False):
        ids, mask = padded(rows, left=left)
        together = af.generate(model, ids, attention_mask=mask, **given)
        assert torch.equal(new_tokens(model, together, ids.shape[1]), want)
        if spec.topology == "decoder":
            assert torch.equal(together[:, : ids.shape[1]], ids)
        else:
            assert (together[:, 0] == spec.ids.start).all()
        for use_cache in (True, False):
            again = af.generate(model, ids, attention_mask=mask, use_cache=use_cache, details=True, **given)
            assert torch.equal(again.ids, together)
            assert_close("promise", again.logprobs, sure)
        streamed = list(af.generate(model, ids, attention_mask=mask, stream=True, **given))
        assert torch.equal(torch.stack(streamed, 1), want)
    draws = [af.generate(model, ids, attention_mask=mask, temperature=1.5, seed=s, **given) for s in (1, 1, 2, 3)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2]) or not torch.equal(draws[0], draws[3])


@pytest.mark.parametrize("seed", SEEDS[::5])
def test_generate_with_stop_tokens_ends_each_row_by_itself(seed):
    spec = draw(seed)
    model, rows = model_of(spec), prompts(spec, seed)
    given = options(model)
    ids, mask = padded(rows, left=True)
    free = new_tokens(model, af.generate(model, ids, attention_mask=mask, stop=(), **given), ids.shape[1])
    # Two tokens that rows really choose, one of them early.
    stops = (int(free[0, 2]), int(free[1, 5]))
    found = af.generate(model, ids, attention_mask=mask, stop=stops, details=True, **given)
    new = new_tokens(model, found.ids, ids.shape[1])
    for i, row in enumerate(free.tolist()):
        ends = [t for t, token in enumerate(row) if token in stops]
        length = ends[0] + 1 if ends else NEW
        assert found.lengths[i] == length
        assert found.reasons[i] == ("stop" if ends else "length")
        kept = min(length, new.shape[1])
        assert new[i].tolist() == row[:kept] + [0] * (new.shape[1] - kept)
        assert (found.logprobs[i, length:] == 0).all()
    assert new.shape[1] == max(found.lengths)
    assert min(found.lengths) <= 6


def test_random_specs_of_these_tests_generate_in_both_topologies():
    specs = [draw(seed) for seed in SEEDS]
    assert sum(spec.topology == "decoder" for spec in specs) >= 15
    assert sum(spec.topology == "encoder-decoder" for spec in specs) >= 6
    assert any(spec.context == 21 and spec.position.limit(21) for spec in specs)
