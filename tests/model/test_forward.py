"""Arguments, labels and outputs of model(...), as docs/spec.md describes them."""

import copy

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import InputError
from anyformer.specs.layer import absorbs
from tests.contract.contracts import randomise
from tests.contract.draw import BASE
from tests.tolerances import assert_close

IGNORE = -100


def make(**changes):
    return randomise(af.build(af.spec(BASE | changes), dtype=torch.float64), 1).eval()


def ids(batch, tokens, seed=0):
    return torch.randint(0, 37, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def nll(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE)


def test_causal_loss_shifts_labels_inside():
    model, x = make(), ids(2, 9)
    out = model(x, labels=x)
    assert_close("formula", out.loss, nll(out.logits[:, :-1], x[:, 1:]))
    assert out.label_count == 16


def test_causal_loss_of_ignored_labels_counts_the_rest():
    model, x = make(), ids(2, 9)
    labels = x.clone()
    labels[0, 3:6] = IGNORE
    out = model(x, labels=labels)
    assert_close("formula", out.loss, nll(out.logits[:, :-1], labels[:, 1:]))
    assert out.label_count == 13


def test_loss_without_any_label_is_zero_and_has_finite_gradients():
    model, x = make(loss={"z": 0.1}), ids(2, 5)
    out = model(x, labels=torch.full_like(x, IGNORE))
    out.loss.backward()
    assert out.loss == 0
    assert out.label_count == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_causal_loss_of_packed_documents_is_the_sum_of_their_losses():
    model = make()
    first, second = ids(1, 6, 1), ids(1, 9, 2)
    row, segments = torch.cat((first, second), 1), torch.tensor([[4] * 6 + [7] * 9])
    packed = model(row, segments=segments, labels=row)
    alone = [model(x, labels=x) for x in (first, second)]
    assert packed.label_count == 13 == sum(int(o.label_count) for o in alone)
    total = sum(o.loss * o.label_count for o in alone)
    assert_close("promise", packed.loss * packed.label_count, total)


@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 4), (2, 2)])
def test_causal_loss_of_a_padded_row_is_that_of_the_row_alone(left, right):
    model, x = make(), ids(1, 7)
    row = torch.cat((ids(1, left, 5), x, ids(1, right, 6)), 1)
    mask = torch.tensor([[0] * left + [1] * 7 + [0] * right])
    padded, alone = model(row, attention_mask=mask, labels=row), model(x, labels=x)
    assert padded.label_count == alone.label_count == 6
    assert_close("promise", padded.loss, alone.loss)


def test_masked_lm_loss_does_not_shift():
    model, x = make(topology="encoder"), ids(2, 9)
    labels = torch.where(torch.arange(9) % 3 == 0, x, IGNORE)
    out = model(x, labels=labels)
    assert_close("formula", out.loss, nll(out.logits, labels))
    assert out.label_count == 6


def test_masked_lm_loss_ignores_labels_on_padding():
    model, x = make(topology="encoder"), ids(1, 6)
    row, mask = torch.cat((x, ids(1, 3, 4)), 1), torch.tensor([[1] * 6 + [0] * 3])
    assert_close("promise", model(row, attention_mask=mask, labels=row).loss, model(x, labels=x).loss)


def test_token_head_loss_does_not_shift_in_a_decoder_either():
    model, x = make(head={"kind": "token", "labels": 5}), ids(2, 6)
    labels = x % 5
    out = model(x, labels=labels)
    assert_close("formula", out.loss, nll(out.logits, labels))


def test_encoder_decoder_without_decoder_input_is_teacher_forced():
    model = make(topology="encoder-decoder", ids={"start": 3, "pad": 0})
    source, labels = ids(2, 8), ids(2, 6, 1)
    labels[1, 4:] = IGNORE
    before = torch.cat((torch.full((2, 1), 3), labels[:, :-1]), 1)
    before[before == IGNORE] = 0
    forced, given = model(source, labels=labels), model(source, decoder_input_ids=before, labels=labels)
    assert_close("same", forced.logits, given.logits)
    assert_close("formula", forced.loss, nll(given.logits, labels))
    assert forced.label_count == 10


