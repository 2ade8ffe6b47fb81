"""The figure: texts inside of it, none on another, and every kind of spec can be drawn."""

import itertools

import pytest

from anyformer.errors import InputError
from anyformer.explain.costs import machine
from anyformer.explain.figure import make, save
from anyformer.explain.report import report
from tests.contract.draw import draw
from tests.explain.specs import CHANGES, images, spec_named


def texts(figure):
    """Every text that is seen, with its place in pixels."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    found = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    return [(text.get_text(), text.get_window_extent()) for text in found if text.axes is None or shown(text)]


def shown(text):
    """Labels of ticks below the bars are turned off, and those of a drawing have none."""
    ticks = [*text.axes.xaxis.get_ticklabels(), *text.axes.yaxis.get_ticklabels()]
    return text not in ticks or (text in text.axes.yaxis.get_ticklabels() and text.axes.axison)


def assert_readable(figure):
    page = figure.bbox
    found = texts(figure)
    assert len(found) > 10
    for words, box in found:
        assert page.x0 <= box.x0 < box.x1 <= page.x1, words
        assert page.y0 <= box.y0 < box.y1 <= page.y1, words
    for (one, a), (other, b) in itertools.combinations(found, 2):
        # A pixel of air around letters is part of their box.
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, f"{one!r} lies on {other!r}"


def figure_of(spec):
    return make(report(spec, machine("h200"), name="a model"))


@pytest.mark.parametrize("name", CHANGES)
def test_figure_has_no_text_on_another(name):
    assert_readable(figure_of(spec_named(name)))


@pytest.mark.parametrize("seed", [1, 3, 4, 8])
def test_figure_of_a_random_spec_has_no_text_on_another(seed):
    assert_readable(figure_of(draw(seed)))


def test_figure_of_images_has_no_text_on_another():
    assert_readable(figure_of(images()))


def test_overlap_check_catches_a_text_on_another():
    figure = figure_of(spec_named("llama"))
    figure.text(0.03, 0.95, "on the title")
    with pytest.raises(AssertionError, match="lies on"):
        assert_readable(figure)


def test_figure_is_saved_as_png(tmp_path):
    save(report(spec_named("parallel"), machine("h200"), name="x"), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_figure_in_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"write e\.g\. x\.png"):
        save(report(spec_named("llama"), machine("h200"), name="x"), tmp_path / "x.abc")
