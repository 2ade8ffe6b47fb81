"""report.html: what it says, that it needs nothing else, and that nothing in it can run."""

import base64
import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from anyformer.train.report import About, Report, Series, running_mean, thinned
from anyformer.train.report.chart import Chart, Line, brief, log_ticks, plain, step_labels, tick_labels, ticks
from anyformer.train.report.page import duration, headline, page
from anyformer.train.trainer import Trainer
from tests.train.small_data import text_config, text_data

NASTY = "</pre><script>alert('x')</script> & <img src=http://example.com/x.png>"


def stage(first=0, words="length 8, 2 rows"):
    return SimpleNamespace(first=first, words=words, flops_per_token=1e6)


def about(**more):
    given = {"name": "mine", "total": 20, "params": 1234, "stretches": (stage(),)} | more
    return About(**given)


def step(i, **more):
    return {
        "step": i, "stage": 0, "loss": 4.0 / i, "terms": {"cross_entropy": 4.0 / i, "total": 5.0 / i, "z": 0.1},
        "gradient_norm": 1.0 / i, "rate": 1.0, "tokens": 16 * i, "seconds": 0.5 * i, "skipped": False, "memory": 2**20,
    } | more  # fmt: skip


def look(i, **more):
    return {"step": i, "tokens": 16 * i, "loss": 4.5 / i, "figures": {}, "bits_per_byte": None, "final": False} | more


def filled(folder, steps=20, **more):
    report = Report(folder, about(**more))
    for i in range(1, steps + 1):
        report.log("step", step(i))
        if i % 5 == 0:
            report.log("look", look(i))
            report.log("sample", {"step": i, "text": f"said at {i} {NASTY}"})
    return report


class Tags(HTMLParser):
    """Which elements are there, and whether each is closed in its turn."""

    VOID = ("meta",)

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(text):
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def test_report_page_is_well_formed_and_needs_no_network(tmp_path):
    text = page(filled(tmp_path, summary="A decoder.", config="[run]", spec="width = 16"))
    tags = read(text)
    assert not {"script", "img", "link", "iframe", "object"} & set(tags.seen)
    names = {name for name, _ in tags.attributes}
    assert not {"src", "href", "style"} & names
    assert not any(name.startswith("on") for name in names)
    assert "url(" not in text
    assert "@import" not in text


def test_report_page_allows_its_own_style_and_nothing_else(tmp_path):
    text = page(filled(tmp_path))
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(value for name, value in read(text).attributes if name == "content" and "default-src" in value)
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'"


def test_report_samples_are_text_whatever_they_say(tmp_path):
    said = "".join(read(page(filled(tmp_path))).text)
    assert f"said at 20 {NASTY}" in said


def test_report_shows_curves_samples_architecture_and_facts(tmp_path):
    facts = {"Data": {"fingerprint of train": "abc123"}, "Machine": {"device": "cpu"}}
    said = "".join(read(page(filled(tmp_path, summary="A decoder.", facts=facts, peak=1e9, spec="width = 16"))).text)
    for words in ("Loss", "Learning rate", "Gradient norm", "Speed", "Memory", "Z", "Samples", "A decoder.", "abc123",
                  "width = 16", "MFU", "3.2%", "1.23 k", "held-out loss"):  # fmt: skip
        assert words in said, words


def test_report_without_a_known_peak_says_nothing_of_mfu(tmp_path):
    assert "MFU" not in page(filled(tmp_path))


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([], "loss 0.2 after 20 steps"),
        ([look(20)], "held-out loss 0.2250 after 20 steps"),
        ([look(20, figures={"accuracy": 0.876})], "accuracy 87.6% after 20 steps"),
        ([look(20, figures={"accuracy": 0.876}, bits_per_byte=1.5)], "1.500 bits per byte after 20 steps"),
        ([look(20, loss=None)], "loss 0.2 after 20 steps"),
    ],
    ids=["none", "loss", "accuracy", "bits", "unsound"],
)
def test_report_headline_names_the_result(tmp_path, seen, words):
    report = Report(tmp_path, about())
    for i in range(1, 21):
        report.log("step", step(i))
    for each in seen:
        report.log("look", each)
    assert headline(report) == words


def test_report_of_an_unfinished_run_says_where_it_is(tmp_path):
    assert headline(filled(tmp_path, steps=10)).endswith("at step 10 of 20")


def test_report_is_written_at_each_save_and_drawn_at_the_end(tmp_path):
    report = filled(tmp_path, steps=10, picture=True)
    report.log("save", {"step": 10, "seconds": 0.1})
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    for i in range(11, 21):
        report.log("step", step(i))
    report.end()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["loss.png", "report.html"]
    assert "after 20 steps" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_report_of_nothing_is_not_written(tmp_path):
    Report(tmp_path, about()).end()
    assert list(tmp_path.iterdir()) == []


def test_report_of_a_resumed_run_has_what_was_measured_before(tmp_path):
    lines = [{"event": "step", **step(i)} for i in range(1, 8)] + [{"event": "look", **look(5)}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = Report(tmp_path, about())
    report.begin("mine", {}, 7)
    report.log("step", step(8))
    assert report.steps.column("step").tolist() == list(range(1, 9))
    assert len(report.looks) == 1


def test_report_with_numbers_that_are_not_finite_is_still_drawn(tmp_path):
    report = Report(tmp_path, about())
    for i in range(1, 21):
        report.log("step", step(i, loss=None if i < 3 else math.inf, gradient_norm=math.nan, skipped=True))
    text = page(report)
    read(text)
    assert "nan" not in re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL).lower()
    assert "left out" in text


