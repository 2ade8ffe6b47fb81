"""flex_attention: what it refuses, its block masks and score functions on any device, and itself on CUDA."""

import dataclasses
import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

import anyformer as af
from anyformer.kernels import attention
from anyformer.kernels.attention import flex, flex_blocks, reference
from anyformer.kernels.attention.score_bias import score_bias
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs, KernelRequest
from anyformer.model import stack
from anyformer.parts.mixers.relu import Relu
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.full import Full
from anyformer.parts.positions.shaw import Shaw
from anyformer.parts.positions.t5 import T5Bias, thresholds
from anyformer.specs.axes import ScoreBias
from anyformer.specs.patterns import Tokens, parse
from tests.contract.draw import BASE
from tests.tolerances import assert_close, assert_sum_close

HEADS, GROUPS, DIM, SCALE = 4, 2, 16, 0.25
ASKED = KernelRequest(
    device="cuda", dtype=torch.bfloat16, phase="train", shape="pattern", pattern=Causal(), mixer=Softmax(), plain=False
)
PATTERNS = [
    "causal & window(50)", "symmetric_window(40)", "causal & (window(30) | strided(30))", "causal | prefix(20)",
    "causal & (window(50) | global_tokens(4))", "block_sparse(16, 3, 4, 1)", "causal & chunked(48)",
    "symmetric_window(20) | random_blocks(16, 2)", "symmetric_window(9) | bigbird_random(16, 2, 4, 4096)",
    "causal & (window(30) | random_tokens(3, 0, True))",
]  # fmt: skip
ROWS = ("alone", "packed", "padded")
gpu = pytest.mark.cuda


def pattern(text):
    return parse(text, lambda leaf, fields: leaf(**fields))


