"""Figures on a part of the data: against a computation by hand, for every objective, and against the run's own look."""

import math
import warnings

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.dataset import Examples
from anyformer.data.objectives import Objective
from anyformer.data.tokenizer import train_bpe
from anyformer.errors import DataError, InputError
from anyformer.evals import tasks
from anyformer.evals.eval_setup import EvalSetup, open_setup
from anyformer.evals.tasks import counts, measure
from anyformer.train.trainer import Evaluated, Trainer
from tests.data.feeding import examples_for, make, spec_for
from tests.tolerances import TABLE
from tests.train.small_data import text_config, text_data, text_examples, write_data

NEAR = TABLE["single"].limit


def trial_for(kind, *, seed=1, **fields):
    objective = make(kind)
    model = af.build(spec_for(objective), seed=seed)
    given = {
        "model": model, "objective": objective, "examples": examples_for(objective, 13), "learned": None,
        "tokenizer": None, "data": "data", "part": "valid", "length": 32, "batch": 4, "rows": objective.ways[-1],
    }  # fmt: skip
    return EvalSetup(**given | fields)


def learned_for(kind):
    return examples_for(make(kind), 29, seed=3)


@pytest.mark.parametrize("kind", Objective.kinds())
def test_measure_of_every_objective_is_the_mean_over_all_labels_at_once(kind):
    setup = trial_for(kind)
    found = measure(setup)
    feed = setup.feed()
    # All rows as one batch: no mean of means.
    (whole,) = EvalSetup(**vars(setup) | {"batch": feed.rows}).feed().sweep()
    inputs = {name: torch.from_numpy(array) for name, array in whole.inputs.items()}
    with torch.no_grad():
        terms, out = setup.objective.answer(setup.model.eval(), inputs)
    plain = terms.terms.get("cross_entropy", terms.terms.get("squared_error"))
    assert found.labels == int(terms.label_count)
    assert found.loss == pytest.approx(float(plain), rel=NEAR)
    for name, (total, count) in setup.objective.judge(out, inputs).items():
        assert found.figures[name] == pytest.approx(total / count, rel=NEAR)
    assert (found.perplexity is not None) == (setup.model.spec.head.kind == "lm")
    assert found.majority is None
    assert found.unigram is None


@pytest.mark.parametrize("kind", [kind for kind in Objective.kinds() if Objective.named(kind).classes])
def test_measure_of_classes_says_the_majority_and_who_was_taken_for_whom(kind):
    learned, setup = learned_for(kind), trial_for(kind)
    setup = trial_for(kind, learned=learned)
    found, column = measure(setup), setup.objective.classes
    seen = np.concatenate([learned.read(column, i) for i in range(len(learned))])
    most = np.bincount(seen[seen != -100]).argmax()
    asked = np.concatenate([setup.examples.read(column, i) for i in range(len(setup.examples))])
    asked = asked[asked != -100]
    assert found.majority.name == str(most)
    assert found.majority.accuracy == pytest.approx((asked == most).mean())
    assert found.margin == pytest.approx(found.figures["accuracy"] - found.majority.accuracy)
    table = found.classes.confusion_LL
    assert table.sum() == found.labels == len(asked)
    assert table.sum(1).tolist() == np.bincount(asked, minlength=len(table)).tolist()
    assert np.trace(table) / table.sum() == pytest.approx(found.figures["accuracy"])
    told = found.data()
    assert [row["labels"] for row in told["classes"]] == table.sum(1).tolist()
    assert told["majority"]["margin"] == found.margin


def test_measure_of_hidden_tokens_says_the_perplexity_of_a_unigram_on_the_same_labels():
    learned = learned_for("masked")
    setup = trial_for("masked", learned=learned)
    found = measure(setup)
    seen = np.concatenate([learned.read("tokens", i) for i in range(len(learned))])
    chances = (np.bincount(seen, minlength=64) + 1) / (len(seen) + 64)
    labels = np.concatenate([batch.inputs["labels"].ravel() for batch in setup.feed().sweep()])
    labels = labels[labels != -100]
    assert len(labels) == found.labels
    assert found.unigram == pytest.approx(math.exp(-np.log(chances[labels]).mean()))
    assert found.factor == pytest.approx(found.unigram / found.perplexity)


@pytest.mark.parametrize("kind", ["translate", "sequence", "triplet"])
def test_measure_of_a_model_that_learned_from_smoothed_labels_is_of_the_labels_themselves(kind):
    plain, objective = trial_for(kind), make(kind)
    smooth = af.build(spec_for(objective, loss={"label_smoothing": 0.2, "z": 0.1}), seed=1)
    found = measure(trial_for(kind, model=smooth))
    assert found.loss == pytest.approx(measure(plain).loss, rel=NEAR)
    assert smooth.spec.loss.label_smoothing == 0.2


