"""The attention module: projections, clipping, norms around the rotation, scale, temperature, cache."""

import math

import pytest
import torch

from anyformer.kernels.attention import reference
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.parts.attention import Attention, temperature
from anyformer.parts.attention_metadata import AttentionMetadata, RotaryTables
from anyformer.parts.norms.layernorm import LayerNorm
from anyformer.parts.norms.rmsnorm import RMSNorm
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.full import Full
from anyformer.parts.positions.none import NoPosition
from anyformer.parts.positions.rope import Rope
from anyformer.parts.positions.shaw import Shaw
from anyformer.parts.static_cache import StaticKVCache
from anyformer.specs.cache_policy import LayerCacheSpec
from anyformer.specs.layer import Attention as AttentionSpec
from anyformer.specs.layer import HeadNorm, Temperature
from anyformer.specs.patterns import Tokens
from tests.parts.samples import dims, held, random, randomised
from tests.tolerances import assert_close, difference

SIZES = dims(kv_heads=2)
POS = torch.arange(3, 10)[None]
X = random(2, 7, 12, seed=9)


def module_and_scene(position=None, **fields):
    """An attention of four heads over two key heads, and the scene of seven tokens that start at position 3."""
    position = position or NoPosition()
    module = randomised(Attention(AttentionSpec(heads=4, kv_heads=2, **fields), SIZES, position, layer=0))
    own = {} if position.per_layer else held(position, SIZES)
    turn = RotaryTables(POS, None, position.angles(own, POS, None, X))
    here = Tokens(POS)
    attn_mask = AttentionMask(Causal(), here, here, plain=True, shape="causal")
    scene = AttentionMetadata(mask=attn_mask, kernel=reference.KERNEL, own=own, q_rope=turn, k_rope=turn)
    return module, scene


def apply_rotary(x):
    return Rope().rotate(x, Rope().angles(held(Rope(), SIZES), POS, None, X))


def split(module, name, x):
    """A projection by its definition, in heads."""
    linear = getattr(module, name)
    y = x @ linear.weight.T
    return (y if linear.bias is None else y + linear.bias).reshape(*x.shape[:-1], -1, 8)


def mixed(module, q, k, v, scale=8**-0.5):
    """Causal softmax attention by its definition, and the projection back."""
    k, v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
    score = torch.einsum("bthk,bshk->bhts", q, k) * scale
    score = score.masked_fill(torch.ones(7, 7).triu(1) > 0, -math.inf)
    out = torch.einsum("bhts,bshk->bthk", score.softmax(-1), v).reshape(2, 7, 32) @ module.o.weight.T
    return out if module.o.bias is None else out + module.o.bias


@pytest.mark.parametrize("bias", ["", "qkv", "o", "qkvo", "v"])
def test_attention_with_biases_on_chosen_projections_equals_the_formula(bias):
    module, scene = module_and_scene(bias=bias)
    assert "".join(n for n in "qkvo" if getattr(module, n).bias is not None) == "".join(sorted(bias, key="qkvo".index))
    assert_close("formula", module(X, scene), mixed(module, *(split(module, n, X) for n in "qkv")))


@pytest.mark.parametrize("clip", [0.3, 1.0])
def test_attention_clip_cuts_projected_queries_keys_and_values(clip):
    module, scene = module_and_scene(clip_qkv=clip, bias="qkv")
    q, k, v = (split(module, n, X) for n in "qkv")
    assert all(t.abs().max() > clip for t in (q, k, v))
    assert_close("formula", module(X, scene), mixed(module, *(t.clamp(-clip, clip) for t in (q, k, v))))


