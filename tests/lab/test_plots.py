"""Plots of a study: what they are made of, that they can be read, and that they don't depend on chance or global state."""

import itertools
import math
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from anyformer.lab.plots import draw as plots
from anyformer.lab.plots import palette
from anyformer.lab.plots.figure import fit_name, robust_span
from anyformer.lab.results import Results
from anyformer.lab.statistics import curves, series
from tests.lab.synthetic import STEPS, TOKENS, many, study, sweep, variant

LENGTHS = (128, 256, 512, 1024)
# Machado et al. 2009, severity 1.0, on linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def named(results, name):
    return results.variant(name)


def values_at(variant, step):
    return {
        run.seed: loss for run in variant.runs if run.status == "finished" for at, _, loss in run.curve if at == step
    }


def test_band_of_a_variant_is_the_mean_and_the_range_of_its_finished_runs():
    variant = named(study(), "post-norm")
    band = curves.band(variant, "tokens")
    assert band.seeds == 4, "one of five diverged"
    for place in (0, 20, 49):
        found = list(values_at(variant, round(STEPS * (place + 1) / 50)).values())
        assert band.mean[place] == pytest.approx(sum(found) / 4)
        assert (band.low[place], band.high[place]) == (min(found), max(found))


@pytest.mark.parametrize("axis", curves.AXES)
def test_curve_along_an_axis_ends_where_the_run_does(axis):
    variant = named(study(), "alibi")
    run = variant.runs[2]
    ends = {"tokens": run.tokens, "flops": variant.train_flops, "time": run.seconds}
    found = curves.curve(variant, run, axis)
    assert found.x[-1] == pytest.approx(ends[axis])
    assert found.x[24] == pytest.approx(ends[axis] / 2), "half of the steps"


def test_curve_of_a_run_that_stopped_early_counts_the_flops_of_its_steps_only():
    variant = named(study(), "post-norm")
    lost = variant.lost[0]
    assert curves.curve(variant, lost, "flops").x[-1] == pytest.approx(variant.train_flops * lost.steps / STEPS)
    assert curves.curve(variant, lost, "time").x[-1] == pytest.approx(lost.seconds)


def test_curve_leaves_out_points_without_a_finite_loss():
    variant = named(study(), "base")
    broken = [(step, tokens, None if step == 500 else loss) for step, tokens, loss in variant.runs[0].curve]
    found = curves.curve(variant, replace(variant.runs[0], curve=broken), "tokens")
    assert len(found.x) == 49
    assert 500 not in found.steps


def test_difference_of_curves_is_paired_by_seed():
    results = study()
    variant, base = named(results, "swiglu"), named(results, "base")
    band = curves.difference(variant, base, "tokens")
    ours, theirs = values_at(variant, STEPS), values_at(base, STEPS)
    apart = [ours[seed] - theirs[seed] for seed in ours]
    assert band.mean[-1] == pytest.approx(sum(apart) / 5)
    assert band.high[-1] - band.low[-1] == pytest.approx(max(apart) - min(apart))


def test_difference_of_curves_with_other_points_stays_where_both_have_values():
    results = study()
    base = named(results, "base")
    coarse = replace(base, runs=[replace(run, curve=run.curve[9::10]) for run in base.runs])
    band = curves.difference(base, coarse, "tokens")
    assert (band.x[0], band.x[-1]) == (200 * TOKENS, 1000 * TOKENS)
    assert band.mean[[0, -1]] == pytest.approx(0, abs=1e-12)


def test_difference_of_curves_without_a_common_seed_is_none():
    base = named(study(), "base")
    other = replace(base, runs=[replace(run, seed=run.seed + 10) for run in base.runs])
    assert curves.difference(other, base, "tokens") is None


def test_axes_of_a_study_without_times_leave_time_out():
    results = study()
    timeless = [replace(v, runs=[replace(run, seconds=0.0) for run in v.runs]) for v in results.variants]
    assert curves.axes(results) == ["tokens", "flops", "time"]
    assert curves.axes(replace(results, variants=timeless)) == ["tokens", "flops"]
    assert curves.axes(Results(title="none")) == []


@pytest.mark.parametrize("count", [1, 2, 119, 120, 121, 5000])
def test_thinned_places_keep_both_ends(count):
    places = curves.thin(count, 120)
    assert len(places) == min(count, 120)
    assert (places[0], places[-1]) == (0, count - 1)
    assert places == sorted(set(places))


def test_final_values_are_sorted_with_the_best_first():
    results = study()
    assert [row.name for row in series.finals(results)] == ["swiglu", "qk-norm", "base", "alibi", "nope", "post-norm"]
    speeds = series.finals(results, "decode_tokens_per_second")
    assert [row.name for row in speeds][:2] == ["nope", "base"]
    assert series.finals(results, "bleu") == []


