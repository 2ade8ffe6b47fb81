"""af.attention and af.nn.Attention: torch's own function with masks, the reference with patterns, the part of a model."""

import copy
import math
import pickle

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import InputError, SpecError
from anyformer.kernels.attention import choice
from anyformer.kernels.dispatch import KernelRequest
from anyformer.nn.attention import self_metadata
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.full import Full
from anyformer.specs import Position
from anyformer.specs.patterns import Pattern
from tests.contract.contracts import model_of
from tests.contract.draw import BASE, FIXED
from tests.nn.alone import ran
from tests.parts.pattern_samples import HEADS, one_of_each, tokens
from tests.parts.samples import random
from tests.tolerances import assert_close

B, T, K = 2, 9, 8
INSIDE = [kind for kind in Position.kinds() if not Position.named(kind).overrides("embed")]


def qkv(queries=T, keys=T, heads=HEADS, kv_heads=2, **more):
    shapes = ((B, queries, heads, K), (B, keys, kv_heads, K), (B, keys, kv_heads, K))
    return [random(*shape, seed=i).requires_grad_(**more) for i, shape in enumerate(shapes)]


def sdpa(q, k, v, **options):
    """torch's own, in our order of dimensions."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options).transpose(1, 2)


def random_mask(*shape, seed=5):
    """About half of the pairs, and each query sees a key."""
    mask = random(*shape, seed=seed) > 0
    mask[..., 0] = True
    return mask


def same(ours, theirs, tensors):
    """Equal values, and equal gradients."""
    assert_close("kernel", ours, theirs)
    weight = random(*ours.shape, seed=8)
    found, want = (torch.autograd.grad((out * weight).sum(), tensors) for out in (ours, theirs))
    for a, b in zip(found, want, strict=True):
        assert_close("kernel", a, b)


@pytest.mark.parametrize(
    "shape", [(T, T), (1, 1, T, T), (B, 1, T, T), (1, HEADS, T, T), (B, HEADS, T, T), (B, 1, 1, T), (T, 1)]
)
def test_attention_with_a_boolean_mask_equals_torchs(shape):
    tensors, mask = qkv(), random_mask(*shape)
    same(af.attention(*tensors, mask=mask), sdpa(*tensors, attn_mask=mask), tensors)


@pytest.mark.parametrize("shape", [(T, T), (B, HEADS, T, T), (1, HEADS, 1, T)])
def test_attention_with_an_additive_mask_equals_torchs_and_learns_it(shape):
    mask = random(*shape, seed=5).requires_grad_()
    tensors = [*qkv(), mask]
    same(af.attention(*tensors[:3], mask=mask), sdpa(*tensors[:3], attn_mask=mask.expand(*shape)), tensors)


@pytest.mark.parametrize("pattern", [None, "causal"])
@pytest.mark.parametrize("kv_heads", [1, 2, HEADS])
def test_attention_plain_and_causal_equals_torchs(pattern, kv_heads):
    tensors = qkv(kv_heads=kv_heads)
    same(af.attention(*tensors, pattern=pattern), sdpa(*tensors, is_causal=pattern == "causal"), tensors)


def test_attention_scale_is_torchs():
    tensors = qkv()
    same(af.attention(*tensors, scale=0.3), sdpa(*tensors, scale=0.3), tensors)


@pytest.mark.parametrize("pattern", one_of_each(), ids=str)
@pytest.mark.parametrize("queries", [29, 5])
def test_attention_with_a_pattern_equals_its_mask(pattern, queries):
    q, k, v = qkv(queries, 29, kv_heads=2)
    here, there = torch.arange(29 - queries, 29), torch.arange(29)
    heads = torch.arange(HEADS)[:, None, None]
    mask = pattern.allows(
        tokens(here[:, None], head=heads)._replace(layer=0), tokens(there[None, :], head=heads)._replace(layer=0)
    )
    mask = torch.as_tensor(mask).expand(HEADS, queries, 29)[None]
    ours = af.attention(q, k, v, pattern=pattern)
    if pattern.repeats:
        # Some keys count several times, which no mask says.
        times = torch.where(
            pattern.is_repeated(tokens(there)), torch.log1p(pattern.extra(tokens(here[:, None])).double()), 0.0
        )
        mask = times.expand(queries, 29).masked_fill(~mask, -math.inf)
    same(ours, af.attention(q, k, v, mask=mask), [q, k, v])


def test_attention_text_and_pattern_are_the_same():
    q, k, v = qkv()
    window = Pattern.named("window")(size=3)
    assert torch.equal(af.attention(q, k, v, pattern="window(3)"), af.attention(q, k, v, pattern=window))


def test_attention_query_that_sees_nothing_gives_zero_and_no_gradient():
    tensors = qkv()
    mask = random_mask(T, T)
    mask[4] = False
    for given in (mask, torch.zeros(T, T, dtype=torch.float64).masked_fill(~mask, -math.inf)):
        out = af.attention(*tensors, mask=given)
        assert not out[:, 4].any()
        (gradient,) = torch.autograd.grad(out.square().sum(), tensors[0])
        assert not gradient[:, 4].any()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("additive", [False, True])
def test_attention_softcap_comes_before_the_mask(additive):
    q, k, v = tensors = qkv()
    mask = random_mask(B, 1, T, T)
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -math.inf)
    score = torch.einsum("bthk,bshk->bhts", q, k.repeat_interleave(HEADS // 2, 2)) / K**0.5
    probs = (2.0 * torch.tanh(score / 2.0) + added).softmax(-1)
    want = torch.einsum("bhts,bshk->bthk", probs, v.repeat_interleave(HEADS // 2, 2))
    same(af.attention(*tensors, mask=added if additive else mask, softcap=2.0), want, tensors)


def test_attention_mask_finer_than_its_queries_is_not_rounded():
    tensors = [t.detach().to(torch.bfloat16) for t in qkv()]
    mask = 1e-3 * random(T, T, seed=5).float()
    want = sdpa(*(t.float() for t in tensors), attn_mask=mask)
    assert_close("bf16", af.attention(*tensors, mask=mask), want)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(T, T), (B, 1, 1, T), (B, HEADS, T, T)])
def test_attention_with_a_mask_on_cuda_equals_the_cpus(shape, dtype):
    mask = random_mask(*shape)
    if shape[-2] == T:
        mask[..., 4, :] = False
    want = af.attention(*(t.detach() for t in qkv()), mask=mask)
    tensors = [t.detach().to("cuda", dtype) for t in qkv()]
    added = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -math.inf)
    for given in (mask, added):
        found = af.attention(*tensors, mask=given.cuda()).cpu()
        assert_close("fused" if dtype == torch.float32 else "bf16-pair", found, want)


def test_attention_dropout_drops_weights_at_every_call():
    q, k, v = qkv()
    torch.manual_seed(0)
    outs = [af.attention(q, k, v, pattern="causal", dropout=0.5) for _ in range(2)]
    assert not torch.equal(*outs)
    torch.manual_seed(0)
    assert torch.equal(af.attention(q, k, v, pattern="causal", dropout=0.5), outs[0])
    # The mean over many draws is the whole.
    many = torch.stack([af.attention(q, k, v, pattern="causal", dropout=0.2) for _ in range(2000)]).mean(0)
    assert (many - af.attention(q, k, v, pattern="causal")).abs().max() < 0.15


def test_attention_mask_is_served_only_by_kernels_that_read_it():
    request = KernelRequest("cuda", torch.bfloat16, "prefill", "pattern", Full(), Softmax(), masked=True)
    assert choice(request).kernel.name == "sdpa"
    wide = KernelRequest("cuda", torch.bfloat16, "prefill", "pattern", Full(), Softmax(), masked=True, softcap=True)
    assert choice(wide).kernel.name == "reference"


@pytest.mark.parametrize(
    ("pattern", "masked"),
    [(None, False), ("causal", False), ("window(3)", False), (None, True), ("causal & strided(3)", False)],
)
def test_attention_function_compiles_as_one_graph(pattern, masked):
    tensors = qkv()
    mask = random_mask(T, T) if masked else None

    def run(q, k, v, mask):
        return af.attention(q, k, v, pattern=pattern, mask=mask)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    same(compiled(*tensors, mask), run(*tensors, mask), tensors)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"pattern": "windw(3)"}, SpecError, "did you mean 'window'"),
        ({"pattern": "window(0)"}, SpecError, "pattern.size"),
        ({"pattern": "causal", "mask": torch.ones(T, T).bool()}, InputError, "give one of them"),
        ({"mask": torch.ones(T, T).long()}, InputError, r"write mask.bool\(\)"),
        ({"mask": torch.ones(B, T).bool()}, InputError, r"mask\[:, None, None, :\]"),
        ({"mask": torch.ones(B, T, T).bool()}, InputError, r"expected \(queries, keys\) = \(9, 9\) or"),
        ({"mask": "causal"}, InputError, "goes into pattern="),
        ({"k": random(B, T, 3, K), "v": random(B, T, 3, K)}, InputError, "3 key heads do not divide 4 query heads"),
        ({"k": random(B, T, 2, K)[0]}, InputError, r"got q \(2, 9, 4, 8\), k \(9, 2, 8\)"),
        ({"v": random(B, T, 2, K).float()}, InputError, "one dtype, got torch.float32, torch.float64"),
        ({"q": [1.0]}, TypeError, "q: expected a tensor, got list"),
        ({"softcap": 0.0}, InputError, "softcap: 0.0 is not above 0"),
        ({"dropout": 1.5}, InputError, "dropout: 1.5 is not from 0"),
        ({"is_causal": True}, TypeError, 'pattern="causal" here'),
        ({"attn_mask": None}, TypeError, "is mask here"),
        ({"sofcap": 1.0}, TypeError, "did you mean 'softcap'"),
        ({"q": random(B, T + 1, HEADS, K), "pattern": "causal"}, InputError, "there can't be more of them"),
    ],
)  # fmt: skip
def test_attention_misuse_says_what_to_do(change, error, text):
    q, k, v = qkv()
    with pytest.raises(error, match=text):
        af.attention(**({"q": q, "k": k, "v": v} | change))


def test_attention_misuse_is_told_at_once():
    q, k, v = qkv()
    with pytest.raises(InputError) as caught:
        af.attention(q, k, v.float(), mask=torch.ones(T, T).long(), softcap=-1.0, dropout=2.0)
    assert len(str(caught.value).splitlines()) == 5


def part(**options):
    torch.manual_seed(0)
    made = af.nn.Attention(**({"width": 24, "heads": 6, "kv_heads": 3, "head_dim": 4} | options), dtype=torch.float64)
    return made.eval()


@pytest.mark.parametrize("pattern", ["causal", "full"])
@pytest.mark.parametrize("position", INSIDE)
def test_attention_part_of_a_position_equals_the_models(position, pattern):
    node = {"kind": position} | FIXED.get(("position", position), {})
    topology = "decoder" if pattern == "causal" else "encoder"
    spec = af.spec(BASE, {"position": node, "topology": topology, "attention.qk_norm": True, "attention.bias": "qv"})
    model, outs = model_of(spec), {}
    name = f"{topology}.blocks.1.attention.body"
    hook = model.get_submodule(name).register_forward_hook(lambda m, args, out: outs.update(x=args[0], out=out))
    ran(spec, model)
    hook.remove()
    made = part(pattern=pattern, position=node, qk_norm=True, bias="qv", context=64)
    state = dict(model.get_submodule(name).state_dict())
    state |= {
        f"position.{k.split('.', 1)[1]}": v
        for k, v in model.get_submodule(f"{topology}.positions").state_dict().items()
    }
    made.body.load_state_dict(state)
    assert_close("kernel", made(outs["x"]), outs["out"])
    # A position later, a relative scheme gives the same.
    shifted = made(outs["x"], positions=torch.arange(outs["x"].shape[1]) + 11)
    if made.layer.layer.position.relative:
        assert_close("promise", shifted, outs["out"])


def by_hand(made, x, mask=None, memory=None):
    """The module from its weights and torch's function."""
    body, source = made.body, x if memory is None else memory
    q, k, v = (m(t).unflatten(-1, (-1, 4)) for m, t in ((body.q, x), (body.k, source), (body.v, source)))
    return body.o(sdpa(q, k, v, attn_mask=mask).flatten(2))