@pytest.mark.parametrize("leaf", [RMSNorm(), RMSNorm(gain="none"), LayerNorm()], ids=["rms", "weightless", "layer"])
@pytest.mark.parametrize("scope", ["head", "heads", "whole"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_attention_qk_norm_stands_on_its_side_of_the_rotation(when, scope, leaf):
    module, scene = module_and_scene(Rope(), qk_norm=HeadNorm(leaf=leaf, scope=scope, when=when))
    q, k, v = (split(module, n, X) for n in "qkv")
    order = [lambda n, x: n(x), lambda n, x: apply_rotary(x)]
    for step in order if when == "before" else order[::-1]:
        q, k = step(module.q_norm, q), step(module.k_norm, k)
    assert_close("formula", module(X, scene), mixed(module, q, k, v))


def test_attention_qk_norm_before_and_after_the_rotation_differ_unless_the_gain_is_even():
    found = {}
    for when in ("before", "after"):
        module, scene = module_and_scene(Rope(), qk_norm=HeadNorm(when=when))
        found[when, "random"] = module(X, scene)
        with torch.no_grad():
            module.q_norm.weight.fill_(0.7)
            module.k_norm.weight.fill_(1.3)
        found[when, "even"] = module(X, scene)
    # A rotation keeps the length of a vector, so a norm with one gain for all dimensions does not see it.
    assert_close("formula", found["before", "even"], found["after", "even"])
    assert difference(found["before", "random"], found["after", "random"]) > 1e-3


@pytest.mark.parametrize("scope", ["head", "heads", "whole"])
def test_attention_v_norm_norms_values_only(scope):
    module, scene = module_and_scene(v_norm=HeadNorm(scope=scope))
    assert module.q_norm is None
    assert module.k_norm is None
    q, k, v = (split(module, n, X) for n in "qkv")
    assert_close("formula", module(X, scene), mixed(module, q, k, module.v_norm(v)))


def test_attention_rope_on_values_rotates_them_after_their_norm():
    module, scene = module_and_scene(Rope(on_values=True), v_norm=HeadNorm())
    q, k, v = (split(module, n, X) for n in "qkv")
    q, k, v = (apply_rotary(t) for t in (q, k, module.v_norm(v)))
    assert_close("formula", module(X, scene), mixed(module, q, k, v))


@pytest.mark.parametrize(("scale", "value"), [("1/head_dim", 1 / 8), (1.0, 1.0), ("1/sqrt(144)", 1 / 12)])
def test_attention_scale_multiplies_the_scores(scale, value):
    module, scene = module_and_scene(scale=scale)
    assert_close("formula", module(X, scene), mixed(module, *(split(module, n, X) for n in "qkv"), scale=value))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("kind", ["log1p", "log_n"])
def test_attention_temperature_multiplies_queries_by_their_position(kind, offset):
    module, scene = module_and_scene(temperature=Temperature(kind=kind, length=6, strength=0.7, offset=offset))
    places = [int(p) + offset for p in POS[0]]
    if kind == "log1p":
        factor = [1 + 0.7 * math.log(1 + place // 6) for place in places]
    else:
        factor = [math.log(place, 6) if place > 6 else 1.0 for place in places]
    assert factor[0] == factor[1] == 1.0 < factor[-1]
    q, k, v = (split(module, n, X) for n in "qkv")
    expected = mixed(module, q * torch.tensor(factor, dtype=torch.float64)[:, None, None], k, v)
    assert_close("formula", module(X, scene), expected)


def test_temperature_in_bf16_counts_positions_that_bf16_cannot_hold():
    place = torch.tensor([[8190, 8191, 8192, 70001]])
    factor = temperature(Temperature(), place, torch.zeros((), dtype=torch.bfloat16))
    exact = [1 + 0.1 * math.log(1 + (p + 1) // 8192) for p in place[0].tolist()]
    assert factor.dtype == torch.bfloat16
    assert factor.flatten().tolist() == torch.tensor(exact).bfloat16().tolist()
    assert factor.shape == (1, 4, 1, 1)


def test_attention_softcap_and_position_bias_reach_the_scores():
    leaf = Shaw(clip=2, on_values=False)
    module, scene = module_and_scene(leaf, softcap=0.8)
    q, k, v = (split(module, n, X) for n in "qkv")
    k, v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
    table = module.position.keys
    gap = (torch.arange(7)[None, :] - torch.arange(7)[:, None]).clamp(-2, 2) + 2
    score = (torch.einsum("bthk,bshk->bhts", q, k) + torch.einsum("bthk,tsk->bhts", q, table[gap])) * 8**-0.5
    score = (0.8 * (score / 0.8).tanh()).masked_fill(torch.ones(7, 7).triu(1) > 0, -math.inf)
    expected = torch.einsum("bhts,bshk->bthk", score.softmax(-1), v).reshape(2, 7, 32) @ module.o.weight.T
    assert_close("formula", module(X, scene), expected)


def test_attention_dropout_acts_in_training_only():
    module, scene = module_and_scene(dropout=0.5)
    plain, _ = module_and_scene()
    assert torch.equal(module.eval()(X, scene), plain(X, scene))
    torch.manual_seed(0)
    assert difference(module.train()(X, scene), plain(X, scene)) > 1e-2


class Recorder:
    """Stands where a cache stands, and notes what it is given."""

    def update(self, layer, *new, paged=False):
        self.kept = (layer, *new)
        return *new, None, None


def test_attention_caches_keys_normed_and_rotated_and_values_as_they_are_mixed():
    module, scene = module_and_scene(Rope(on_values=True), qk_norm=HeadNorm(), v_norm=HeadNorm())
    without = module(X, scene)
    scene.cache = Recorder()
    assert_close("same", module(X, scene), without)
    layer, kept_k, kept_v = scene.cache.kept
    assert layer == 0
    assert_close("formula", kept_k, apply_rotary(module.k_norm(split(module, "k", X))))
    assert_close("formula", kept_v, apply_rotary(module.v_norm(split(module, "v", X))))


def test_attention_cross_reads_keys_and_values_of_the_memory_once():
    spec = AttentionSpec(heads=4, kv_heads=2)
    module = randomised(Attention(spec, SIZES, NoPosition(), layer=0, cross=True))
    memory = random(2, 5, 12, seed=4)
    cache = StaticKVCache(
        (LayerCacheSpec(streams=((2, 8), (2, 8))),), batch=2, length=9, device=X.device, dtype=X.dtype
    )
    attn_mask = AttentionMask(Full(), Tokens(POS), Tokens(torch.arange(5)[None]), plain=True, shape="none")
    scene = AttentionMetadata(mask=attn_mask, kernel=reference.KERNEL, cache=cache)
    q, k, v = split(module, "q", X), split(module, "k", memory), split(module, "v", memory)
    weights = (torch.einsum("bthk,bshk->bhts", q, k.repeat_interleave(2, 2)) * 8**-0.5).softmax(-1)
    expected = torch.einsum("bhts,bshk->bthk", weights, v.repeat_interleave(2, 2)).reshape(2, 7, 32) @ module.o.weight.T
    first = module(X, scene, memory)
    assert_close("formula", first, expected)
    assert len(cache.cross) == 1
    assert_close("same", module(X, scene), first)


@pytest.mark.parametrize(
    ("kv_heads", "words"),
    [
        (4, "MHA, 4 heads of 8, causal, none"),
        (2, "GQA, 4 heads of 8, 2 kv, causal, none"),
        (1, "MQA, 4 heads of 8, 1 kv, causal, none"),
    ],
)
def test_attention_prints_its_kind(kv_heads, words):
    spec = AttentionSpec(heads=4, kv_heads=kv_heads)
    assert Attention(spec, dims(kv_heads=kv_heads), NoPosition(), layer=0).extra_repr() == words
