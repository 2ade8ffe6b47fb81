"""Objectives: what each puts into its rows, against closed forms."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anyformer.data.dataset import IGNORE, Examples
from anyformer.data.loader import BatchLoader
from anyformer.data.objectives import Objective, Setting
from anyformer.data.objectives.causal import ends_of
from anyformer.data.objectives.pair import shared
from anyformer.data.tokenizer import train_bpe, word_starts
from anyformer.data.tokenizer_training import Training, train_tokenizer
from anyformer.errors import DataError
from anyformer.model.model import Output
from anyformer.specs.codec import Problems, read, write
from tests.data.feeding import INDEX, TEXT, VOCAB, examples_for, feed_for, make, model_for, spec_for, tensors
from tests.tolerances import assert_close


def one(kind, columns, length=24, **fields):
    """The inputs of the only row that some columns become, beside the feed."""
    objective = make(kind, **fields)
    spec = spec_for(objective)
    feed = BatchLoader(
        Examples.of(columns), objective, spec=spec, length=length, batch=1, seed=0, rows="padded", multiple=1
    )
    return {name: array[0].tolist() for name, array in feed.batch(0).inputs.items()}


@pytest.mark.parametrize("kind", Objective.kinds())
def test_objective_written_as_a_table_reads_back_equal(kind):
    objective = make(kind)
    problems = Problems()
    assert read(Objective, write(objective), "objective", problems) == objective
    assert read(Objective, {"kind": kind, "no_such_field": 1}, "objective", problems) is not None
    assert problems.lines[0].startswith("objective.no_such_field: is unknown")


@pytest.mark.parametrize("kind", Objective.kinds())
def test_objective_that_fits_nothing_names_columns_topology_and_head(kind):
    objective = make(kind)
    assert objective.problems(spec_for(objective), examples_for(objective)) == []
    others = [k for k in Objective.kinds() if not set(Objective.named(k).heads) & set(objective.heads)]
    spec = spec_for(make(others[0])).vary({"head.kind": "none"})
    found = dict(objective.problems(spec, Examples.of({"text": [[1]]})))
    assert repr(objective.columns[-1]) in found["data"]
    assert f"needs {' or '.join(objective.heads)}, not 'none'" in found["head.kind"]
    wrong = {"decoder", "encoder", "encoder-decoder"} - set(objective.topologies)
    for topology in wrong:
        other = spec_for(make("causal")).vary({"topology": topology})
        assert "topology" in dict(objective.problems(other, examples_for(objective)))


def test_objective_with_more_classes_than_the_head_names_both():
    examples = Examples.of({"tokens": [[8]], "label": [[0]]}, names={"label": ("a", "b", "c", "d")})
    objective = make("sequence")
    found = dict(objective.problems(spec_for(objective), examples))
    assert found == {"head.labels": "3 are fewer than the 4 classes of the data (a, b, c, d)"}


def test_causal_rows_are_documents_between_their_ends():
    row = one("causal", {"tokens": [[8, 9, 10]]})
    assert row["input_ids"] == [1, 8, 9, 10, 2]
    assert row["labels"] == [IGNORE, 8, 9, 10, 2]


@pytest.mark.parametrize(
    ("ids", "stream", "packed"),
    [
        ({}, (None, None), (None, None)),
        ({"ids.eos": [2]}, (None, 2), (None, 2)),
        ({"ids.bos": 1}, (1, None), (1, None)),
        ({"ids.bos": 1, "ids.eos": [2, 3]}, (1, 2), (1, 2)),
        ({"ids.bos": 2, "ids.eos": [2]}, (2, None), (2, 2)),
    ],
)
def test_causal_ends_are_those_that_the_spec_has(ids, stream, packed):
    spec = spec_for(make("causal")).vary({"ids.bos": None, "ids.eos": []} | ids)
    assert (ends_of(spec, stream=True), ends_of(spec, stream=False)) == (stream, packed)


def test_causal_bits_per_byte_count_the_tokens_of_the_text():
    examples = Examples.of({"tokens": [[8, 9, 10], [11]]}, bytes=16)
    assert make("causal").bits_per_byte(float(np.log(2)), examples) == pytest.approx(4 / 16)
    assert make("causal").bits_per_byte(1.0, Examples.of({"tokens": [[8]]})) is None
    assert make("masked").bits_per_byte(1.0, examples) is None


def test_causal_accuracy_compares_each_answer_with_the_next_token():
    inputs = {"labels": torch.tensor([[IGNORE, 1, 2, 0], [1, 1, IGNORE, 2]])}
    logits = F.one_hot(torch.tensor([[1, 0, 0, 2], [1, 2, 0, 1]]), 3).double()
    out = Output(hidden=logits, logits=logits)
    assert make("causal").judge(out, inputs) == {"accuracy": (2.0 + 1.0, 5.0)}
    assert make("tag").judge(out, inputs) == {"accuracy": (1.0, 6.0)}
    assert make("causal").judge(Output(hidden=logits), inputs) == {}


def test_prefix_labels_begin_after_the_prefix_of_the_pattern():
    row = one("prefix", {"tokens": [[8, 9, 10, 11]]})
    assert row["labels"] == [IGNORE, IGNORE, IGNORE, 10, 11, 2]
    assert "objective.kind" in dict(make("causal").problems(spec_for(make("prefix")), examples_for(make("causal"))))
    found = dict(make("prefix").problems(spec_for(make("causal")), examples_for(make("prefix"))))
    assert "causal | prefix(32)" in found["attention.pattern"]


@cache
def setting_for(objective):
    return Setting(spec=spec_for(objective), length=64)


def dressed(objective, ids, key=(0,)):
    return objective.to_inputs(np.array(ids), setting_for(objective), key)


def test_masked_tokens_have_the_shares_that_were_asked_for():
    objective = make("masked")
    ids = np.tile(np.arange(8, TEXT), 5)
    kept = hidden = other = 0
    for key in range(400):
        cells = dressed(objective, ids, (3, key))
        chosen = cells["labels"] != IGNORE
        assert chosen.sum() == round(0.15 * len(ids))
        assert not chosen[[0, -1]].any()
        original = np.concatenate([[5], ids, [6]])
        assert np.array_equal(cells["labels"][chosen], original[chosen])
        assert np.array_equal(cells["input_ids"][~chosen], original[~chosen])
        now, was = cells["input_ids"][chosen], original[chosen]
        hidden += int((now == 4).sum())
        kept += int((now == was).sum())
        other += int(((now != was) & (now != 4)).sum())
    # A random token is the mask or the old one in 2 of VOCAB cases.
    total = hidden + kept + other
    wanted = np.array([0.8 + 0.1 / VOCAB, 0.1 + 0.1 / VOCAB, 0.1 - 0.2 / VOCAB]) * total
    chi_square = float(((np.array([hidden, kept, other]) - wanted) ** 2 / wanted).sum())
    assert total == 400 * 24
    assert chi_square < 13.8, "beyond what two degrees of freedom give in 999 of 1000 cases"


def test_masked_tokens_are_drawn_anew_each_epoch_and_the_same_in_any_row():
    # One document: every step is an epoch.
    examples = Examples.of({"tokens": [list(range(8, 38))]})
    feed = feed_for("masked", "padded", length=40, batch=1, multiple=40, examples=examples)
    assert len({feed.batch(step).digest for step in range(5)}) == 5
    packed = feed_for("masked", "packed", length=40, batch=1, examples=examples)
    masks = [f.batch(3).inputs["labels"][0] for f in (feed, packed)]
    assert np.array_equal(*masks)


@pytest.mark.parametrize("seed", range(8))
def test_masked_whole_words_are_chosen_together(seed):
    starts = np.zeros(VOCAB, bool)
    starts[8:20] = True
    objective = make("masked", whole_word=True, share=0.3).knowing(starts)
    draw = np.random.default_rng(seed)
    words = [[int(draw.integers(8, 20)), *draw.integers(20, TEXT, draw.integers(4)).tolist()] for _ in range(20)]
    ids = [i for word in words for i in word]
    chosen = dressed(objective, ids, (seed,))["labels"][1:-1] != IGNORE
    place = 0
    for word in words:
        assert len(set(chosen[place : place + len(word)].tolist())) == 1
        place += len(word)
    assert 1 <= chosen.sum() <= round(0.3 * len(ids))


def test_masked_whole_words_without_a_tokenizer_are_refused():
    found = dict(make("masked", whole_word=True).problems(spec_for(make("masked")), examples_for(make("masked"))))
    assert "not known which tokens begin a word" in found["objective.whole_word"]


def test_word_starts_of_trained_tokenizers_follow_their_marks():
    texts = ["the cat sat on the mat, the cats sat", "unhappiness unhappily happily the cat"] * 20
    pieces = train_tokenizer(lambda: texts, Training(kind="wordpiece", vocab=60))
    starts = word_starts(pieces)
    encoded = pieces.encode("catsonmat the")
    spelled = [pieces.inner.id_to_token(i) for i in encoded]
    assert [bool(starts[i]) for i in encoded] == [not name.startswith("##") for name in spelled]
    assert not all(starts[encoded])
    made = train_bpe(texts, 300)
    starts = word_starts(made)
    for text, wanted in ((" cat", True), (",", True), ("cat", False), ("\n", True)):
        assert bool(starts[made.encode(text)[0]]) is wanted, text
    assert len(starts) == made.vocab


def test_masked_ready_takes_its_ids_from_the_data():
    made = train_bpe(["some words"], 300)
    objective = Objective.named("masked")(whole_word=True, sep=7).ready(INDEX, made)
    assert (objective.mask, objective.cls, objective.sep) == (4, 5, 7)
    assert np.array_equal(objective.word_starts, word_starts(made))
    assert objective == replace(objective)


def noise_of_t5(length, density=0.15, mean=3.0):
    """Hidden tokens and spans by the arithmetic of random_spans_noise_mask."""
    noise = min(max(round(length * density), 1), length - 1)
    return noise, max(round(noise / mean), 1)


def test_span_hides_as_much_as_t5_does():
    objective = make("span")
    lengths = np.arange(2, 600)
    noise, spans = objective.hidden(lengths)
    assert list(zip(noise.tolist(), spans.tolist(), strict=True)) == [noise_of_t5(n) for n in lengths.tolist()]
    # The lengths of the paper's setting: 568 tokens become 512, and the target 114.
    cells = objective.cells(np.int64(568), Setting(spec=spec_for(objective), length=512))
    assert {lane: int(n) for lane, n in cells.items()} == {"": 512, "decoder_": 114}
    wide = make("span", sentinels=tuple(range(64)))
    assert wide.max_tokens(Setting(spec=spec_for(objective), length=512)) == 568


@pytest.mark.parametrize("length", [1, 2, 3, 7, 30, 63])
def test_span_source_and_target_together_are_the_text(length):
    objective = make("span")
    text = np.random.default_rng(length).integers(8, TEXT, length)
    for key in range(20):
        cells = dressed(objective, text, (key,))
        source, target = cells["input_ids"].tolist(), cells["labels"].tolist()
        assert source[-1] == target[-1] == 2
        parts = {}
        for i in target[:-1]:
            if i in INDEX.sentinels:
                parts[i] = []
            else:
                parts[list(parts)[-1]].append(i)
        assert list(parts) == list(INDEX.sentinels[: len(parts)])
        assert [i for s in source[:-1] for i in parts.get(s, [s])] == text.tolist()
        noise, spans = objective.hidden(length)
        assert (sum(map(len, parts.values())), len(parts)) == (noise, spans)
        assert all(parts.values())


def test_span_divisions_are_all_equally_likely():
    objective = make("span", share=0.5, mean=2.5)
    assert tuple(int(n) for n in objective.hidden(10)) == (5, 2)
    seen = {}
    for key in range(800):
        cells = dressed(objective, range(8, 18), (key,))
        seen[tuple(cells["input_ids"])] = seen.get(tuple(cells["input_ids"]), 0) + 1
    # 4 places to divide what is kept, 4 to divide what is hidden.
    assert len(seen) == 16
    assert sum((n - 50) ** 2 / 50 for n in seen.values()) < 37.7, "999 of 1000 cases, 15 degrees of freedom"


def test_span_sentinels_count_down_from_the_top_unless_they_are_named():
    objective = Objective.named("span")(reserved=10)
    cells = dressed(objective, [*range(8, 38)] * 2)
    assert [i for i in cells["labels"].tolist() if i > TEXT] == [63, 62, 61]
    with pytest.raises(DataError, match="token 60 of the text is a sentinel"):
        dressed(objective, [8, 60, 9])
    with pytest.raises(DataError, match=r"have \d+ hidden spans, and there are 1 sentinels"):
        Objective.named("span")(reserved=1).max_tokens(Setting(spec=spec_for(objective), length=64))


def test_translate_rows_end_both_sides_and_leave_out_what_is_too_long():
    row = one("translate", {"source": [[8, 9]], "target": [[10, 11, 12]]})
    assert (row["input_ids"], row["labels"]) == ([8, 9, 2], [10, 11, 12, 2])
    assert row["attention_mask"] == [1, 1, 1]
    assert row["decoder_attention_mask"] == [1, 1, 1, 1]
    long = Examples.of({"source": [[8] * 30, [8], []], "target": [[9], [9], [9]]})
    feed = feed_for("translate", "packed", examples=long)
    assert (feed.rows, feed.left_out) == (1, 2)
    with pytest.raises(DataError, match="example 0 takes 31 cells, and a row has 24"):
        one("translate", {"source": [[8] * 30], "target": [[9]]}, long="refuse")


def test_sequence_rows_are_framed_and_cut_at_their_end():
    columns = {"tokens": [list(range(8, 38))], "label": [[2]]}
    row = one("sequence", columns, length=6)
    assert (row["input_ids"], row["labels"]) == ([5, 8, 9, 10, 11, 6], 2)
    with pytest.raises(DataError, match="none of 1 examples"):
        one("sequence", columns, length=6, long="skip")
    with pytest.raises(DataError, match=r"too long for|takes 32 cells"):
        one("sequence", columns, length=6, long="refuse")
    with pytest.raises(DataError, match="'sequence'; give at least 3"):
        one("sequence", columns, length=2)
    with pytest.raises(DataError, match=r"labels: 7 at \(0,\) is not among the 3"):
        one("sequence", {"tokens": [[8]], "label": [[7]]})
    with pytest.raises(DataError, match="'label' must hold one whole number"):
        one("sequence", {"tokens": [[8]], "label": [[0, 1]]})


def test_pair_rows_hold_both_texts_with_their_types():
    row = one("pair", {"a": [[8, 9]], "b": [[10, 11, 12]], "label": [[1]]})
    assert row["input_ids"] == [5, 8, 9, 6, 10, 11, 12, 6]
    assert row["token_types"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert row["labels"] == 1
    cut = one("pair", {"a": [[8] * 30], "b": [[9, 10]], "label": [[1]]}, length=10)
    assert cut["input_ids"] == [5, 8, 8, 8, 8, 8, 6, 9, 10, 6]


@pytest.mark.parametrize("room", [1, 5, 8])
def test_pair_that_is_too_long_gives_up_most_of_the_longer_text(room):
    for a in range(1, 9):
        for b in range(1, 9):
            first, second = shared(a, b, room)
            assert first + second == min(a + b, room)
            assert first <= a
            assert second <= b
            # Only a text that was cut is shorter than it was, and it is not shorter than the other by more than one.
            assert first == a or first >= second - 1
            assert second == b or second >= first - 1


def test_triplet_loss_is_the_softmax_over_its_two_rows():
    feed = feed_for("triplet", "padded")
    batch = feed.batch(0)
    assert batch.inputs["input_ids"].shape[0] == 2 * batch.units == 8
    model, inputs = model_for(feed), tensors(batch)
    terms, out = feed.objective.answer(model, inputs)
    score = out.logits.reshape(4, 2)
    labels = inputs["labels"]
    by_hand = -score.log_softmax(-1)[torch.arange(4), labels].mean()
    assert_close("formula", terms.total, by_hand)
    sums = feed.objective.judge(out, inputs)["accuracy"]
    assert sums == (float((score.argmax(-1) == labels).sum()), 4.0)
    columns = {"a": [[8]], "b": [[9]], "c": [[10]], "label": [[1]]}
    rows = (
        feed_for("triplet", "padded", batch=1, multiple=1, examples=Examples.of(columns)).batch(0).inputs["input_ids"]
    )
    assert rows.tolist() == [[5, 8, 6, 9, 6], [5, 8, 6, 10, 6]]


def test_triplet_loss_with_z_and_smoothing_is_of_its_two_rows_together():
    feed = feed_for("triplet", "padded", changes={"loss": {"z": 0.3, "label_smoothing": 0.2}})
    inputs = tensors(feed.batch(0))
    terms, out = feed.objective.answer(model_for(feed), inputs)
    score = out.logits.reshape(4, 2)
    nll = F.cross_entropy(score, inputs["labels"], label_smoothing=0.2)
    assert_close("formula", terms.total, nll + 0.3 * score.logsumexp(-1).square().mean())


def test_triplet_of_more_logits_than_one_is_refused():
    found = dict(make("triplet").problems(spec_for(make("pair")), examples_for(make("triplet"))))
    assert found["head.labels"] == "a row of a triplet has one logit, not 3; set 1"


def test_tag_rows_ask_only_for_the_first_tokens_of_words():
    row = one("tag", {"tokens": [[8, 9, 10]], "tags": [[2, IGNORE, 0]]})
    assert row["input_ids"] == [5, 8, 9, 10, 6]
    assert row["labels"] == [IGNORE, 2, IGNORE, 0, IGNORE]
    with pytest.raises(DataError, match="example 0 has 2 tokens and 1 tags"):
        one("tag", {"tokens": [[8, 9]], "tags": [[1]]})


def test_regress_loss_is_the_mean_squared_error_of_rows_that_hold_something():
    feed = feed_for("regress", "padded", batch=3)
    model, inputs = model_for(feed), tensors(feed.batch(0))
    terms, out = feed.objective.answer(model, inputs)
    assert_close("formula", terms.total, F.mse_loss(out.logits, inputs["labels"]))
    assert int(terms.label_count) == 6
    inputs["attention_mask"] = inputs["attention_mask"].index_fill(0, torch.tensor([1]), 0)
    terms, out = feed.objective.answer(model, inputs)
    rest = torch.tensor([0, 2])
    assert_close("formula", terms.total, F.mse_loss(out.logits[rest], inputs["labels"][rest]))
    squares, count = feed.objective.judge(out, inputs)["mse"]
    assert (squares / count, count) == (pytest.approx(float(terms.total.detach())), 4.0)


def test_regress_rows_are_steps_of_channels_and_keep_the_latest():
    values = np.arange(12, dtype=np.float32)
    row = one("regress", {"values": [values], "target": [[0.5, 1.5]]})
    assert row["values"] == values.reshape(4, 3).tolist()
    assert row["labels"] == [0.5, 1.5]
    cut = one("regress", {"values": [values], "target": [[0.5, 1.5]]}, length=2, long="cut")
    assert cut["values"] == values.reshape(4, 3)[2:].tolist()
    with pytest.raises(DataError, match="example 0 has 4 values and 1 targets; the spec reads 3"):
        one("regress", {"values": [values[:4]], "target": [[0.5]]})
    assert row["attention_mask"] == [1, 1, 1, 1]
