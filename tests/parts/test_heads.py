"""What a model answers: logits, pooled answers, pairs."""

import pytest
import torch
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.parts.embedding import Embedding
from anyformer.parts.heads import head_module, mean_over, pool_hidden, pooled
from anyformer.specs.embed_head import LabelHead, NoHead, PairHead, RegressionHead, SequenceHead
from tests.parts.samples import random, randomised, small_spec
from tests.tolerances import assert_close

STATES = random(3, 5, 16, seed=9)
VALID = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0]]) != 0


def made(head, changes=None):
    spec = small_spec({"head": head} | (changes or {}))
    table = randomised(Embedding(spec.vocab, spec.embed_width), seed=50)
    return randomised(head_module(spec, table)), table.weight


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_token_head_is_the_product_with_its_own_matrix_or_the_table(tied, bias):
    module, table = made({"kind": "lm", "tied": tied, "bias": bias})
    expected = STATES @ (table if tied else module.weight).T
    assert_close("formula", module(STATES), expected + module.bias if bias else expected)
    assert sorted(n for n, _ in module.named_parameters()) == ["bias"] * bias + ["weight"] * (not tied)


@pytest.mark.parametrize(("scale", "factor"), [("1/sqrt(width)", 0.25), (0.5, 0.5)])
@pytest.mark.parametrize("cap", [None, 0.7])
def test_token_head_scales_and_then_caps_its_logits(scale, factor, cap):
    module, _ = made({"kind": "lm", "scale": scale} | ({"softcap": cap} if cap else {}))
    logits = STATES @ module.weight.T * factor
    assert_close("formula", module(STATES), logits if cap is None else cap * (logits / cap).tanh())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_token_head_transform_is_dense_activation_and_norm(activation, bias):
    changes = {"norm.kind": "layernorm", "embed.width": 6}
    head = {"kind": "lm", "transform": True, "tied": True, "bias": True, "transform_bias": bias}
    module, table = made(head | {"activation": activation}, changes)
    act = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}[activation]
    inner = act(STATES @ module.dense.weight.T + (module.dense.bias if bias else 0))
    normed = F.layer_norm(inner, (6,), module.norm.weight, module.norm.bias, 1e-5)
    assert_close("formula", module(STATES), normed @ table.T + module.bias)


def test_token_head_tied_to_a_narrow_table_projects_to_its_width():
    module, table = made({"kind": "lm", "tied": True}, {"embed.width": 6})
    assert_close("formula", module(STATES), STATES @ module.project.weight.T @ table.T)


@pytest.mark.parametrize("dense", [False, True])
def test_sequence_head_is_a_linear_answer_after_an_optional_tanh_layer(dense):
    module, _ = made({"kind": "sequence", "labels": 4, "dense": dense}, {"topology": "encoder"})
    x = STATES[:, 0]
    inner = torch.tanh(x @ module.dense.weight.T + module.dense.bias) if dense else x
    assert_close("formula", module(x), inner @ module.answer.weight.T + module.answer.bias)


@pytest.mark.parametrize(
    ("head", "into", "out"),
    [
        ({"kind": "pair", "labels": 3}, 64, 3),
        ({"kind": "token", "labels": 7}, 16, 7),
        ({"kind": "regression", "outputs": 2}, 16, 2),
    ],
)
def test_answer_head_has_the_shape_of_its_question(head, into, out):
    module, _ = made(head, {"topology": "encoder", "embed.token_types": 2})
    x = random(3, into, seed=4)
    assert_close("formula", module(x), x @ module.answer.weight.T + module.answer.bias)
    assert module(x).shape == (3, out)


def test_no_head_is_no_module():
    assert head_module(small_spec({"head": "none"}), None) is None


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
def test_pooled_takes_real_tokens_only(pool):
    for row, places in enumerate(([1, 2, 3], [0, 1, 2, 3, 4], [3])):
        wanted = {"first": places[:1], "last": places[-1:], "mean": places}[pool]
        assert_close("formula", pooled(STATES, VALID, pool)[row], STATES[row, wanted].mean(0))
    assert_close("formula", pooled(STATES, None, pool), pooled(STATES, torch.ones(3, 5) > 0, pool))


def test_mean_over_nothing_is_zero():
    assert (mean_over(STATES, torch.zeros(3, 5, dtype=torch.bool)) == 0).all()


@pytest.mark.parametrize("valid", [None, VALID], ids=["whole", "padded"])
def test_gather_of_a_pair_compares_the_means_of_both_texts(valid):
    types = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    real = torch.ones(3, 5) > 0 if valid is None else valid
    found = pool_hidden(PairHead(labels=3), STATES, valid, types)
    for row in range(3):
        u, v = (
            STATES[row, chosen].mean(0) if (chosen := real[row] & (types[row] == text)).any() else torch.zeros(16)
            for text in (0, 1)
        )
        assert_close("formula", found[row], torch.cat((u, v, (u - v).abs(), u * v)))


def test_gather_of_a_pair_without_token_types_is_refused():
    with pytest.raises(InputError, match="token_types is missing"):
        pool_hidden(PairHead(labels=3), STATES, None, None)


def test_gather_pools_for_heads_that_answer_once_and_not_for_others():
    assert_close(
        "same", pool_hidden(SequenceHead(labels=2, pool="last"), STATES, VALID, None), pooled(STATES, VALID, "last")
    )
    assert_close("same", pool_hidden(RegressionHead(), STATES, VALID, None), pooled(STATES, VALID, "mean"))
    for head in (NoHead(), LabelHead(labels=2)):
        assert pool_hidden(head, STATES, VALID, None) is STATES