def test_teacher_forcing_without_a_start_id_says_what_to_set():
    model = make(topology="encoder-decoder", ids={})
    with pytest.raises(InputError, match=r"ids\.start"):
        model(ids(1, 4), labels=ids(1, 3))


def test_loss_adds_label_smoothing_and_z_and_names_the_terms():
    model, x = make(loss={"z": 0.01, "label_smoothing": 0.2}), ids(2, 9)
    out = model(x, labels=x)
    logits, target = out.logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()
    smooth = F.cross_entropy(logits, target, label_smoothing=0.2)
    z = logits.logsumexp(-1).square().mean()
    assert_close("formula", out.loss, smooth + 0.01 * z)
    assert_close("formula", out.losses["z"], z)
    assert set(out.losses) == {"cross_entropy", "z"}


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
def test_sequence_head_reads_the_pooled_states_of_real_tokens(pool):
    model = make(topology="encoder", head={"kind": "sequence", "labels": 4, "pool": pool, "dense": True})
    bare = make(topology="encoder", head={"kind": "none"})
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("head.")})
    x, mask = ids(2, 7), torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]])
    out, states = model(x, attention_mask=mask, labels=torch.tensor([1, 2])), bare(x, attention_mask=mask).hidden
    rows = [states[0, :5], states[1, 2:]]
    picked = {"first": [r[0] for r in rows], "last": [r[-1] for r in rows], "mean": [r.mean(0) for r in rows]}[pool]
    assert_close("formula", out.hidden, torch.stack(picked))
    assert_close("formula", out.loss, F.cross_entropy(out.logits, torch.tensor([1, 2])))


def test_pair_head_compares_the_means_of_both_texts():
    model = make(topology="encoder", head={"kind": "pair", "labels": 3}, embed={"kind": "tokens", "token_types": 2})
    bare = make(topology="encoder", head={"kind": "none"}, embed={"kind": "tokens", "token_types": 2})
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("head.")})
    x, types = ids(1, 8), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0]])
    states = bare(x, token_types=types, attention_mask=mask).hidden[0]
    u, v = states[:3].mean(0), states[3:7].mean(0)
    found = model(x, token_types=types, attention_mask=mask).hidden[0]
    assert_close("formula", found, torch.cat((u, v, (u - v).abs(), u * v)))


def test_pair_head_without_token_types_says_so():
    model = make(topology="encoder", head={"kind": "pair", "labels": 3}, embed={"kind": "tokens", "token_types": 2})
    with pytest.raises(InputError, match="token_types is missing"):
        model(ids(1, 8))


