"""Traces: of random specs they agree with the pass they watched, and the model does not notice."""

import threading

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.kernels.attention.score_bias import value_part
from anyformer.model import trace as tracing
from anyformer.model.trace import Sites
from anyformer.parts.attention import Attention
from anyformer.specs import Mixer
from anyformer.specs.axes import QKPositions
from tests.contract.contracts import LENGTH, answers, length_of, model_of, randomise
from tests.contract.draw import BASE, draw, spec_of_kind
from tests.contract.feed import document
from tests.tolerances import assert_close

SPECS = {f"seed {seed}": draw(seed) for seed in range(30)} | {
    kind: spec_of_kind("mixer", kind) for kind in Mixer.kinds()
}
IDS = torch.arange(2 * 11).view(2, 11) % 37


def fed(spec, length=None, seed=0):
    """The arguments of a pass over one document."""
    doc = document(spec, length or length_of(spec), seed)
    named = {"token_types": doc.types, "global_mask": doc.marks, "decoder_input_ids": doc.target}
    return {spec.embed.reads: doc.source[None]} | {k: v[None] for k, v in named.items() if v is not None}


def small(**changes):
    return randomise(af.build(af.spec(BASE, changes), dtype=torch.float64), 0).eval()


class Spy:
    """What every attention of a pass was given and gave, in order; `then` puts the method in its place."""

    def __init__(self, monkeypatch):
        self.seen = []
        for name in ("mix", "attend_custom"):
            monkeypatch.setattr(Attention, name, self.around(getattr(Attention, name)))

    def around(self, method):
        def run(body, q, k, v, scene, *rest):
            known = len(self.seen)
            out = method(body, q, k, v, scene, *rest)
            attn_mask = rest[0] if rest else scene.mask
            # Neither what reads weights out of a mixer, nor rows that have projections of their own.
            if len(self.seen) == known and scene.decisions is None and attn_mask is scene.mask:
                self.seen.append((body, v, out, scene))
            return out

        return run


@pytest.mark.parametrize("name", SPECS)
def test_trace_of_a_random_spec_agrees_with_the_pass_and_changes_nothing(name):
    spec = SPECS[name]
    model, given = model_of(spec), fed(spec)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        plain = model(**given)
    found = model.trace(**given, attention="all", logits="all" if spec.head.kind != "none" else None)
    assert_close("same", answers(found.output), answers(plain))
    sites = Sites(spec)
    wanted = [*sites.residuals, *sites.attention, *(sites.logits if sites.has_head else ())]
    assert list(found) == wanted
    assert not any(tensor.requires_grad for tensor in found.values())
    if sites.has_head:
        assert_close("same", found[wanted[-1]], plain.logits)
        assert_close("same", found.lens("embed"), found[sites.logits[0]])
    stack = getattr(model, sites.last)
    states = [found[name] for name in sites.of_layer[-1]]
    if stack.reversible:
        states = [torch.cat(states, -1) if stack.merge == "concat" else (states[0] + states[1]) / 2]
    ended = states[0] if stack.final_norm is None else stack.final_norm(states[0])
    assert_close("same", found[f"{sites.last}.final"], ended)
    with torch.no_grad():
        assert_close("same", answers(model(**given)), answers(plain))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", SPECS)
def test_trace_weights_of_a_random_spec_give_the_output_of_the_attention(name, monkeypatch):
    spec = SPECS[name]
    model = model_of(spec)
    with torch.no_grad(), monkeypatch.context() as patch:
        spy = Spy(patch)
        model(**fed(spec))
    found = model.trace(**fed(spec), residuals=None, attention="all")
    assert len(found) == len(spy.seen) > 0
    for name, (body, v_BSGK, out_BTHK, scene) in zip(found, spy.seen, strict=True):
        weights = found[name]
        mask = scene.mask.mask()
        if mask is not None:
            assert not weights[~mask.expand(weights.shape)].any(), f"{name}: weight where the pattern allows none"
        total = weights.sum(-1)
        if body.mixing.kind != "linear":
            # Rotated features may have negative products; all others are shares.
            assert (weights >= 0).all()
            assert (total <= 1 + 1e-12).all()
        sees = torch.ones_like(total, dtype=torch.bool) if mask is None else mask.any(-1).expand(total.shape)
        if body.mixing.kind == "lsh" or (body.mixing.kind == "softmax" and not body.mixing.sinks):
            assert_close("formula", total[sees], torch.ones_like(total[sees]))
        if scene.globals_ is not None:
            continue
        heads = body.dims.heads // body.dims.kv_heads
        mixed = torch.einsum("bhts,bshk->bthk", weights, v_BSGK.repeat_interleave(heads, 2))
        if body.reads_probs and scene.kernel is not None:
            own = body.position.tensors() if body.position is not None else scene.own
            where = QKPositions(scene.mask.q.pos, scene.mask.k.pos)
            mixed = mixed + value_part(body.leaf.values(own, v_BSGK), weights, where)
        assert_close("kernel", mixed, out_BTHK)


