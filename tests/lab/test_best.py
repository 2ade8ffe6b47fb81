"""The best of a sweep, on made-up runs."""

from dataclasses import replace

from anyformer.lab.results import Results
from anyformer.lab.statistics.best import best_of
from tests.lab.studies import variant

NOISE = (0.0, 0.01, -0.01, 0.005, -0.005)


def swept(losses, key="lr", **more) -> Results:
    """A study over one number: the mean loss at each value, with five seeds."""
    variants = [
        variant("base" if not i else f"{key}={value:g}", [loss + noise * (1 + i / 10) for noise in NOISE],
                changes={key: value})
        for i, (value, loss) in enumerate(losses.items())
    ]  # fmt: skip
    return Results(title="made up", variants=variants, **more)


def test_best_inside_of_the_range_has_its_interval_and_no_warning():
    found = best_of(swept({1.0: 3.2, 0.5: 3.4, 2.0: 3.0, 4.0: 3.3}), ["lr"])
    assert found is not None
    assert (found.name, found.values, found.alike, found.ends) == ("lr=2", {"lr": 2.0}, [], {})
    assert found.words[0].startswith("Best: lr=2, with a held-out loss of 3.000 +- 0.0")
    assert found.words[1:] == ["All 3 others are worse beyond chance."]


def test_best_that_others_are_close_to_says_over_which_range_it_can_not_be_told():
    found = best_of(swept({1.0: 3.001, 0.5: 3.4, 2.0: 3.0, 4.0: 3.3}), ["lr"])
    assert found is not None
    assert found.alike == ["base"]
    assert found.between == {"lr": (1.0, 2.0)}
    assert "From lr=1 to 2 these runs can't tell which is better." in found.words


def test_best_at_an_end_of_the_range_warns():
    found = best_of(swept({1.0: 3.2, 0.5: 3.0, 2.0: 3.4}), ["lr"])
    assert found is not None
    assert found.ends == {"lr": "smallest"}
    assert "lr=0.5 is the smallest value that was tried" in found.words[-1]


def test_best_ignores_what_lost_a_run_and_names_of_kinds_have_no_ends():
    results = swept({1.0: 3.2, 2.0: 3.0})
    lost = variant("lr=4", [1.0, 1.0, 1.0, 1.0, "diverged"], changes={"lr": 4.0})
    found = best_of(replace(results, variants=[*results.variants, lost]), ["lr"])
    assert found is not None
    # What was tried and lost is no reason to look beyond it.
    assert (found.name, found.ends) == ("lr=2", {})
    kinds = Results(title="made up", variants=[
        variant("base", [3.0, 3.1], changes={"ffn.kind": "relu"}), variant("b", [2.0, 2.1], changes={"ffn.kind": "gelu"}),
    ])  # fmt: skip
    found = best_of(kinds, ["ffn.kind"])
    assert found is not None
    assert (found.values, found.ends) == ({"ffn.kind": "gelu"}, {})


def test_best_of_one_seed_says_that_chance_is_unknown_and_of_none_there_is_none():
    one = Results(title="made up", variants=[variant("base", [3.0], changes={"lr": 1.0}),
                                             variant("lr=2", [2.0], changes={"lr": 2.0})])  # fmt: skip
    found = best_of(one, ["lr"])
    assert found is not None
    assert "With one seed nothing says how much of that is chance; give more seeds." in found.words
    assert best_of(Results(title="", variants=[variant("base", ["failed"])]), ["lr"]) is None