def test_regression_head_has_a_mean_squared_error():
    model = make(topology="encoder", head={"kind": "regression", "outputs": 1}, embed={"kind": "series", "channels": 2})
    series, wanted = torch.randn(3, 6, 2, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    out = model(values=series, labels=wanted)
    assert_close("formula", out.loss, (out.logits[:, 0] - wanted).square().mean())
    assert out.label_count == 3


HEADS = [
    {"kind": "lm"}, {"kind": "lm", "tied": True, "softcap": 3.0, "scale": 0.5, "bias": True},
    {"kind": "lm", "transform": True, "tied": True}, {"kind": "token", "labels": 5}, {"kind": "sequence", "labels": 5},
    {"kind": "regression", "outputs": 2},
]  # fmt: skip


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize(
    "embed", [{"kind": "tokens"}, {"kind": "tokens", "width": 10, "project": "last"}], ids=["full", "narrow"]
)
def test_head_of_hidden_is_logits(head, embed):
    model = make(topology="encoder", head=head, embed=embed)
    out = model(ids(2, 6), attention_mask=torch.tensor([[1] * 6, [1] * 4 + [0] * 2]))
    assert_close("same", model.head(out.hidden), out.logits)


def test_encoder_states_can_be_passed_back():
    model = make(topology="encoder-decoder")
    source, target, mask = ids(2, 7), ids(2, 5, 1), torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    first = model(source, attention_mask=mask, decoder_input_ids=target)
    again = model(encoder_states=first.encoder_states, attention_mask=mask, decoder_input_ids=target)
    assert_close("same", again.logits, first.logits)


def test_logits_at_padding_are_finite():
    model = make(attention=BASE["attention"] | {"pattern": "window(3)"})
    out = model(ids(2, 9), attention_mask=torch.tensor([[0] * 8 + [1], [0] * 9]))
    assert out.logits.isfinite().all()


def test_cross_attention_to_no_source_token_gives_finite_logits_and_gradients():
    model = make(topology="encoder-decoder")
    out = model(ids(1, 4), attention_mask=torch.zeros(1, 4), decoder_input_ids=ids(1, 3))
    out.logits.sum().backward()
    assert out.logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_model_copies_and_reloads_with_the_same_answer():
    model, x = make(head={"kind": "lm", "tied": True}), ids(1, 6)
    other = af.build(model.spec, dtype=torch.float64, seed=5)
    other.load_state_dict(model.state_dict())
    twin = copy.deepcopy(model)
    assert_close("same", other(x).logits, model(x).logits)
    with torch.no_grad():
        twin.embed.tokens.weight.zero_()
    assert twin(x).logits.abs().max() == 0, "the copy's head reads the copy's own table"
    assert model(x).logits.abs().max() > 0


def test_constants_survive_a_round_trip_through_16_bits():
    model, x = make(position="rope"), ids(1, 20)
    before = [b.clone() for b in model.buffers()]
    model.to(torch.bfloat16).to(torch.float64)
    assert all(torch.equal(a, b) and b.dtype == torch.float64 for a, b in zip(before, model.buffers(), strict=True))
    assert model(x).logits.isfinite().all()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("position_ids", "'positions'"),
        ("token_type_ids", "'token_types'"),
        ("past_key_values", "'cache'"),
        ("atention_mask", "attention_mask"),
        ("use_cache", "known:"),
    ],
)
def test_unknown_argument_raises_a_type_error_that_names_the_right_one(name, hint):
    with pytest.raises(TypeError, match=hint):
        make()(ids(1, 4), **{name: None})


def test_arguments_after_the_first_are_keyword_only():
    with pytest.raises(TypeError):
        make()(ids(1, 4), torch.ones(1, 4))