def mask_of(text, tokens, rows="alone", device="cpu"):
    """Two rows of tokens: alike, or packed with documents of other lengths, or padded on the left."""
    at = torch.arange(tokens)[None]
    pos, document, valid, length = at, 0, None, torch.full((1, 1), tokens)
    if rows == "packed":
        document = (at >= torch.tensor([[tokens // 3], [tokens // 2]])).long()
        begin = torch.searchsorted(document, document)
        pos, length = at - begin, torch.searchsorted(document, document, right=True) - begin
        document, length = document.to(device), length.to(device)
    if rows == "padded":
        valid = at >= torch.tensor([[0], [tokens // 4]])
        pos, length = (valid.long().cumsum(-1) - 1).clamp(min=0), valid.sum(-1, keepdim=True)
        valid = valid.to(device)
    marked = ((at % 37 == 5) & (pos >= 0)).to(device)
    here = Tokens(pos.to(device), document, length.to(device), marked=marked)
    return AttentionMask(pattern(text), here, here, valid, plain=rows == "alone", heads=HEADS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "cpu"}, "run on cuda, not cpu"),
        ({"phase": "decode"}, "many queries"),
        ({"dtype": torch.float64}, "float32 at most, not float64"),
        ({"mixer": Relu()}, "not relu"),
        ({"dropout": True}, "no dropout"),
        ({"reads_probs": True}, "does not expose the weights"),
        ({"bias": True, "products": True}, "further vectors"),
        ({"shape": "causal"}, "faster in torch's SDPA"),
        ({"shape": "none"}, "faster in torch's SDPA"),
        ({"bias": True, "learned_bias": True, "deterministic": True}, "in any order"),
    ],
)
def test_flex_request_that_it_cannot_serve_is_refused_with_the_reason(change, words):
    reason = flex.why_not(KernelRequest(**{**vars(ASKED), **change}))
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"phase": "prefill"},
        {"dtype": torch.float32},
        {"shape": "causal", "bias": True},
        {"shape": "causal", "softcap": True},
        {"shape": "none", "mixer": Softmax(sinks=True)},
        {"bias": True, "learned_bias": True},
        {"bias": True, "deterministic": True},
    ],
)
def test_flex_request_with_pattern_bias_cap_or_sinks_is_served(change):
    assert flex.why_not(KernelRequest(**{**vars(ASKED), **change})) is None


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("text", PATTERNS)
def test_flex_mask_of_one_pair_equals_the_dense_mask(text, rows):
    attn_mask = mask_of(text, 100, rows)
    found = create_mask(flex_blocks.mask_mod(attn_mask), 2, HEADS, 100, 100, device="cpu")
    assert torch.equal(found, attn_mask.mask().expand(2, HEADS, 100, 100))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("text", PATTERNS)
def test_flex_tiles_are_those_that_torch_derives_from_every_pair(text, rows, monkeypatch):
    tokens = 300
    monkeypatch.setattr(flex_blocks, "PAIRS", 128 * tokens * 2 * HEADS)
    attn_mask = mask_of(text, tokens, rows)
    found = flex_blocks.made(attn_mask)
    batch, heads = attn_mask.mask().shape[:2]
    dense = attn_mask.mask()
    wanted = create_block_mask(lambda b, h, q, k: dense[b, h, q, k], batch, heads, tokens, tokens, device="cpu")
    assert found.shape == wanted.shape
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert torch.equal(found.to_dense(), wanted.to_dense())


def test_flex_tiles_of_a_window_are_skipped_outside_it_and_whole_inside():
    blocks = flex_blocks.made(mask_of("causal & window(384)", 1024))
    seen, whole = blocks.to_dense()[0, 0], blocks.full_kv_num_blocks[0, 0]
    assert seen.sum(-1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4]
    # Between the diagonal and the far edge nothing needs a test.
    assert whole.tolist() == [0, 1, 2, 2, 2, 2, 2, 2]


def test_flex_block_mask_of_plain_rows_is_kept_by_what_it_depends_on():
    first = flex_blocks.block_mask(mask_of("causal & window(50)", 200))
    assert flex_blocks.block_mask(mask_of("causal & window(50)", 200)) is first
    assert flex_blocks.block_mask(mask_of("causal & window(51)", 200)) is not first
    assert flex_blocks.block_mask(mask_of("causal & window(50)", 201)) is not first


def test_flex_block_mask_of_packed_rows_is_made_once_for_each_mask():
    attn_mask = mask_of("causal", 200, "packed")
    first = flex_blocks.block_mask(attn_mask)
    assert flex_blocks.block_mask(attn_mask) is first
    assert flex_blocks.block_mask(mask_of("causal", 200, "packed")) is not first


def test_flex_block_mask_of_a_layer_with_draws_of_its_own_is_not_anothers():
    one, other = (mask_of("symmetric_window(9) | random_blocks(16, 2)", 200) for _ in range(2))
    other.layer = 1
    masks = [flex_blocks.block_mask(attn_mask) for attn_mask in (one, other)]
    assert masks[0] is not masks[1]
    assert not torch.equal(*(create_mask(m.mask_mod, 1, HEADS, 200, 200, device="cpu") for m in masks))


def t5_terms(table, *, both=False):
    start = torch.tensor(thresholds(16 if both else 32, 128), dtype=torch.float64, device=table.device)
    after = torch.tensor([16.0 if both else 0.0], device=table.device)
    return T5Bias().scores({"start": start, "after": after, "table": table}, table, table, None, SCALE)


def terms_of(kind, leaves, attn_mask):
    """Terms of one kind on given leaves."""
    scores, q = None, leaves["q"]
    if kind == "alibi":
        scores = ScoreBias(slope_H=torch.tensor([-0.5, -0.25, -0.1, -0.01], device=q.device, dtype=q.dtype))
    if "t5" in kind:
        scores = t5_terms(leaves["table"], both=not attn_mask.pattern.causal)
    if kind == "shaw":
        scores = Shaw(clip=16, on_values=False).scores({"keys": leaves["keys"]}, q, leaves["k"], None, SCALE)
    if kind == "column":
        scores = ScoreBias(column_BHS=leaves["column"])
    sinks = "sink" in leaves
    own = {"sink_H": leaves["sink"]} if sinks else {}
    return AttentionArgs(SCALE, Softmax(sinks=sinks), own, attn_mask, scores, None, 5.0 if "cap" in kind else None)


def leaves_of(kind, tokens, device="cpu"):
    dice = torch.Generator().manual_seed(tokens)

    def drawn(*shape):
        return torch.randn(*shape, generator=dice, dtype=torch.float64).to(device)

    leaves = {"q": drawn(2, tokens, HEADS, DIM), "k": drawn(2, tokens, GROUPS, DIM), "v": drawn(2, tokens, GROUPS, DIM)}
    if "t5" in kind:
        leaves["table"] = drawn(32, HEADS)
    if kind == "shaw":
        leaves["keys"] = drawn(33, DIM)
    if kind == "column":
        leaves["column"] = drawn(2, HEADS, tokens)
    if "sinks" in kind:
        leaves["sink"] = drawn(HEADS)
    return leaves


KINDS = ("alibi", "t5", "shaw", "column", "cap", "t5 cap")


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", KINDS)
def test_flex_score_of_one_pair_equals_the_dense_sum(kind, rows):
    tokens = 60
    attn_mask = mask_of("causal", tokens, rows)
    terms = terms_of(kind, leaves_of(kind, tokens), attn_mask)
    places = torch.meshgrid(*(torch.arange(n) for n in (2, HEADS, tokens, tokens)), indexing="ij")
    score = torch.randn(2, HEADS, tokens, tokens)
    changed = flex.score_mod(terms.scores, attn_mask, terms.softcap, short=False)
    wanted = score if terms.scores is None else score + score_bias(terms.scores, terms.mask.where).float()
    if terms.softcap is not None:
        wanted = terms.softcap * torch.tanh(wanted / terms.softcap)
    assert_close("single", changed(score, *places), wanted)


def test_flex_soft_cap_of_16_bit_values_is_the_same_function():
    score = torch.linspace(-200, 200, 401)
    assert_close("single", flex.capped(score, 30.0, short=True), flex.capped(score, 30.0, short=False))


def test_flex_without_terms_or_cap_changes_no_score():
    assert flex.score_mod(None, mask_of("causal", 10), None, short=True) is None


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", ["t5", "shaw"])
@pytest.mark.parametrize(("text", "count"), [("causal", 2), ("full", 3), ("causal & window(10)", 1)])
def test_flex_near_and_far_parts_hold_every_pair_once_with_its_whole_bias(text, count, kind, rows):
    tokens = 520
    attn_mask = mask_of(text, tokens, rows)
    leaves = leaves_of(kind, tokens)
    terms = terms_of(kind, leaves, attn_mask)
    parts = flex.parts_of(terms)
    assert len(parts) == count
    total = torch.zeros(2, HEADS, tokens, tokens, dtype=torch.float64)
    times = torch.zeros(2, HEADS, tokens, tokens, dtype=torch.long)
    for part in parts:
        seen = part.mask.mask()
        added = torch.zeros(()) if part.scores is None else score_bias(part.scores, terms.mask.where)
        added = added if part.shift_BHT is None else added + part.shift_BHT[..., None]
        total, times = total + added * seen, times + seen
    assert torch.equal(times, attn_mask.mask().long().expand_as(times))
    assert_close("single", total, (score_bias(terms.scores, terms.mask.where) * attn_mask.mask()).expand_as(total))


@pytest.mark.parametrize("why", ["no gradient", "cap", "few keys"])
def test_flex_table_stays_in_one_part_where_two_do_not_pay(why):
    tokens = 300 if why == "few keys" else 600
    attn_mask = mask_of("causal", tokens)
    terms = terms_of("t5 cap" if why == "cap" else "t5", leaves_of("t5", tokens), attn_mask)
    with torch.set_grad_enabled(why != "no gradient"):
        parts = flex.parts_of(terms)
    assert len(parts) == 1
    assert parts[0].mask is attn_mask


def test_flex_promises_the_kernel_only_what_holds_for_every_tile():
    plain = mask_of("causal", 256)
    plain.shape = "causal"
    odd = mask_of("causal", 250)
    odd.shape = "causal"
    options = [
        flex.options_of(flex.Part(attn_mask, None), 128, short=True)
        for attn_mask in (plain, odd, mask_of("causal & window(128)", 256), mask_of("causal", 256, "packed"))
    ]
    assert options[0] == {"ROWS_GUARANTEED_SAFE": True, "BLOCKS_ARE_CONTIGUOUS": True}
    assert options[1] == {"ROWS_GUARANTEED_SAFE": True}
    # The far tile of a window holds no key for its last query, and the two tiles at its edges are apart.
    assert options[2] == options[3] == {}


def both(run, kind, leaves, attn_mask, dtype, given):
    inputs = {name: x.to(dtype).detach().requires_grad_() for name, x in leaves.items()}
    out = run(inputs["q"], inputs["k"], inputs["v"], terms_of(kind, inputs, attn_mask))
    return [out, *torch.autograd.grad(out, list(inputs.values()), given.to(dtype))]


def added_up(kind, leaves, attn_mask, given):
    """For each entry of the table, the sum of the magnitudes of the score gradients that make up its gradient."""
    inputs = {name: x.detach().requires_grad_() for name, x in leaves.items()}
    terms = terms_of(kind, inputs, attn_mask)
    bias = score_bias(terms.scores, terms.mask.where)
    # Each pair's own, with nothing added up over rows.
    each = bias.detach().expand(2, -1, -1, -1).clone().requires_grad_()
    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))
    k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    score = SCALE * q @ k.mT + each
    score = score if terms.softcap is None else terms.softcap * torch.tanh(score / terms.softcap)
    score = score.masked_fill(~attn_mask.mask(), -torch.inf)
    if "sink" in inputs:
        ends = inputs["sink"][:, None, None].expand(2, -1, score.shape[2], 1)
        weights = torch.cat((score, ends), -1).softmax(-1)[..., :-1]
    else:
        weights = score.softmax(-1)
    out = weights.nan_to_num(0.0) @ v
    (moved,) = torch.autograd.grad(out, each, given.double().transpose(1, 2))
    (total,) = torch.autograd.grad(bias, inputs["table"], moved.nan_to_num(0.0).abs().sum_to_size(bias.shape))
    return total


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", ["t5", "t5 cap", "t5 sinks"])
def test_flex_magnitudes_of_a_table_gradient_bound_it_and_its_error_in_fp32(kind, rows):
    """What is computed in fp32 by another kernel keeps the tolerance, and a gradient that is off does not."""
    attn_mask, leaves = mask_of("causal", 100, rows), leaves_of(kind, 100)
    given = torch.randn(2, 100, HEADS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = both(reference.run, kind, leaves, attn_mask, torch.float64, given)[4]
    found = both(reference.run, kind, leaves, attn_mask, torch.float32, given)[4]
    magnitudes = added_up(kind, leaves, attn_mask, given)
    assert_sum_close("table-gradient", found, wanted, magnitudes)
    with pytest.raises(AssertionError, match="table-gradient"):
        assert_sum_close("table-gradient", found + 1e-3 * magnitudes, wanted, magnitudes)


@gpu
@pytest.mark.parametrize("tokens", [63, 100, 1000])
@pytest.mark.parametrize(
    ("text", "kind", "rows"),
    [
        ("causal & window(50)", "plain", "alone"),
        ("block_sparse(16, 3, 4, 1)", "plain", "packed"),
        ("symmetric_window(20) | random_blocks(16, 2)", "plain", "padded"),
        ("causal", "alibi", "packed"),
        ("causal", "t5", "alone"),
        ("full", "t5", "padded"),
        ("causal", "shaw", "alone"),
        ("causal", "column", "alone"),
        ("causal", "t5 sinks", "packed"),
        ("causal", "t5 cap", "alone"),
    ],
)
def test_flex_on_cuda_equals_the_reference_in_value_and_gradient(text, kind, rows, tokens):
    attn_mask = mask_of(text, tokens, rows, "cuda")
    leaves = leaves_of(kind, tokens, "cuda")
    given = torch.randn_like(leaves["q"])
    wanted = both(reference.run, kind, leaves, attn_mask, torch.float64, given)
    found = both(flex.run, kind, leaves, attn_mask, torch.float32, given)
    for name, a, b in zip(("out", *leaves), found, wanted, strict=True):
        if name == "table":
            assert_sum_close("table-gradient", a, b, added_up(kind, leaves, attn_mask, given))
        else:
            assert_close("fused", a, b)


@gpu
def test_flex_on_cuda_other_rows_and_boundaries_compile_nothing_new():
    from torch._dynamo.utils import counters

    graphs = []
    for batch, cut in ((2, 100), (2, 333), (3, 150), (5, 410)):
        at = torch.arange(512, device="cuda")[None].expand(batch, -1)
        document = (at >= cut).long()
        here = Tokens(at - cut * document, document)
        attn_mask = AttentionMask(Causal(), here, here, heads=HEADS)
        q, k = (torch.randn(batch, 512, n, DIM, device="cuda", requires_grad=True) for n in (HEADS, GROUPS))
        flex.run(q, k, k, AttentionArgs(SCALE, Softmax(), {}, attn_mask)).sum().backward()
        graphs.append(counters["stats"]["unique_graphs"])
    assert len(set(graphs)) == 1, graphs


@gpu
def test_flex_on_cuda_row_that_sees_nothing_gives_zero_and_no_gradient():
    pos = torch.arange(130, device="cuda")[None]
    valid = torch.zeros(1, 130, dtype=torch.bool, device="cuda")
    attn_mask = AttentionMask(Full(), Tokens(pos), Tokens(pos), valid, heads=HEADS)
    q, k, v = (torch.randn(1, 130, HEADS, DIM, device="cuda", requires_grad=True) for _ in range(3))
    sink = torch.zeros(HEADS, device="cuda")
    for own in ({}, {"sink_H": sink}):
        out = flex.run(q, k, v, AttentionArgs(SCALE, Softmax(sinks=bool(own)), own, attn_mask))
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert all((x == 0).all() for x in (out, *grads))


@pytest.mark.parametrize(
    ("position", "asked", "learns"),
    [
        ({"kind": "t5"}, True, True),
        ({"kind": "shaw", "on_values": False}, True, True),
        ({"kind": "alibi"}, True, False),
        ({"kind": "t5"}, False, False),
    ],
)
def test_flex_serves_no_learned_bias_where_gradients_must_repeat(position, asked, learns, monkeypatch):
    """What chooses a kernel tells it whether the bias learns, and whether torch was told to be deterministic."""
    requests = []
    real = stack.choice

    def choice(request):
        requests.append(request)
        return real(request)

    monkeypatch.setattr(stack, "choice", choice)
    model = af.build(af.spec(BASE | {"position": position}).vary({"attention.pattern": "causal & window(4)"}))
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(asked)
    try:
        model(torch.zeros(1, 8, dtype=torch.long))
        with torch.no_grad():
            model(torch.zeros(1, 8, dtype=torch.long))
    finally:
        torch.use_deterministic_algorithms(before)
    reasons = [flex.why_not(dataclasses.replace(request, device="cuda")) for request in requests]
    assert ["in any order" in (reason or "") for reason in reasons] == [learns, False]


@gpu
@pytest.mark.parametrize("kind", ["t5", "shaw", "column", "t5 cap"])
def test_flex_on_cuda_learned_bias_has_the_same_bits_each_time_where_they_are_asked_for(kind):
    attn_mask, leaves = mask_of("causal", 300, device="cuda"), leaves_of(kind, 300, "cuda")
    given = torch.randn_like(leaves["q"])
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:

        def served(q, k, v, terms):
            return attention.attend(q, k, v, **terms._asdict())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [both(served, kind, leaves, attn_mask, torch.float32, given) for _ in range(4)]
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))