@pytest.mark.parametrize("shape", [(T, T), (B, 1, T, T), (B, 6, T, T)])
@pytest.mark.parametrize("additive", [False, True])
def test_attention_part_with_a_mask_equals_projections_and_torchs_function(shape, additive):
    made, x, mask = part(bias=True), random(B, T, 24), random_mask(*shape)
    mask = torch.zeros(shape, dtype=torch.float64).masked_fill(~mask, -math.inf) if additive else mask
    tensors = list(made.parameters())
    with torch.no_grad():
        made.body.k.bias.normal_()
    found, want = (torch.autograd.grad(out.square().sum(), tensors) for out in (made(x, mask), by_hand(made, x, mask)))
    assert_close("kernel", made(x, mask), by_hand(made, x, mask))
    for (name, _), a, b in zip(made.named_parameters(), found, want, strict=True):
        # A bias on all keys moves no weight: its gradient is what rounding leaves.
        if name != "body.k.bias":
            assert_close("kernel", a, b)


@pytest.mark.parametrize("position", [kind for kind in INSIDE if Position.named(kind)().biases()])
def test_attention_part_additive_mask_is_added_beside_a_position_bias(position):
    made, x, mask = part(position=position), random(B, T, 24), random_mask(B, 1, T, T)
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -math.inf)
    assert_close("kernel", made(x, added), made(x, mask))
    assert not torch.allclose(made(x, mask), part()(x, mask))