REFUSED = {
    "a 4-D mask": (dict(attention_mask=torch.ones(1, 1, 4, 4)), "attention.pattern"),
    "a mask of another length": (dict(attention_mask=torch.ones(1, 5)), "attention_mask: expected"),
    "positions of another length": (dict(positions=torch.arange(5)), "positions: expected"),
    "segments of another shape": (dict(segments=torch.zeros(2, 4)), "segments: expected"),
    "token types without a table": (dict(token_types=torch.zeros(1, 4, dtype=torch.long)), "no table"),
    "labels of another shape": (dict(labels=torch.zeros(1, 5, dtype=torch.long)), "labels: expected"),
    "a length that nothing reads": (dict(rope_length=8), "depends on the length"),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_argument_that_does_not_fit_is_refused_with_its_name(case):
    arguments, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        make()(ids(1, 4), **arguments)


def test_decoder_argument_to_a_decoder_only_model_is_refused():
    with pytest.raises(TypeError, match="encoder-decoders"):
        make()(ids(1, 4), decoder_input_ids=ids(1, 4))


@pytest.mark.parametrize(
    ("given", "message"), [({}, "input_ids is missing"), ({"values": torch.zeros(1, 4, 2)}, "not values")]
)
def test_model_fed_through_another_argument_says_what_it_reads(given, message):
    with pytest.raises(TypeError, match=message):
        make()(**given)


def test_segments_with_a_head_that_pools_are_refused():
    model = make(topology="encoder", head={"kind": "sequence", "labels": 2})
    with pytest.raises(InputError, match="one document"):
        model(ids(1, 4), segments=torch.zeros(1, 4, dtype=torch.long))


def test_segments_of_one_stack_only_are_refused():
    model = make(topology="encoder-decoder")
    with pytest.raises(InputError, match="go together"):
        model(ids(1, 4), segments=torch.zeros(1, 4, dtype=torch.long), decoder_input_ids=ids(1, 3))


@pytest.mark.parametrize("kind", ["learned", "axial"])
def test_input_longer_than_the_positions_is_refused_before_it_runs(kind):
    model = make(position={"kind": kind} | ({"rows": 8, "columns": 8} if kind == "axial" else {}))
    with pytest.raises(InputError, match="64 positions"):
        model(ids(1, 65))
    cache = model.new_cache(1, 70)
    model(ids(1, 60), cache=cache)
    with pytest.raises(InputError, match="64 positions"):
        model(ids(1, 5), cache=cache)
    padded = torch.ones(1, 70, dtype=torch.long)
    padded[:, :6] = 0
    assert model(ids(1, 70), attention_mask=padded).logits.isfinite().all(), "padding takes no position"


def test_positions_shift_a_rope_model_by_nothing_and_a_learned_one_by_something():
    x, far = ids(1, 9), torch.arange(9) + 20
    rope, learned = make(position="rope"), make(position="learned")
    assert_close("promise", rope(x, positions=far).logits, rope(x).logits)
    assert not torch.allclose(learned(x, positions=far).logits, learned(x).logits)


def test_cache_is_advanced_in_place_and_returned():
    model = make()
    cache = model.new_cache(2, 12)
    assert model(ids(2, 5), cache=cache).cache is cache
    assert cache.used == 5


def test_cache_refuses_what_it_can_not_hold():
    model = make()
    cache = model.new_cache(1, 6)
    model(ids(1, 4), cache=cache)
    with pytest.raises(InputError, match="room for 6 tokens"):
        model(ids(1, 3), cache=cache)
    assert cache.used == 4, "a refused step leaves the cache as it was"
    with pytest.raises(InputError, match="made for 1 rows"):
        model(ids(2, 1), cache=cache)
    with pytest.raises(InputError, match="not with a cache"):
        model(ids(1, 1), cache=cache, segments=torch.zeros(1, 1))


def test_cache_of_an_encoder_is_refused():
    with pytest.raises(InputError, match="only a decoder"):
        make(topology="encoder").new_cache(1, 4)


def test_cache_with_encoder_states_refuses_a_second_source():
    model = make(topology="encoder-decoder")
    cache = model.new_cache(1, 6)
    model(ids(1, 4), decoder_input_ids=ids(1, 2), cache=cache)
    with pytest.raises(InputError, match="already"):
        model(ids(1, 4), decoder_input_ids=ids(1, 1), cache=cache)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_length_dependent_rope_reads_one_declared_length(kind):
    scaling = {"kind": kind, "factor": 4.0, "original": 8}
    if kind == "longrope":
        scaling |= {"short": [1.0, 1.5], "long": [2.0, 3.0]}
    model, x = make(position={"kind": "rope", "scaling": scaling}), ids(1, 20)
    default = model(x).logits
    assert_close("same", model(x, rope_length=20).logits, default)
    assert not torch.allclose(model(x, rope_length=8).logits, default)
    assert_close("promise", model(x[:, :8]).logits, model(x[:, :8], rope_length=8).logits)
    for declared in (None, 40):
        cache = model.new_cache(1, 20, rope_length=declared)
        steps = torch.cat([model(x[:, t : t + 1], cache=cache).logits for t in range(20)], 1)
        assert_close("promise", steps, model(x, rope_length=declared or 20).logits)
    with pytest.raises(InputError, match="new_cache"):
        model(x, cache=model.new_cache(1, 20), rope_length=5)


def test_cache_with_a_head_that_pools_is_refused():
    model = make(head={"kind": "sequence", "labels": 3, "pool": "mean"})
    with pytest.raises(InputError, match="'sequence' head reads all tokens"):
        model.new_cache(1, 8)
    with pytest.raises(InputError, match="'sequence' head reads all tokens"):
        model(ids(1, 4), cache=make().new_cache(1, 8))


def test_cache_of_another_model_dtype_or_batch_is_refused():
    model = make()
    wrong = {
        "other layers": make(depth=3).new_cache(1, 8),
        "made for 2 rows": model.new_cache(2, 8),
        "holds torch.float32": af.build(model.spec).new_cache(1, 8),
    }
    for message, cache in wrong.items():
        with pytest.raises(InputError, match=message):
            model(ids(1, 4), cache=cache)
        assert cache.used == 0
    with pytest.raises(TypeError, match="new_cache"):
        model(ids(1, 4), cache=((1, 2),))


@pytest.mark.parametrize("topology", ["decoder", "encoder-decoder"])
def test_step_that_fails_can_be_made_again(topology, monkeypatch):
    model = make(topology=topology)
    x, mask = ids(2, 8), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8])
    names = (
        ("input_ids", "attention_mask") if topology == "decoder" else ("decoder_input_ids", "decoder_attention_mask")
    )
    first = {} if topology == "decoder" else {"input_ids": ids(2, 5, 3)}

    def run(break_at):
        cache, found = model.new_cache(2, 8), []
        for i, piece in enumerate((slice(0, 5), slice(5, 6), slice(6, 8))):
            arguments = dict(zip(names, (x[:, piece], mask[:, piece]), strict=True)) | (first if i == 0 else {})
            if i == break_at:
                with monkeypatch.context() as broken:
                    broken.setattr(type(model.decoder.blocks[1].ffn.body), "forward", interrupted)
                    with pytest.raises(KeyboardInterrupt):
                        model(cache=cache, **arguments)
            found.append(model(cache=cache, **arguments).logits)
        return torch.cat(found, 1)

    for break_at in (0, 1, 2):
        assert_close("same", run(break_at)[:, 3:], run(None)[:, 3:])