@pytest.fixture
def compiled_plainly(monkeypatch):
    """flex on a CPU: its calls go through the compiler's front, and what it traced is run as it is."""
    monkeypatch.setattr(flex, "BACKEND", "eager")
    flex._kind.cache_clear()
    torch._dynamo.reset()
    yield
    flex._kind.cache_clear()
    torch._dynamo.reset()


VARIED = [
    (tokens, text, rows, grads)
    for tokens, text in ((130, "causal & window(50)"), (200, "causal & window(50)"))
    for rows in ROWS
    for grads in ("none", "inference", "none")
]


def served(tokens, text, rows, grads, kind="plain"):
    """flex and the reference, for rows of two lengths of memory: laid out plainly, and every second one of more."""
    attn_mask, leaves = mask_of(text, tokens, rows), leaves_of(kind, tokens)
    outs = []
    for stride in (1, 2):
        q, k, v = (leaves[name].float().repeat_interleave(stride, 0)[::stride] for name in ("q", "k", "v"))
        context = torch.inference_mode if grads == "inference" else torch.no_grad
        with context():
            terms = terms_of(kind, leaves, attn_mask)
            outs.append((flex.run(q, k, v, terms), reference.run(q.double(), k.double(), v.double(), terms)))
    return outs


@pytest.mark.filterwarnings("ignore:.*unfused implementation")
def test_flex_of_more_variants_than_the_compiler_keeps_is_compiled_afresh(compiled_plainly, monkeypatch):
    monkeypatch.setattr(flex, "RENEWALS", 30)
    with torch._dynamo.config.patch(recompile_limit=1):
        for varied in VARIED:
            for found, wanted in served(*varied):
                assert_close("single", found, wanted)


@pytest.mark.filterwarnings("ignore:.*unfused implementation")
def test_flex_that_the_compiler_gives_up_is_served_by_another_kernel_with_one_warning(compiled_plainly, monkeypatch):
    monkeypatch.setattr(flex, "RENEWALS", 0)
    # All modes in one, so that variants meet in one code object.
    monkeypatch.setattr(flex, "_mode", lambda *_: ())
    with torch._dynamo.config.patch(recompile_limit=1), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for varied in VARIED[:9]:
            for found, wanted in served(*varied):
                assert_close("single", found, wanted)
    told = [str(each.message) for each in heard if "tiled kernel serves" in str(each.message)]
    kinds = {(rows == "alone") for _, _, rows, _ in VARIED}
    assert 1 <= len(told) <= len(kinds)


def test_flex_block_mask_made_in_inference_mode_serves_a_pass_with_gradients():
    flex_blocks._kept.clear()
    with torch.inference_mode():
        blocks = [flex_blocks.block_mask(mask_of("causal & window(50)", 300, rows)) for rows in ROWS]
    for some in blocks:
        assert not any(x.is_inference() for x in (some.kv_indices, some.kv_num_blocks, some.q_indices))