@pytest.mark.parametrize(("dtype", "kernel"), [(torch.float32, "reference"), (torch.bfloat16, "sdpa")])
def test_attention_part_mask_finer_than_its_tokens_is_not_rounded(dtype, kernel):
    made, x = (
        af.nn.Attention(24, 6, device="meta", dtype=torch.bfloat16),
        torch.empty(B, T, 24, device="meta").bfloat16(),
    )
    metadata = self_metadata("here", made.body, Full(), x, torch.empty(T, T, device="meta", dtype=dtype))
    assert metadata.kernel.name == kernel


@pytest.mark.parametrize("none", ["none", {"kind": "none"}, Position.named("none")()], ids=str)
def test_attention_part_to_a_memory_without_a_position_in_any_spelling(none):
    made, x, memory = part(cross=True, position=none), random(B, T, 24), random(B, 5, 24, seed=1)
    assert_close("kernel", made(x, memory=memory), by_hand(made, x, memory=memory))


def test_attention_part_reads_a_memory():
    made, x, memory = part(cross=True), random(B, T, 24), random(B, 5, 24, seed=1)
    assert_close("kernel", made(x, memory=memory), by_hand(made, x, memory=memory))
    real = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]])
    want = by_hand(made, x, real[:, None, None].bool(), memory)
    assert_close("kernel", made(x, memory=memory, memory_mask=real), want)
    mask = random_mask(T, 5)
    assert_close("kernel", made(x, mask, memory=memory), by_hand(made, x, mask, memory))
    both = mask & real[:, None, None].bool()
    assert_close("kernel", made(x, mask, memory=memory, memory_mask=real), by_hand(made, x, both, memory))


