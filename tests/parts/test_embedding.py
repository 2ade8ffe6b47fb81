"""The three ways in: tokens, patches, a series."""

import pytest
import torch
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.parts.embedding import PatchEmbedding, SeriesEmbedding, TokenEmbedding, embedding
from tests.parts.samples import random, randomised, small_spec
from tests.tolerances import assert_close

IDS = torch.tensor([[3, 0, 30], [7, 7, 1]])


def made(embed):
    spec = small_spec({"embed": embed, "topology": "encoder"} if embed["kind"] == "patches" else {"embed": embed})
    return randomised(embedding(spec))


@pytest.mark.parametrize(("scale", "factor"), [(1.0, 1.0), ("sqrt(width)", 4.0), (2.5, 2.5)])
def test_token_embedding_is_the_scaled_row_plus_the_row_of_its_type(scale, factor):
    module = made({"kind": "tokens", "scale": scale, "token_types": 2})
    types = torch.tensor([[0, 1, 1], [1, 0, 0]])
    rows, kinds = module.tokens.weight[IDS] * factor, module.types.weight
    assert_close("formula", module(IDS, types), rows + kinds[types])
    assert_close("formula", module(IDS, None), rows + kinds[0])


def test_token_embedding_narrow_table_is_projected_before_types_are_added():
    module = made({"kind": "tokens", "width": 6, "project_bias": True, "token_types": 2, "scale": 3.0})
    wide = 3.0 * module.tokens.weight[IDS] @ module.project.weight.T + module.project.bias
    assert tuple(module.tokens.weight.shape) == (31, 6)
    assert_close("formula", module(IDS, None), wide + module.types.weight[0])


def test_token_embedding_narrow_table_projected_last_leaves_that_to_the_stack():
    module = made({"kind": "tokens", "width": 6, "project": "last", "token_types": 2})
    assert module.project is None
    assert_close("formula", module(IDS, None), module.tokens.weight[IDS] + module.types.weight[0])


@pytest.mark.parametrize("rounded", [False, True])
def test_token_embedding_scale_in_bf16_is_rounded_first_only_if_asked(rounded):
    # sqrt(3072) is 55.4256, and 55.5 in bf16: the example that Gemma made known.
    spec = small_spec({"embed.scale": 55.4256, "embed.round_scale": rounded})
    module = randomised(TokenEmbedding(spec, spec.embed)).bfloat16()
    rows = module.tokens.weight[IDS].double()
    factor = 55.5 if rounded else 55.4256
    assert torch.equal(module(IDS, None), (rows * factor).bfloat16())
    assert not torch.equal((rows * 55.5).bfloat16(), (rows * 55.4256).bfloat16())


@pytest.mark.parametrize("class_token", [True, False])
def test_patch_embedding_equals_a_convolution_with_the_stride_of_a_patch(class_token):
    module = made({"kind": "patches", "image": 12, "patch": 4, "channels": 3, "class_token": class_token})
    assert isinstance(module, PatchEmbedding)
    pixels = random(2, 3, 12, 12, seed=5)
    kernel = module.patches.weight.reshape(16, 3, 4, 4)
    expected = F.conv2d(pixels, kernel, module.patches.bias, stride=4).flatten(2).transpose(1, 2)
    if class_token:
        expected = torch.cat((module.class_token.expand(2, 1, 16), expected), 1)
    assert_close("formula", module(pixels), expected)


@pytest.mark.parametrize("shape", [(2, 3, 12, 8), (2, 1, 12, 12), (3, 12, 12)])
def test_patch_embedding_of_another_image_is_refused(shape):
    module = made({"kind": "patches", "image": 12, "patch": 4})
    with pytest.raises(InputError, match=r"pixel_values: expected \(B, 3, 12, 12\)"):
        module(torch.zeros(shape, dtype=torch.float64))


def test_series_embedding_is_a_linear_map_of_each_step():
    module, values = made({"kind": "series", "channels": 3}), random(2, 5, 3, seed=5)
    assert isinstance(module, SeriesEmbedding)
    assert_close("formula", module(values), values @ module.series.weight.T + module.series.bias)


@pytest.mark.parametrize("shape", [(2, 5, 4), (5, 3)])
def test_series_embedding_of_other_channels_is_refused(shape):
    with pytest.raises(InputError, match=r"values: expected \(B, T, 3\)"):
        made({"kind": "series", "channels": 3})(torch.zeros(shape, dtype=torch.float64))