def test_interval_around_the_base_is_clear_of_it_exactly_if_the_difference_is_marked():
    for results, metric in itertools.product((study(), many()), ("loss", "train_tokens_per_second")):
        rows = series.finals(results, metric)
        base = next(row.estimate.mean for row in rows if row.name == "base")
        judged = [row for row in rows if row.comparison is not None and row.comparison.simultaneous is not None]
        assert len(judged) > 3
        for row in judged:
            low, high = series.around_base(row, base)
            assert (base <= low or high <= base) == row.comparison.marked


def test_missing_values_say_how_the_runs_were_lost():
    results = study()
    none = replace(results.variants[1], runs=[replace(run, status="out of memory") for run in results.variants[1].runs])
    found = series.missing(replace(results, variants=[results.variants[0], none]))
    assert found == {"alibi": "ran out of memory in 5 of 5 seeds"}


def test_costs_that_do_not_differ_are_left_out():
    results = study()
    assert [cost.key for cost in series.costs(results)] == [series.DECODE, series.KV]
    same = [replace(v, kv_bytes_per_token=768.0) for v in results.variants]
    assert [cost.key for cost in series.costs(replace(results, variants=same))] == [series.DECODE]
    silent = [replace(v, kv_bytes_per_token=None, speeds={}) for v in results.variants]
    assert series.costs(replace(results, variants=silent)) == []


def test_front_holds_what_no_other_variant_beats():
    results = study()
    # Slower than the base are all but nope, and only swiglu is better for it.
    assert set(series.front(results, series.costs(results)[0])) == {"swiglu", "nope", "base"}
    assert set(series.front(results, series.costs(results)[1])) == {"swiglu", "qk-norm"}


def test_lengths_are_read_from_the_names_of_metrics():
    lines = series.by_length(study(lengths=LENGTHS))
    assert {line.label: line.x for line in lines}["alibi"] == [128, 256, 512, 1024]
    assert series.by_length(study()) == series.by_length(study(lengths=(512,))) == []


def test_sweep_over_numbers_has_a_line_for_each_combination_of_other_changes():
    (found,) = series.sweeps(sweep())
    assert (found.key, found.log, [line.label for line in found.lines]) == ("lr", True, ["width=256", "width=512"])
    assert found.lines[0].x == [0.1, 0.3, 1.0, 3.0, 10.0]
    base = list(named(sweep(), "base").values("loss").values())
    assert found.base.mean == pytest.approx(sum(base) / len(base))


@pytest.mark.parametrize(
    ("values", "keys"),
    [((1, 2, 3), ["depth"]), ((1, 2), []), ((True, False, 3), []), ((1, 2, "three"), []), ((2, 2, 2), [])],
)
def test_sweep_needs_three_different_numbers(values, keys):
    variants = [variant(f"v{i}", 0.0, changes={"depth": value}, seeds=2) for i, value in enumerate(values)]
    assert [each.key for each in series.sweeps(replace(study(), variants=variants))] == keys


def test_sweep_over_near_numbers_is_linear():
    variants = [variant(f"v{n}", 0.0, changes={"depth": n}, seeds=2) for n in (2, 4, 6)]
    assert [each.log for each in series.sweeps(replace(study(), variants=variants))] == [False]


def test_robust_span_is_not_pressed_together_by_one_value_far_off():
    near = [3.40, 3.41, 3.42, 3.43, 3.44]
    low, high = robust_span([*near, 9.0], [])
    assert low < 3.40
    assert 3.44 < high < 3.6
    assert robust_span([3.5], [3.4, 3.6])[1] > 3.6


@pytest.mark.parametrize(
    ("name", "fits"), [("short", "short"), ("a\nb  c", "a b c"), ("x" * 60 + "end", "x" * 8 + "..." + "x" * 5 + "end")]
)
def test_long_names_are_cut_in_the_middle(name, fits):
    assert fit_name(name, 20) == fits


def test_styles_of_thirty_variants_are_all_different():
    looks = [palette.style(place) for place in range(30)]
    assert len({(look.colour, look.dash) for look in looks}) == 30
    assert len({look.dash for look in looks[:5]}) == 5, "not by colour alone"
    assert len({look.mark for look in looks[:6]}) == 6


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(
    "colours", [(palette.INK, *palette.COLOURS), ("#eef1f7", *palette.DARK)], ids=["light", "dark"]
)
def test_colours_differ_for_every_kind_of_colour_vision(colours, vision):
    def lab(colour):
        srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
        xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
        f = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 0.008856))
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    places = [lab(colour) for colour in colours]
    assert min(math.dist(a, b) for a, b in itertools.combinations(places, 2)) >= 21