def test_attention_part_pattern_of_a_call_stands_for_its_own():
    made, x = part(pattern="causal"), random(B, T, 24)
    near = made(x, pattern="window(2)")
    assert_close("kernel", near, by_hand(made, x, torch.ones(T, T).tril().triu(-1).bool()))
    assert_close("kernel", made(x), by_hand(made, x, torch.ones(T, T).tril().bool()))


def test_attention_part_padding_and_packing_equal_documents_alone():
    made, one, two = part(pattern="causal", position="rope"), random(1, 4, 24), random(1, 6, 24, seed=1)
    packed = made(torch.cat((one, two), 1), segments=torch.tensor([[3] * 4 + [7] * 6]))
    assert_close("promise", packed, torch.cat((made(one), made(two)), 1))
    left = made(torch.cat((random(1, 3, 24, seed=4), one), 1), attention_mask=torch.tensor([[0] * 3 + [1] * 4]))
    assert_close("promise", left[:, 3:], made(one))


def test_attention_part_global_projections_follow_marks():
    options = {"pattern": "symmetric_window(1) | global_tokens", "global_projections": True}
    made, x = part(**options), random(B, T, 24)
    marks = torch.zeros(B, T).long()
    plain = made(x, global_mask=marks)
    marks[:, 4] = 1
    moved = made(x, global_mask=marks)
    assert not torch.allclose(moved[:, 4], plain[:, 4])
    # The far end sees the marked token now.
    assert not torch.allclose(moved[:, 0], plain[:, 0])