@pytest.mark.parametrize("seed", [s for s in range(16) if draw(s).embed.kind == "tokens"])
def test_trace_of_a_padded_row_has_the_weights_of_the_document_alone(seed):
    spec = draw(seed)
    model = model_of(spec)
    alone = fed(spec, LENGTH)
    padded = {}
    for name, tensor in alone.items():
        decoder = "decoder_" if name.startswith("decoder") else ""
        padded[name] = torch.cat((torch.full_like(tensor[:, :1], 1).expand(-1, 3), tensor), 1)
        padded[f"{decoder}attention_mask"] = (torch.arange(padded[name].shape[1]) >= 3).long()[None]
    whole, part = (model.trace(**given, attention="all") for given in (alone, padded))
    for name in whole:
        row = part[name][..., 3:, 3:] if name.endswith(".probs") else part[name][:, 3:]
        assert_close("promise", row, whole[name])


def test_trace_of_packed_documents_keeps_them_apart():
    model = small()
    segments = torch.tensor([[0] * 5 + [1] * 6] * 2)
    packed = model.trace(IDS, segments=segments, attention={1: [0, 4]})["decoder.1.attention.probs"]
    alone = model.trace(IDS[:, 5:], attention={1: [0, 4]})["decoder.1.attention.probs"]
    assert_close("promise", packed[:, :, 5:, 5:], alone)
    assert not packed[:, :, 5:, :5].any()


def test_trace_of_global_tokens_shows_what_their_own_projections_see(monkeypatch):
    spec = af.spec(BASE, {
        "topology": "encoder", "position": "none", "attention.global_projections": True,
        "attention.pattern": "symmetric_window(2) | global_tokens()", "depth": 1,
    })  # fmt: skip
    model = model_of(spec)
    marks = torch.zeros_like(IDS)
    marks[0, 3], marks[1, 7], marks[1, 8] = 1, 1, 1
    found = model.trace(IDS, global_mask=marks, attention="all")
    weights, body = found["encoder.0.attention.probs"], model.encoder.blocks[0].attention.body
    x = model.encoder.blocks[0].attention.inner(found["encoder.embed"])
    with torch.no_grad():
        q, k = (body.split_heads(part(x), None, None) for part in (body.global_q, body.global_k))
        score = torch.einsum("bthk,bshk->bhts", q, k.repeat_interleave(2, 2)) * body.scale
    chosen = marks.bool()[:, None, :, None].expand(weights.shape)
    assert_close("kernel", weights[chosen], score.softmax(-1)[chosen])
    far = (torch.arange(11)[:, None] - torch.arange(11)).abs() > 2
    plain = ~marks.bool()
    assert not weights[(plain[:, None, :, None] & plain[:, None, None, :] & far).expand(weights.shape)].any()
    assert_close("formula", weights.sum(-1), torch.ones_like(weights.sum(-1)))


@pytest.mark.parametrize("position", ["none", "rope", "alibi", "t5", "shaw", "xl", "disentangled"])
def test_trace_weights_made_in_pieces_equal_those_made_at_once(position, monkeypatch):
    model = small(position=position, **{"attention.pattern": "causal & window(4)"})
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    whole = model.trace(IDS, attention_mask=mask, attention="all")
    monkeypatch.setattr(tracing, "ROOM", 2 * 6 * 11 * 3)
    pieces = model.trace(IDS, attention_mask=mask, attention="all")
    for name in whole:
        assert_close("kernel", pieces[name], whole[name])


def test_trace_of_lsh_beyond_a_chunk_gives_the_weights_of_its_rounds_and_draws_no_other_numbers(monkeypatch):
    mixer = {"kind": "lsh", "chunk": 4, "rounds": 2, "seed": None}
    model = small(**{"attention.kv_heads": 6, "attention.mixer": mixer, "depth": 1})
    torch.manual_seed(3)
    with monkeypatch.context() as patch, torch.no_grad():
        spy = Spy(patch)
        model(IDS)
        after = torch.rand(1)
    torch.manual_seed(3)
    weights = model.trace(IDS, attention="all")["decoder.0.attention.probs"]
    assert torch.equal(torch.rand(1), after)
    _, v_BSHK, out_BTHK, _ = spy.seen[0]
    assert_close("kernel", torch.einsum("bhts,bshk->bthk", weights, v_BSHK), out_BTHK)


def test_trace_of_a_reversible_stack_names_both_streams():
    model = small(**{"block.wiring": "reversible"})
    found = model.trace(IDS)
    assert list(found) == [
        "decoder.embed",
        *("decoder.0.attention.residual", "decoder.0.ffn.residual", "decoder.0.residual.0", "decoder.0.residual.1"),
        *("decoder.1.attention.residual", "decoder.1.ffn.residual", "decoder.1.residual.0", "decoder.1.residual.1"),
        "decoder.final",
    ]
    for i in (0, 1):
        assert_close("same", found[f"decoder.{i}.attention.residual"], found[f"decoder.{i}.residual.0"])
        assert_close("same", found[f"decoder.{i}.ffn.residual"], found[f"decoder.{i}.residual.1"])