def test_plots_of_a_study_are_written_as_png_and_svg_alike_each_time(tmp_path):
    results = study(lengths=LENGTHS, seeds=3)
    before = "matplotlib.pyplot" in sys.modules
    files = plots.draw_all(results, tmp_path / "new" / "folder")
    names = ["loss-by-tokens", "loss-by-flops", "loss-by-time", "final", "quality-by-decode-cost", "loss-by-length"]
    assert [file.name for file in files] == [f"{name}.{end}" for name in names for end in ("png", "svg")]
    assert ("matplotlib.pyplot" in sys.modules) == before
    for file in files:
        if file.suffix == ".png":
            assert file.read_bytes().startswith(b"\x89PNG")
        else:
            assert ET.fromstring(file.read_text(encoding="utf-8")).tag.endswith("svg")
    again = plots.draw_all(results, tmp_path / "again")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


def test_plots_of_a_sweep_have_a_file_named_after_the_key(tmp_path):
    names = [file.name for file in plots.draw_all(sweep(seeds=2), tmp_path)]
    assert {"sweep-lr.png", "sweep-lr.svg"} <= set(names)


def texts_of(figure):
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


@pytest.mark.parametrize("make", [study, many], ids=["six", "twenty"])
def test_legend_of_curves_covers_no_data(make):
    figure = plots.curves_figure(make(), "tokens")
    figure.draw_without_rendering()
    left = figure.legends[0].get_window_extent().x0
    assert all(axes.get_window_extent().x1 < left for axes in figure.axes)


def test_curves_of_twenty_variants_name_the_base_the_best_and_the_worst():
    results = many()
    ranked = [row.name for row in series.finals(results)]
    labels = [text.get_text().split("\n")[0] for text in plots.curves_figure(results, "tokens").legends[0].get_texts()]
    assert labels[0] == fit_name(ranked[0])
    assert {"base", fit_name(ranked[-1]), "12 others"} <= set(labels)
    assert len(labels) == plots.MOST_LINES


def test_final_plot_of_twenty_variants_lists_them_all_in_order():
    results = many()
    figure = plots.finals_figure(results)
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown == [fit_name(row.name) for row in series.finals(results)]


def test_final_plot_says_what_the_test_says_and_which_runs_are_missing():
    words = texts_of(plots.finals_figure(study()))
    assert sum(text.endswith("  better") for text in words) == 1
    assert sum(text.endswith("  worse") for text in words) == 2
    assert "diverged in 1 of 5 seeds" in " ".join(words)


def test_labels_of_a_cost_plot_do_not_cover_each_other():
    figure = plots.costs_figure(many())
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) >= 3
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_names_with_signs_of_formulas_are_drawn_as_they_are(tmp_path):
    results = study(lengths=LENGTHS, seeds=2)
    names = ["base", "$x_{2$", "_$a$ $b$", "\\frac{", "<b>&", "/../up"]
    variants = [replace(v, name=name) for v, name in zip(results.variants, names, strict=True)]
    results = replace(results, variants=variants, title="$\\alpha$ costs $5", claims=[])
    for figure in (plots.curves_figure(results, "tokens"), plots.finals_figure(results), plots.lengths_figure(results)):
        figure.savefig(tmp_path / "figure.svg")
        assert {"$\\alpha$ costs $5", "_$a$ $b$"} <= {line for text in texts_of(figure) for line in text.split("\n")}


def test_key_of_a_sweep_that_is_no_file_name_stays_inside_the_folder(tmp_path):
    changes = ({"../a b/c": n} for n in (1, 2, 3))
    variants = [variant(f"v{i}", 0.0, changes=each, seeds=2) for i, each in enumerate(changes)]
    files = plots.draw_all(replace(study(), variants=variants), tmp_path / "plots")
    assert {file.parent for file in files} == {tmp_path / "plots"}
    assert all(file.is_file() for file in files)


def test_plots_of_a_study_without_numbers_are_none(tmp_path):
    results = study()
    empty = [
        replace(v, speeds={}, runs=[replace(run, status="failed", metrics={}, curve=[]) for run in v.runs])
        for v in results.variants
    ]
    assert plots.draw_all(replace(results, variants=empty), tmp_path) == []


def test_curves_of_a_variant_whose_runs_were_all_lost_are_named():
    results = study()
    lost = replace(results.variants[1], runs=[replace(run, status="diverged") for run in results.variants[1].runs])
    labels = [
        text.get_text()
        for text in plots.curves_figure(replace(results, variants=[results.variants[0], lost]), "tokens")
        .legends[0]
        .get_texts()
    ]
    assert "alibi\nno run finished" in labels
