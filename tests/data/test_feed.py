"""The feed through real models: counts, padding that does no harm, documents that leave each other alone."""

import numpy as np
import pytest
import torch

from anyformer.data.dataset import IGNORE, Examples, check_values
from anyformer.data.objectives import Objective
from anyformer.errors import DataError
from anyformer.kernels import loss as kernel
from tests.data.feeding import EVERY, examples_for, feed_for, make, model_for, spec_for, tensors
from tests.tolerances import TABLE, assert_close

PACKED = [kind for kind, way in EVERY if way == "packed"]


def graded(feed, model, batches):
    """Loss and gradients summed over the labels of some batches."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        terms = feed.objective.loss(model, tensors(batch))
        total, count = total + terms.total * terms.label_count, count + batch.labels
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return total.detach(), [g for g in found if g is not None], count


def assert_gradients(found, wanted):
    """Each within the promise of its own largest number; where mathematics makes it zero, of a millionth of all."""
    largest = max(float(g.abs().max()) for g in wanted)
    for a, b in zip(found, wanted, strict=True):
        own = max(float(b.abs().max()), 1e-6 * largest)
        assert float((a - b).abs().max()) <= TABLE["promise"].limit * own


@pytest.mark.parametrize(("kind", "way"), EVERY)
def test_feed_counts_labels_and_tokens_as_the_model_does(kind, way):
    feed = feed_for(kind, way)
    model = model_for(feed)
    for step in (0, 3):
        batch = feed.batch(step)
        inputs = tensors(batch)
        terms, out = feed.objective.answer(model, inputs)
        assert int(terms.label_count) == batch.labels > 0
        assert terms.total.isfinite()
        assert out.logits.isfinite().all()
        for figure, (total, count) in feed.objective.judge(out, inputs).items():
            assert count == batch.labels, figure
            assert 0 <= total <= (count if figure == "accuracy" else np.inf)
        real = [array.sum() for name, array in batch.inputs.items() if name.endswith("attention_mask")]
        cells = [
            batch.inputs[names[0]].shape[0] * batch.inputs[names[0]].shape[1] for names in feed.objective.lanes.values()
        ]
        assert batch.tokens == (sum(cells) if way == "stream" else sum(real))


@pytest.mark.parametrize(("kind", "way"), EVERY)
def test_feed_batch_of_a_step_is_the_same_whatever_was_asked_before(kind, way):
    one, other = feed_for(kind, way), feed_for(kind, way)
    digests = [one.batch(step).digest for step in range(9)]
    assert [other.batch(step).digest for step in (8, 0, 5)] == [digests[8], digests[0], digests[5]]
    assert len(set(digests)) == len(digests)
    assert feed_for(kind, way, seed=8).batch(0).digest != digests[0]


@pytest.mark.parametrize(("kind", "way"), EVERY)
def test_feed_rows_that_hold_nothing_change_no_loss_and_no_gradient(kind, way):
    feed = feed_for(kind, way, batch=1)
    model = model_for(feed)
    plain, gradients, count = graded(feed, model, list(feed.sweep())[:2])
    filled, others, same = graded(feed, model, list(feed.sweep(multiple=3))[:2])
    assert count == same > 0
    assert_close("promise", filled, plain)
    assert_gradients(others, gradients)


@pytest.mark.parametrize("kind", PACKED)
def test_feed_of_packed_rows_equals_padded_and_alone_in_loss_and_gradients(kind):
    feeds = [feed_for(kind, "packed"), feed_for(kind, "padded"), feed_for(kind, "padded", batch=1, multiple=1)]
    assert any(len(feeds[0]._packed.row(row)) > 1 for row in range(feeds[0].rows))
    model = model_for(feeds[0])
    packed, padded, alone = (graded(feed, model, feed.sweep()) for feed in feeds)
    for other in (packed, padded):
        assert other[2] == alone[2]
        assert_close("promise", other[0], alone[0])
        assert_gradients(other[1], alone[1])


@pytest.mark.parametrize("kind", PACKED)
def test_feed_document_has_no_gradient_from_another_of_its_row(kind):
    feed = feed_for(kind, "packed", batch=8)
    model = model_for(feed)
    inputs = tensors(next(iter(feed.sweep())))
    read, hook = [], model.embed.register_forward_hook(lambda *given: given[-1].retain_grad() or read.append(given[-1]))
    lanes = [inputs["segments"], *([inputs["decoder_segments"]] if "decoder_segments" in inputs else [])]
    inputs["labels"] = inputs["labels"].masked_fill(lanes[-1] != 2, IGNORE)
    terms = feed.objective.loss(model, inputs)
    hook.remove()
    terms.total.backward()
    assert int(terms.label_count) > 0
    assert len(read) == len(lanes)
    for states, segments in zip(read, lanes, strict=True):
        assert states.grad[segments == 2].abs().max() > 0
        assert states.grad[segments != 2].abs().max() == 0


def test_feed_labels_that_cross_a_document_do_not_count_in_the_model_either():
    feed = feed_for("causal", "packed")
    batch = feed.batch(0)
    inputs = tensors(batch)
    everywhere = {**inputs, "labels": inputs["input_ids"]}
    model = model_for(feed)
    terms, other = (feed.objective.loss(model, given) for given in (inputs, everywhere))
    assert int(other.label_count) == batch.labels
    assert_close("same", other.total, terms.total)


def streamed(documents):
    """What a stream of documents is, with bos and eos."""
    return np.array([i for document in documents for i in [1, *document, 2]])


def test_feed_of_a_stream_is_a_circle_cut_at_another_place_each_epoch():
    draw = np.random.default_rng(0)
    documents = [draw.integers(8, 40, n).tolist() for n in (30, 3, 0, 100, 17, 64, 5)]
    feed = feed_for("causal", "stream", length=16, batch=3, examples=Examples.of({"tokens": documents}))
    stream = streamed(documents)
    rows = -(-len(stream) // 16)
    assert feed.rows == rows
    visits = []
    for epoch in range(4):
        draw = np.random.default_rng((7, epoch))
        offset = int(draw.integers(len(stream)))
        visits += [np.take(stream, range(s, s + 16), mode="wrap") for s in offset + 16 * draw.permutation(rows)]
    for step in range(len(visits) // 3):
        assert np.array_equal(feed.batch(step).inputs["input_ids"], np.stack(visits[3 * step : 3 * step + 3]))
    assert set(feed.batch(0).inputs) == {"input_ids", "labels"}
    assert feed.waste == 0


STREAMED = [kind for kind, way in EVERY if way == "stream"]
TAILED = Examples.of({"tokens": [np.random.default_rng(1).integers(8, 40, n) for n in (50, 57)]})
"""A stream that no row divides."""


def places_read(feed, monkeypatch):
    """Counts, for each token of a stream, how often it is read from here on."""
    counts = np.zeros(len(feed._stream), np.int64)
    read = feed._stream.read

    def noted(start, stop):
        np.add.at(counts, np.arange(start, stop) % len(counts), 1)
        return read(start, stop)

    monkeypatch.setattr(feed._stream, "read", noted)
    return counts


@pytest.mark.parametrize("tokens", [23, 24, 25, 47, 48, 100, 499])
@pytest.mark.parametrize("kind", STREAMED)
def test_feed_of_a_stream_reads_every_token_in_each_epoch(kind, tokens, monkeypatch):
    draw = np.random.default_rng(tokens)
    lengths = [tokens] if tokens < 30 else [tokens // 3, tokens - tokens // 3]
    examples = Examples.of({"tokens": [draw.integers(8, 40, n) for n in lengths]})
    length = min(24, tokens - 4) if kind == "span" else 24
    feed = feed_for(kind, "stream", length=length, batch=1, examples=examples)
    for epoch in range(3):
        with monkeypatch.context() as patch:
            counts = places_read(feed, patch)
            for i in range(feed.rows):
                feed.batch(epoch * feed.rows + i)
        assert counts.min() == 1
        assert counts.sum() - len(counts) == feed.repeated < feed._room
        assert counts.max() <= 2


def test_feed_of_a_stream_of_1535_tokens_leaves_none_out(monkeypatch):
    """Rows of 512 have no place for the last 511 tokens beside two rows; they are read all the same."""
    examples = Examples.of({"tokens": [np.random.default_rng(0).integers(8, 40, 1533)]})
    feed = feed_for("causal", "stream", length=512, batch=1, examples=examples, changes={"context": 512})
    counts = places_read(feed, monkeypatch)
    for step in range(feed.rows):
        feed.batch(step)
    assert (len(counts), feed.rows, feed.repeated, int((counts == 0).sum())) == (1535, 3, 1, 0)


@pytest.mark.parametrize("kind", STREAMED)
def test_sweep_of_a_stream_reads_every_token_once_with_a_short_last_row(kind, monkeypatch):
    feed = feed_for(kind, "stream", batch=3, examples=TAILED)
    counts = places_read(feed, monkeypatch)
    batches = list(feed.sweep())
    assert set(counts) == {1}
    assert len(counts) % feed._room
    assert "attention_mask" not in batches[0].inputs
    assert batches[-1].inputs["attention_mask"].sum(1).min() < feed._widths[""]
    model = model_for(feed)
    for batch in batches:
        assert int(feed.objective.loss(model, tensors(batch)).label_count) == batch.labels


def test_sweep_of_a_stream_predicts_its_tail_as_if_it_stood_alone():
    """The padding of the last row is seen by nobody."""
    for kind in STREAMED:
        feed = feed_for(kind, "stream", batch=1, examples=TAILED)
        last = tensors(list(feed.sweep())[-1])
        model = model_for(feed)
        kept = {lane: int(last[f"{lane}attention_mask"].sum()) for lane in feed.objective.lanes}
        short = {
            name: tensor[:, : kept["decoder_" if name in ("labels",) and "decoder_" in kept else ""]]
            for name, tensor in last.items()
            if not name.endswith("attention_mask")
        }
        whole, alone = (feed.objective.loss(model, given).total for given in (last, short))
        assert_close("promise", whole, alone)


def test_feed_of_a_stream_has_one_id_between_documents_if_both_ends_are_the_same():
    examples = Examples.of({"tokens": [[8, 9], [10, 11, 12]]})
    feed = feed_for("causal", "stream", length=7, batch=1, examples=examples, changes={"ids.bos": 2})
    assert next(feed.sweep()).inputs["input_ids"].tolist() == [[2, 8, 9, 2, 10, 11, 12]]


@pytest.mark.parametrize("kind", PACKED)
def test_feed_waste_is_what_is_counted_in_an_epoch(kind):
    for way in ("packed", "padded"):
        feed = feed_for(kind, way, batch=1)
        masks = [
            a for step in range(feed.rows) for n, a in feed.batch(step).inputs.items() if n.endswith("attention_mask")
        ]
        counted = 1 - sum(int(m.sum()) for m in masks) / sum(m.size for m in masks)
        assert feed.waste == pytest.approx(counted, abs=1e-12)


def test_feed_of_packed_rows_holds_every_token_of_every_document_once():
    examples = examples_for(make("causal"), count=40, longest=60)
    feed = feed_for("causal", "packed", examples=examples)
    found = []
    for batch in feed.sweep():
        ids, segments, mask = (batch.inputs[n] for n in ("input_ids", "segments", "attention_mask"))
        assert (np.diff(segments, axis=1) >= 0).all()
        for row in range(len(ids)):
            found += [
                tuple(ids[row][(segments[row] == s) & (mask[row] == 1)])
                for s in np.unique(segments[row][mask[row] == 1])
            ]
    whole = [[1, *examples.read("tokens", i).tolist(), 2] for i in range(40)]
    assert sorted(found) == sorted(tuple(d[s : s + 24]) for d in whole for s in range(0, len(d), 24))


def test_feed_positions_that_do_not_restart_are_passed_and_do_harm():
    restarts, runs_on = (feed_for("causal", "packed", restart=restart) for restart in (True, False))
    a, b = restarts.batch(0), runs_on.batch(0)
    assert "positions" not in a.inputs
    assert b.inputs["positions"].tolist() == [list(range(24))] * 4
    model = model_for(feed_for("causal", "packed", changes={"position.kind": "learned"}))
    first, second = (restarts.objective.loss(model, tensors(batch)) for batch in (a, b))
    assert int(first.label_count) == int(second.label_count) == b.labels
    assert (first.total - second.total).abs() > 1e-3


def test_feed_padded_rows_are_as_wide_as_the_longest_rounded_up():
    feed = feed_for("sequence", "padded", batch=2)
    widths = {feed.batch(step).inputs["input_ids"].shape[1] for step in range(12)}
    assert widths <= {8, 16, 24}
    assert len(widths) > 1
    wide = feed_for("sequence", "padded", batch=2, multiple=24)
    assert {wide.batch(step).inputs["input_ids"].shape for step in range(12)} == {(2, 24)}


@pytest.mark.parametrize(("kind", "way"), EVERY)
def test_batch_shares_are_its_rows_in_order(kind, way):
    batch = feed_for(kind, way).batch(2)
    for parts in (batch.split(2), [batch.share(rank, 2) for rank in range(2)], batch.split(4)):
        for name, array in batch.inputs.items():
            assert np.array_equal(np.concatenate([part.inputs[name] for part in parts]), array)
        assert sum(part.tokens for part in parts) == batch.tokens
        assert sum(part.labels for part in parts) == batch.labels
        assert len({batch.digest, *(part.digest for part in parts)}) == len(parts) + 1
    assert batch.split(1) == [batch]


def test_batch_that_can_not_be_divided_says_which_sizes_can():
    batch = feed_for("causal", "padded").batch(0)
    with pytest.raises(DataError, match=r"a batch of 4 can't be divided equally among 3 processes.*such as 3 or 6"):
        batch.share(0, 3)
    with pytest.raises(DataError, match=r"4 can't be divided equally among 8 micro-batches.*such as 8"):
        batch.split(8)
    with pytest.raises(DataError, match="no rank 2 among 2"):
        batch.share(2, 2)


def test_batch_digest_covers_names_shapes_dtypes_and_bytes():
    batch = feed_for("causal", "padded").batch(0)
    ids = batch.inputs["input_ids"]
    changed = [
        {**batch.inputs, "input_ids": ids + (np.arange(ids.size).reshape(ids.shape) == ids.size - 1)},
        {**batch.inputs, "input_ids": ids.reshape(ids.shape[::-1])},
        {**batch.inputs, "input_ids": ids.view(np.uint64)},
        {("ids" if n == "input_ids" else n): a for n, a in batch.inputs.items()},
    ]
    found = {type(batch)(inputs, 0, batch.tokens_U, batch.labels_U).digest for inputs in changed}
    assert len(found | {batch.digest}) == 5
    assert type(batch)(dict(reversed(batch.inputs.items())), 0, batch.tokens_U, batch.labels_U).digest == batch.digest


def test_feed_ignores_the_number_that_the_loss_ignores():
    assert IGNORE == kernel.IGNORE


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": [[1, 64]]}, r"input_ids: 64 at \(0, 1\) is not among the 64"),
        ({"input_ids": [[1, -1]]}, r"input_ids: -1 at \(0, 1\)"),
        ({"labels": [[IGNORE, 64]]}, r"labels: 64 at \(0, 1\)"),
        ({"segments": [[1, 1, 2], [1, 2, 1]]}, "segments: 2 is followed by 1 at row 1, column 2; .* never decrease"),
        ({"decoder_segments": [[1, 0]]}, "decoder_segments: 1 is followed by 0"),
        ({"values": [[[0.5], [np.nan]]]}, r"values: nan at \(0, 1, 0\) is not a finite number"),
    ],
)
def test_check_of_values_that_a_model_can_not_read_says_where(inputs, message):
    spec = spec_for(make("causal"))
    given = {name: np.array(rows) for name, rows in inputs.items()}
    with pytest.raises(DataError, match=message):
        check_values(given, spec, classes=64)


def test_feed_of_tokens_beyond_the_vocabulary_is_refused():
    feed = feed_for("causal", "padded", examples=Examples.of({"tokens": [[8, 99]]}), batch=1)
    with pytest.raises(DataError, match=r"input_ids: 99 .* another spec"):
        feed.batch(0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": 65}, "length: 65 is more than the 64"),
        ({"length": 0}, "length: 0 is not at least 1"),
        ({"batch": 0}, "batch: 0 is not at least 1"),
        ({"restart": False}, "restart: only packed rows"),
        ({"examples": Examples.of({"text": [[8]]})}, "data: 'causal' needs a column 'tokens', and there are only text"),
        ({"changes": {"head.kind": "token", "head.labels": 2}}, "head.kind: 'causal' needs lm, not 'token'"),
        ({"examples": Examples.of({"tokens": [[], []]})}, "none of 2 examples can be used"),
    ],
    ids=["long", "length", "batch", "restart", "column", "head", "empty"],
)
def test_feed_that_can_not_be_says_everything_that_is_wrong(given, message):
    with pytest.raises(DataError, match=message):
        feed_for("causal", "padded", **given)


def test_feed_of_a_text_shorter_than_a_row_is_refused():
    with pytest.raises(DataError, match="has 4 tokens, and one row takes 24"):
        feed_for("causal", "stream", examples=Examples.of({"tokens": [[8, 9]]}))


@pytest.mark.parametrize("kind", Objective.kinds())
def test_feed_way_that_an_objective_does_not_have_is_refused(kind):
    leaf = Objective.named(kind)
    for way in {"stream", "packed"} - set(leaf.ways):
        with pytest.raises(DataError, match=f"rows: '{way}' does not go with '{kind}'"):
            feed_for(kind, way)


@pytest.mark.parametrize(("kind", "way"), EVERY)
def test_sweep_of_few_batches_is_a_fixed_draw_of_one_row_from_each_stretch(kind, way):
    feed = feed_for(kind, way, batch=2, examples=examples_for(make(kind), count=40))
    assert feed.swept() > 6
    chosen = feed.sample(6)
    assert chosen == feed_for(kind, way, batch=2, seed=8, examples=examples_for(make(kind), count=40)).sample(6)
    for i, row in enumerate(chosen):
        assert feed.swept() * i // 6 <= row < feed.swept() * (i + 1) // 6
    few = list(feed.sweep(few=3))
    assert [batch.units for batch in few] == [2, 2, 2]
    every = [batch.digest for batch in feed.sweep()]
    assert [batch.digest for batch in feed.sweep(few=99)] == every
    assert feed.swept(3) == 6
    assert feed.swept(99) == feed.swept()


def test_sweep_of_few_batches_is_not_of_the_longest_documents():
    """Best fit puts the longest documents into the first rows: these alone say nothing of the rest."""
    draw = np.random.default_rng(3)
    documents = [draw.integers(8, 40, n) for n in np.minimum(draw.geometric(0.1, 1500) + 1, 60)]
    feed = feed_for("causal", "packed", length=64, batch=4, examples=Examples.of({"tokens": documents}))

    def documents_per_row(batches):
        return np.mean([batch.inputs["segments"].max(1).mean() for batch in batches])

    whole, first = documents_per_row(feed.sweep()), documents_per_row([next(iter(feed.sweep()))])
    assert first < 0.5 * whole
    for few in (2, 4, 8, 16):
        assert abs(documents_per_row(feed.sweep(few=few)) - whole) < 0.1 * whole