def interrupted(self, x, **more):
    raise KeyboardInterrupt


def test_pass_with_a_cache_records_no_gradients():
    model = make()
    cache = model.new_cache(1, 8)
    assert not model(ids(1, 4), cache=cache).logits.requires_grad
    assert not any(t.requires_grad for layer in cache.layers for t in layer)
    copy.deepcopy(cache)


REFUSED_BY_AN_ENCODER_DECODER = {
    "pixel values": (dict(pixel_values=torch.zeros(1, 3, 4, 4)), TypeError, "not pixel_values"),
    "both sources": (dict(encoder_states=torch.zeros(1, 4, 24)), TypeError, "one of them"),
    "no target": (dict(decoder_input_ids=None), TypeError, "needs decoder_input_ids, or labels"),
    "a flat target": (
        dict(decoder_input_ids=torch.zeros(3, dtype=torch.long)),
        InputError,
        "decoder_input_ids: expected",
    ),
    "another batch": (dict(decoder_input_ids=torch.zeros(2, 3, dtype=torch.long)), InputError, "2 rows against 1"),
}


@pytest.mark.parametrize("case", REFUSED_BY_AN_ENCODER_DECODER)
def test_argument_that_an_encoder_decoder_can_not_use_is_refused(case):
    arguments, error, message = REFUSED_BY_AN_ENCODER_DECODER[case]
    with pytest.raises(error, match=message):
        make(topology="encoder-decoder")(ids(1, 4), **{"decoder_input_ids": ids(1, 3)} | arguments)


def test_labels_that_are_no_tokens_are_not_fed_to_a_decoder_which_reads_the_source_once_more():
    model = make(topology="encoder-decoder", head={"kind": "token", "labels": 5}, ids={"start": 1, "pad": 0})
    given = ids(2, 4)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    shifted = torch.cat((torch.ones(2, 1, dtype=torch.long), given[:, :-1]), 1)
    shifted[1, 1] = 1
    want = model(given, attention_mask=mask, decoder_input_ids=shifted, decoder_attention_mask=mask).logits
    found = model(given, attention_mask=mask, labels=given % 5)
    assert torch.equal(found.logits[mask.bool()], want[mask.bool()])
    with pytest.raises(TypeError, match="needs decoder_input_ids, or the source to read once more"):
        model(encoder_states=found.encoder_states)