def test_report_of_a_real_run_has_its_data_and_machine(tmp_path):
    config = text_config(text_data(tmp_path / "data"), tmp_path / "run")
    with Trainer(config) as run:
        list(run.events())
        fingerprint = run.components.examples.fingerprint
    said = "".join(read((tmp_path / "run" / "report.html").read_text()).text)
    for words in (fingerprint[:16], "packed by best_fit", "of all cells", "torch", "causal", "after 12 steps"):
        assert words in said, words


def test_series_of_many_steps_is_thinned_to_the_same_means():
    steps_N = np.arange(100_000.0)
    points = thinned(steps_N, 2 * steps_N)
    assert len(points) <= 360
    assert all(y == pytest.approx(2 * x) for x, y in points)


def test_series_running_mean_of_a_line_is_the_line():
    values_N = np.arange(500.0)
    assert np.allclose(running_mean(values_N)[10:-10], values_N[10:-10])


def test_series_speed_is_tokens_over_seconds():
    series = Series()
    for i in range(1, 200):
        series.add(step(i))
    assert all(speed == pytest.approx(32.0) for _, speed in series.speed())


def test_series_term_that_appears_later_has_no_number_before():
    series = Series()
    series.add(step(1, terms={}))
    series.add(step(2, terms={"balance": 0.5}))
    assert np.isnan(series.column("balance")[0])
    assert series.column("balance")[1] == 0.5


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1.37, 1.52), (0, 5000), (-3, 4), (2e-9, 3e-9)])
def test_chart_ticks_are_within_the_span_and_few(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    assert all(low <= tick <= high for tick in log_ticks(max(low, 1e-9), high))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("log", [False, True])
def test_chart_labels_both_axes_within_the_drawing(wide, log):
    line = Line(name="a", points=[(1, 2.0), (9, 3.0)], style="train")
    drawn = Chart(title="x", measure="nats < 3", lines=[line], total=10, wide=wide, log=log).svg()
    width, height = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', drawn).groups())
    across = re.search(r'class="across" x="([\d.]+)" y="([\d.]+)"[^>]*>step<', drawn)
    up = re.search(r'class="up" x="([\d.]+)" y="([\d.]+)"[^>]*rotate\(-90 [^>]*>([^<]*)<', drawn)
    assert 0 < float(across[1]) < width
    assert float(across[2]) < height
    assert 0 < float(up[2]) < height
    assert html.unescape(up[3]) == ("nats < 3, log scale" if log else "nats < 3")


def test_chart_of_one_point_and_of_none_is_drawn():
    assert (
        "<circle"
        in Chart(title="x", measure="y", lines=[Line(name="a", points=[(1, 2.0)], style="train")], total=10).svg()
    )
    assert Chart(title="x", measure="y", lines=[Line(name="a", points=[], style="train")], total=10).empty


@pytest.mark.parametrize(("text", "short"), [("3.00 GB", "3 GB"), ("1.50 M", "1.5 M"), ("500 k", "500 k"), ("0", "0")])
def test_chart_labels_lose_noughts_after_the_point(text, short):
    assert brief(text) == short


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.21, "4.2 s"), (42, "42 s"), (185, "3:05 min"), (7800, "2:10 h"), (302400, "3.5 days")]
)
def test_duration_is_in_the_unit_that_people_use(seconds, words):
    assert duration(seconds) == words


SUFFIX = {"k": 1e3, "M": 1e6, "G": 1e9}


def said(label):
    """The number that a label says."""
    text = label.replace(",", "").strip()
    return float(text[:-1]) * SUFFIX[text[-1]] if text[-1] in SUFFIX else float(text)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 3e-4), (0, 1e-3), (0, 2e-5), (3.1, 3.1005), (2.2, 6.3), (9.9999, 10.0001), (0, 12345), (0, 1e6), (-0.5, 0.5),
        (123456.0, 123460.0), (0, 0.05), (1e-7, 9e-7),
    ],
)  # fmt: skip
def test_chart_labels_of_an_axis_are_apart_and_say_where_they_stand(low, high):
    places = ticks(low, high)
    labels = tick_labels(places)
    assert len(set(labels)) == len(labels) > 2
    each = places[1] - places[0]
    for label, place in zip(labels, places, strict=True):
        assert abs(said(label) - place) < 0.01 * each
        assert len(label) <= 9, "there is room for so many at the side"
    # One way to write a number on one axis.
    assert len({"e-" in label for label in labels if said(label)}) == 1
    assert len({label[-1].isalpha() for label in labels if said(label)}) == 1


@pytest.mark.parametrize("total", [7, 100, 5000, 12345, 99999, 150000, 10**6, 2500000])
def test_chart_labels_of_steps_are_written_in_one_way(total):
    places = ticks(0, total, 6)
    labels = step_labels(places)
    assert [said(label) for label in labels] == places
    assert len({label[-1].isalpha() for label in labels if said(label)}) == 1


def test_chart_of_a_narrow_log_span_has_two_labels_that_differ():
    for low, high in ((2e-4, 3e-4), (1.2, 1.9), (7.0, 9.0), (1e-4, 1e-2)):
        labels = [brief(plain(value)) for value in log_ticks(low, high)]
        assert len(set(labels)) == len(labels) >= 2
        assert not any("e-0" in label for label in labels)