def test_measure_in_rows_of_another_length_reads_the_same_text_in_other_rows():
    setup = trial_for("masked", rows="stream", examples=examples_for(make("masked"), 40))
    long, short = measure(setup), measure(setup, length=8)
    assert (long.length, short.length) == (32, 8)
    assert short.rows > 3 * long.rows
    with pytest.raises(DataError, match="length: 65 is more than the 64 tokens that the spec is made for"):
        measure(setup, length=65)


def test_measure_reports_every_row():
    told = []
    setup = trial_for("sequence")
    measure(setup, report=lambda done, total: told.append((done, total)))
    assert [total for _, total in told] == [13] * len(told)
    assert told[-1][0] == 13


def test_measure_of_damaged_weights_is_refused():
    setup = trial_for("causal")
    with torch.no_grad():
        setup.model.head.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="a loss of nan; are its weights damaged"):
        measure(setup)


def test_counts_of_a_column_do_not_depend_on_how_it_is_read(monkeypatch):
    examples = Examples.of({"tags": [[1, 2, -100, 2], [], [0, 2, 5, 5, 1]]})
    assert counts(examples, "tags", 7).tolist() == [1, 2, 3, 0, 0, 2, 0]
    monkeypatch.setattr(tasks, "CHUNK", 2)
    assert counts(examples, "tags", 7).tolist() == [1, 2, 3, 0, 0, 2, 0]


@pytest.mark.parametrize("changes", [{}, {"stages.spec": {"attention.pattern": "window(4)"}}])
def test_trial_of_a_run_measures_what_the_run_saw_at_its_end(tmp_path, changes):
    data = text_data(tmp_path / "data")
    with Trainer(text_config(data, tmp_path / "run", changes)) as run:
        last = [event for event in run.events() if isinstance(event, Evaluated)][-1]
    with warnings.catch_warnings():
        # That of the last stage, if it is not the one that spec.toml says: the weights know.
        warnings.filterwarnings("ignore", message=".*is not the spec that")
        setup = open_setup(tmp_path / "run", "valid")
    found = measure(setup)
    assert (found.loss, found.labels, found.figures) == (last.loss, last.labels, last.figures)
    assert found.bits_per_byte == last.bits_per_byte


def test_trial_of_a_folder_without_a_config_finds_its_objective_by_model_and_columns(tmp_path):
    data = text_data(tmp_path / "data")
    for kind in ("causal", "masked", "prefix"):
        changes = {"vocab": 32, "ids": {"pad": 0, "bos": 1, "eos": [2]}, "context": 32}
        af.save(af.build(spec_for(make(kind), **changes)), tmp_path / kind)
    for kind in ("causal", "prefix"):
        setup = open_setup(tmp_path / kind, "valid", data=data)
        assert (setup.objective.kind, setup.length, setup.rows) == (kind, 32, "packed")
    with pytest.raises(InputError, match=r"masked: objective\.mask: is missing"):
        open_setup(tmp_path / "masked", "valid", data=data)
    with pytest.raises(InputError, match=r"has no config\.toml that says where its data are; .* --data DIR"):
        open_setup(tmp_path / "causal", "valid")
    with pytest.raises(DataError, match="has no part 'vali'; did you mean 'valid'"):
        open_setup(tmp_path / "causal", "vali", data=data)


def test_trial_of_data_that_another_tokenizer_made_is_refused(tmp_path):
    one, other = (train_bpe([text], 270) for text in ("the cat sat on the mat", "a dog, a dog, a fog"))
    data = write_data(tmp_path / "data", {"valid": text_examples(4)}, one)
    af.save(af.build(spec_for(make("causal"), vocab=270)), tmp_path / "model")
    other.save(tmp_path / "model")
    with pytest.raises(DataError, match="its ids were made by another tokenizer"):
        open_setup(tmp_path / "model", "valid", data=data)
    one.save(tmp_path / "model")
    assert open_setup(tmp_path / "model", "valid", data=data).learned is None


def test_trial_of_a_run_whose_data_moved_away_says_so(tmp_path):
    data = text_data(tmp_path / "data")
    with Trainer(text_config(data, tmp_path / "run", {"stages.steps": 1})) as run:
        list(run.events())
    data.rename(tmp_path / "moved")
    with pytest.raises(InputError, match="which is not there; say where they are with --data DIR"):
        open_setup(tmp_path / "run", "valid")
    assert open_setup(tmp_path / "run", "valid", data=tmp_path / "moved").part == "valid"