@pytest.mark.parametrize("name", ["attention_mask", "positions", "segments", "token_types"])
def test_source_argument_after_the_source_is_refused(name):
    model = make(topology="encoder-decoder", embed={"kind": "tokens", "token_types": 2})
    cache = model.new_cache(1, 6)
    model(ids(1, 4), decoder_input_ids=ids(1, 2), cache=cache)
    with pytest.raises(InputError, match=name if name != "segments" else "segments: not with a cache"):
        model(decoder_input_ids=ids(1, 1), cache=cache, **{name: torch.zeros(1, 4, dtype=torch.long)})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(input_ids=[[1, 2]]), TypeError, "expected a tensor"),
        (dict(input_ids=torch.zeros(1, 4)), InputError, "whole numbers"),
        (dict(input_ids=torch.zeros(1, 0, dtype=torch.long)), InputError, "at least one token"),
        (dict(input_ids=ids(1, 4), positions=torch.zeros(4)), InputError, "positions: expected whole numbers"),
        (dict(input_ids=ids(1, 4), segments=torch.zeros(1, 4)), InputError, "segments: expected whole numbers"),
        (
            dict(input_ids=ids(2, 4), token_types=torch.zeros(1, 4, dtype=torch.long)),
            InputError,
            "token_types: expected",
        ),
    ],
    ids=["a list", "real ids", "no tokens", "real positions", "real segments", "types of one row"],
)
def test_tensor_of_another_sort_is_refused_with_its_name(arguments, error, message):
    model = make(embed={"kind": "tokens", "token_types": 2})
    with pytest.raises(error, match=message):
        model(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama",), "anyformer.spec"),
        ((BASE,), "anyformer.spec"),
        ((None, "cpu", "float32"), "torch dtype"),
        ((None, "cpu", torch.float32, None), "seed"),
    ],
    ids=["a name", "a table", "a dtype's name", "no seed"],
)
def test_build_of_something_else_says_what_to_give(arguments, message):
    spec, *rest = arguments
    with pytest.raises(TypeError, match=message):
        af.build(af.spec(BASE) if spec is None else spec, *rest)


def test_segments_with_a_padded_tail_equal_the_documents_alone():
    model = make(position="alibi", attention=BASE["attention"] | {"pattern": "window(4)"})
    docs = [ids(1, n, n) for n in (5, 9)]
    row, segments = torch.cat((*docs, ids(1, 3, 7)), 1), torch.tensor([[0] * 5 + [1] * 9 + [1] * 3])
    mask = torch.tensor([[1] * 14 + [0] * 3])
    found = model(row, segments=segments, attention_mask=mask, labels=row)
    alone = [model(d, labels=d) for d in docs]
    assert_close("promise", found.logits[:, :14], torch.cat([o.logits for o in alone], 1))
    assert_close("promise", found.loss * 12, alone[0].loss * 4 + alone[1].loss * 8)
    assert found.label_count == 12


def test_labels_of_a_prefix_do_not_count_as_tokens_before_them_see_them():
    model = make(attention=BASE["attention"] | {"pattern": "causal | prefix(6)"})
    row = ids(1, 15, 3)
    found = model(row, labels=row)
    # Tokens 6 to 14 are predicted from what came before.
    assert found.label_count == 9
    logprobs = found.logits.log_softmax(-1)[0, 5:-1]
    assert_close("formula", found.loss, -logprobs.gather(-1, row[0, 6:, None]).mean())


def test_prefix_fed_in_two_pieces_is_refused_by_name():
    model = make(attention=BASE["attention"] | {"pattern": "causal | prefix(6)"})
    cache = model.new_cache(1, 20)
    model(ids(1, 4, 1), cache=cache)
    with pytest.raises(InputError, match="the first 6 tokens see each other both ways"):
        model(ids(1, 1, 2), cache=cache)


def test_global_mask_that_no_pattern_reads_is_refused():
    with pytest.raises(InputError, match="global_mask: no pattern of this model reads it"):
        make()(ids(1, 4, 1), global_mask=torch.ones(1, 4, dtype=torch.long))