@pytest.mark.parametrize("options", [
    {"pattern": "causal", "position": "rope"}, {"pattern": "window(3)", "position": "alibi"}, {"position": "t5"},
    {"softcap": 5.0, "position": "shaw"}, {"mixer": "relu"}, {"position": "xl", "pattern": "causal"}])  # fmt: skip
def test_attention_part_compiles_as_one_graph_with_its_gradient(options):
    made, x = part(**options).train(), random(B, T, 24)
    tensors = list(made.parameters())
    want = torch.autograd.grad(made(x).square().sum(), tensors)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(compiled(x).square().sum(), tensors), want, strict=True):
        assert a.isfinite().all()
        assert_close("kernel", a, b)


def test_attention_part_copied_pickled_and_read_back_is_the_same():
    made, x = part(pattern="causal", position="t5", qk_norm=True), random(B, T, 24)
    want = made(x)
    other = part(pattern="causal", position="t5", qk_norm=True)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.load_state_dict(made.state_dict())
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), other):
        assert torch.equal(twin(x), want)


def test_attention_part_starts_as_linear_maps_do():
    torch.manual_seed(0)
    made = af.nn.Attention(256, 8, qk_norm=True, bias=True)
    for name, p in made.named_parameters():
        if p.dim() == 2:
            assert float(p.detach().std()) == pytest.approx(0.9866 * (2 / sum(p.shape)) ** 0.5, rel=0.02), name
        else:
            assert torch.equal(p, torch.full_like(p, float("norm" in name))), name


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: part(kv_heads=4), SpecError, "attention.kv_heads: 4 does not divide heads=6"),
        (lambda: part(position="learned"), InputError, "PositionEmbedding"),
        (lambda: part(position={"kind": "rope", "thta": 1.0}), SpecError, "position.thta: is unknown; did you mean 'theta'"),
        (lambda: part(bias="qz"), SpecError, "attention.bias"),
        (lambda: part(scale="1/sqrt(hed)"), SpecError, "attention.scale"),
        (lambda: part(cross=True, pattern="causal"), InputError, "sees all of it"),
        (lambda: part(cross=True)(random(B, T, 24)), InputError, "memory: is missing"),
        (lambda: part(cross=True)(random(B, T, 24), memory=random(B, 3, 23)), InputError, r"memory: expected \(batch, tokens, 24\)"),
        (lambda: part()(random(B, T, 24), memory=random(B, T, 24)), InputError, "cross=True"),
        (lambda: part()(random(B, T, 24).long()), InputError, "floating-point"),
        (lambda: part()(random(B, T, 25)), InputError, r"expected \(batch, tokens, 24\), got \(2, 9, 25\)"),
        (lambda: part(mixer="linear", position="rope")(random(B, T, 24), torch.ones(T, T).bool()), InputError, "follows patterns only"),
        (lambda: af.nn.Attention(8, 2, dtype=torch.int8), InputError, "can't hold weights"),
    ],
)  # fmt: skip
def test_attention_part_misuse_says_what_to_do(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pattern": "windw(3)", "position": "rop", "kv_heads": 4}, ("attention.pattern: 'windw'", "position.kind: 'rop'", "attention.kv_heads: 4")),
        ({"pattern": "window(0)", "position": {"kind": "rope", "theta": -1.0}}, ("attention.pattern.size: 0", "position.theta: -1.0")),
        ({"pattern": "windw(3)", "position": "learned"}, ("attention.pattern: 'windw'", "position: 'learned' is added to embeddings")),
        ({"pattern": "causal", "cross": True, "head_dim": 0}, ("pattern: attention to a memory sees all of it", "attention.head_dim: 0")),
        ({"pattern": "causal & windw(3)", "bias": "qz", "global_projections": True}, ("attention.pattern: 'windw'", "attention.bias: 'qz'")),
    ],
)  # fmt: skip
def test_attention_part_misuse_is_told_at_once(options, told):
    with pytest.raises(SpecError) as caught:
        part(**options)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == len(told)
    for text in told:
        assert any(line.strip().startswith(text) for line in lines), (text, lines)


def test_block_misuse_is_told_at_once():
    with pytest.raises(SpecError) as caught:
        af.nn.Block(24, 5, pattern="windw(3)", attention={"pattern": "full"}, position="learned", ffn="swigul")
    assert len(str(caught.value).splitlines()) == 6