def test_trace_of_a_serial_block_shows_the_residual_between_its_branches():
    model = small()
    found = model.trace(IDS, residuals=["decoder.embed", "decoder.0.*"])
    block = model.decoder.blocks[0]
    between, after = found["decoder.0.attention.residual"], found["decoder.0.residual"]
    with torch.no_grad():
        assert_close("same", between + block.ffn.body(block.ffn.inner(between)), after)
    assert found["decoder.0.ffn.residual"] is after
    assert not torch.equal(between, found["decoder.embed"])


def test_trace_runs_in_eval_mode_and_leaves_the_mode_alone():
    model = small(**{"block.dropout": 0.5}).train()
    one, two = model.trace(IDS, logits="all"), model.trace(IDS, logits="all")
    assert_close("same", one["decoder.1.logits"], two["decoder.1.logits"])
    assert all(module.training for module in model.modules())


def test_trace_lets_hooks_run_that_were_there():
    model = small()
    handle = model.decoder.blocks[0].register_forward_hook(lambda _, args, out: torch.zeros_like(out))
    assert not model.trace(IDS)["decoder.0.residual"].any()
    handle.remove()
    assert model.trace(IDS)["decoder.0.residual"].any()


def test_trace_beside_other_passes_sees_only_its_own():
    model = small()
    with torch.no_grad():
        wanted = model(IDS[:, :3]).logits
    stop, wrong = threading.Event(), []

    def others():
        with torch.no_grad():
            while not stop.is_set():
                wrong.extend([1] if not torch.equal(model(IDS[:, :3]).logits, wanted) else [])

    thread = threading.Thread(target=others)
    thread.start()
    traces = [model.trace(IDS, attention="all") for _ in range(10)]
    stop.set()
    thread.join()
    assert not wrong
    assert {trace[name].shape[-1] for trace in traces for name in trace if "probs" in name} == {11}


def test_trace_of_an_encoder_decoder_shows_both_stacks_and_cross_attention():
    model = small(topology="encoder-decoder")
    found = model.trace(
        IDS, decoder_input_ids=IDS[:, :4], attention={"decoder.*.cross": 2, -1: [5, 0], "encoder.0.attention": "all"}
    )
    shapes = {name: tuple(found[name].shape) for name in found if name.endswith("probs")}
    assert shapes == {
        "encoder.0.attention.probs": (2, 6, 11, 11),
        "decoder.0.cross.probs": (2, 1, 4, 11),
        "decoder.1.attention.probs": (2, 2, 4, 4),
        "decoder.1.cross.probs": (2, 1, 4, 11),
    }
    assert found.heads["decoder.1.attention.probs"] == (5, 0)
    every = model.trace(IDS, decoder_input_ids=IDS[:, :4], attention="all")
    for name, heads in found.heads.items():
        assert_close("same", found[name], every[name][:, list(heads)])
    states = found.output.encoder_states
    again = model.trace(encoder_states=states, decoder_input_ids=IDS[:, :4], attention="all")
    assert not any(name.startswith("encoder") for name in (*again, *again.heads))
    assert_close("same", again["decoder.final"], found["decoder.final"])
    with pytest.raises(InputError, match=r"encoder\.final: the encoder did not run"):
        model.trace(encoder_states=states, decoder_input_ids=IDS[:, :4], residuals="encoder.final")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"residuals": ["decoder.1.atention.residual"]}, "did you mean 'decoder.1.attention.residual'?"),
        ({"residuals": [0, 2]}, "residuals: there is no layer 2; the decoder has layers 0 to 1"),
        ({"attention": {0: [0, 6]}}, "decoder.0.attention.probs: it has heads 0 to 5, and no 6"),
        ({"attention": {0: []}}, "and no none given"),
        ({"attention": {"decoder.0.cross": "all"}}, "'decoder.0.cross' is no name of this model"),
        ({"attention": [0]}, "expected 'all' or a table"),
        ({"attention": {0: "every"}}, "expected 'all' or numbers of heads, got 'every'"),
        ({"logits": "decoder.7.logits"}, "'decoder.7.logits' is no name of this model"),
        ({"cache": 1}, "a trace reads the whole text in one pass"),
    ],
)
def test_trace_of_what_is_not_there_teaches(asked, says):
    with pytest.raises(InputError) as refused:
        small().trace(IDS, **asked)
    assert says in str(refused.value)


def test_trace_names_all_problems_at_once():
    with pytest.raises(InputError) as refused:
        small(head="none").trace(IDS, residuals=9, attention={9: "all"}, logits="all")
    assert len(str(refused.value).splitlines()) == 3
    with pytest.raises(TypeError, match="'position_ids' is called 'positions' here"):
        small().trace(IDS, position_ids=IDS)


def test_trace_asked_for_what_it_does_not_hold_says_what_it_holds():
    found = small().trace(IDS, residuals=1)
    with pytest.raises(KeyError, match=r"was not traced; did you mean 'decoder\.1\.residual'"):
        found["decoder.0.residual"]
    with pytest.raises(KeyError, match="was not traced"):
        found.lens(0)
    assert repr(found) == "Trace of\n  decoder.1.residual  (2, 11, 24)"