def test_few_global_tokens_take_the_same_with_and_without_keys_of_all_tokens(monkeypatch):
    pattern = "symmetric_window(2) | global_tokens(1)"
    heads = {"heads": 3, "kv_heads": 1, "head_dim": 4, "bias": "qkv", "pattern": pattern, "global_projections": True}
    model = make(topology="encoder", position="learned", attention=heads)
    row, marks = ids(2, 15, 3), torch.tensor([[0, 0, 0, 1] + [0] * 11, [0] * 15])
    stack = model.spec.stacks[0]
    assert absorbs(model.spec.attention, model.spec.position, model.spec.dims(stack.layers[0], stack), 2)
    few = model(row, global_mask=marks).logits
    monkeypatch.setattr("anyformer.parts.global_attention.absorbs", lambda *_: False)
    assert_close("formula", few, model(row, global_mask=marks).logits)


def test_global_mask_of_two_rows_reaches_layers_that_read_it_beside_those_that_do_not():
    window = "symmetric_window(3) | global_tokens"
    layers = {
        "0": {"attention": {"pattern": f"{window}(2, False)", "global_projections": True}},
        "1": {"attention": {"pattern": window}},
    }
    model = make(topology="encoder", layers=layers)
    rows, marks = ids(2, 9, 1), torch.zeros(2, 9, dtype=torch.long)
    marks[1, 4] = 1
    both = model(rows, global_mask=marks).logits
    alone = [model(rows[i : i + 1], global_mask=marks[i : i + 1]).logits for i in range(2)]
    assert_close("promise", both, torch.cat(alone))


@pytest.mark.parametrize("position", ["shaw", "t5", "rope"])
def test_model_under_autocast_computes_scores_and_weights_in_fp32(position, monkeypatch):
    model = make(position=position, attention=BASE["attention"] | {"softcap": 5.0}).float()
    seen = []
    plain = torch.Tensor.exp_
    monkeypatch.setattr(torch.Tensor, "exp_", lambda self: seen.append(self.dtype) or plain(self))
    # fp16 instead of bf16, whose products not every CPU has.
    with torch.autocast("cpu", torch.float16):
        out = model(ids(1, 15, 1), labels=ids(1, 15, 1))
    assert set(seen) == {torch.float32}
    assert out.loss.isfinite()


def test_encoder_states_with_a_global_mask_are_refused():
    model = make(topology="encoder-decoder", encoder={"attention": {"pattern": "symmetric_window(3) | global_tokens"}})
    states = model(ids(1, 9, 1), decoder_input_ids=ids(1, 3, 2)).encoder_states
    with pytest.raises(InputError, match="global_mask: it belongs to the encoder's input"):
        model(encoder_states=states, decoder_input_ids=ids(1, 3, 2), global_mask=torch.ones(1, 9, dtype=torch.long))


@pytest.mark.parametrize("wrong", [37, 99, -1])
def test_ids_outside_the_vocabulary_are_named_with_their_place_and_the_vocabulary(wrong):
    model, x = make(), ids(2, 5)
    x[1, 3] = wrong
    for call in (model, model.trace):
        with pytest.raises(InputError, match=rf"{wrong} in row 1, column 3 .*vocab = 37.*tokenizer"):
            call(x)


def test_token_types_outside_their_table_are_named_with_their_place():
    model, x = make(embed={"kind": "tokens", "token_types": 2}), ids(1, 4)
    with pytest.raises(InputError, match=r"token_types: 2 in row 0, column 1 .*embed\.token_types = 2"):
        model(x, token_types=torch.tensor([[0, 2, 1, 1]]))


def test_positions_beyond_a_learned_table_are_named_with_its_length():
    model, x = make(position={"kind": "learned"}), ids(1, 4)
    limit = model.spec.context
    with pytest.raises(InputError, match=rf"positions: {limit} in row 0, column 3 .*{limit} learned positions"):
        model(x, positions=torch.arange(limit - 3, limit + 1)[None])
