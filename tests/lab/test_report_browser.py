"""The page of a study in a real browser: it draws, answers, fits narrow and wide screens, and asks nobody for anything."""

import contextlib
import re
import shutil

import pytest

from anyformer.lab.report import write_report
from tests.lab.synthetic import many, study, sweep
from tests.lab.test_report import hostile_study, odd_studies

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("there is no chromium", allow_module_level=True)

ARGS = (
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
ORDER = ["swiglu", "qk-norm", "base", "alibi", "nope", "post-norm"]
"""By the final loss, the best first."""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=list(ARGS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "six": study(lengths=(128, 512, 2048)), "twenty": many(seeds=3), "sweep": sweep(seeds=2), "hostile": hostile_study(),
    }  # fmt: skip
    made |= odd_studies()
    return {name: write_report(results, folder / name.replace(" ", "-")) for name, results in made.items()}


@contextlib.contextmanager
def opened(browser, place, viewport=WIDE, scheme="light", script=True):
    """A page that may say nothing in the console and ask for no other file."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme, java_script_enabled=script)
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(place.as_uri())
    if script:
        page.wait_for_function("document.documentElement.dataset.ready === 'yes'")
    yield page
    assert said == []
    assert asked == [place.as_uri()]
    context.close()


def settle(page):
    """Wait until what was asked for is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def lines(page):
    return page.locator("#curves-plot path.line").count()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["1280", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["six", "twenty", "sweep", "hostile", *odd_studies()])
def test_page_draws_without_an_error_and_never_scrolls_sideways(browser, places, name, viewport, scheme):
    with opened(browser, places[name], viewport, scheme) as page:
        assert page.evaluate("document.documentElement.dataset.error") is None
        assert page.evaluate("document.documentElement.dataset.taken") is None
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        for plot in page.locator(".plot").all():
            assert plot.locator("> svg").count() == 1
            assert plot.locator("> svg.still").count() == 0


def test_page_redraws_when_the_window_becomes_narrow(browser, places):
    with opened(browser, places["six"]) as page:
        page.set_viewport_size(NARROW)
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
        assert float(page.locator("#curves-plot > svg").get_attribute("width")) < NARROW["width"]


def test_page_takes_the_colours_of_the_theme(browser, places):
    seen = []
    for scheme in ("light", "dark"):
        with opened(browser, places["six"], scheme=scheme) as page:
            line = page.locator("#curves-plot path.line.c2").first
            seen.append(
                (
                    line.evaluate("e => getComputedStyle(e).stroke"),
                    page.evaluate("getComputedStyle(document.body).backgroundColor"),
                )
            )
    assert len({stroke for stroke, _ in seen}) == len({paper for _, paper in seen}) == 2


def test_buttons_show_and_hide_variants(browser, places):
    with opened(browser, places["six"]) as page:
        assert lines(page) == 6
        alibi = page.locator("#keys button", has_text="alibi")
        alibi.click()
        settle(page)
        assert (lines(page), alibi.get_attribute("aria-pressed")) == (5, "false")
        alibi.focus()
        page.keyboard.press("Enter")
        settle(page)
        assert (lines(page), alibi.get_attribute("aria-pressed")) == (6, "true")
        page.click("#none")
        settle(page)
        assert lines(page) == 1
        page.locator("#keys button", has_text="base").click()
        settle(page)
        assert "No variant is shown" in page.inner_text("#curves-plot")
        page.click("#all")
        settle(page)
        assert lines(page) == 6


def test_axes_are_switched_between_tokens_flops_and_time(browser, places):
    with opened(browser, places["six"]) as page:
        for axis, words, tick in (
            ("flops", "training FLOPs", "P"),
            ("time", "seconds in training steps", "60"),
            ("tokens", "training tokens", "M"),
        ):
            page.select_option("#x", axis)
            settle(page)
            text = page.locator("#curves-plot > svg").inner_html()
            assert words in text
            assert re.search(rf">[\d. ]*{tick}<", text)


def test_difference_from_the_base_leaves_the_base_out(browser, places):
    with opened(browser, places["six"]) as page:
        page.select_option("#y", "apart")
        settle(page)
        assert lines(page) == 5
        assert "difference from the base" in page.locator("#curves-plot > svg").inner_html()
        page.click("#none")
        settle(page)
        assert "Nothing but the base is shown" in page.inner_text("#curves-plot")


def test_seeds_spread_and_log_scales_are_switched(browser, places):
    with opened(browser, places["six"]) as page:
        runs, bands = page.locator("#curves-plot path.run"), page.locator("#curves-plot path.spread")
        assert (runs.count(), bands.count()) == (1, 6), "a run that diverged is always shown"
        page.check("#seeds")
        page.uncheck("#spread")
        settle(page)
        assert (runs.count(), bands.count()) == (30, 0)
        before = page.locator("#curves-plot path.line").first.get_attribute("d")
        page.check("#log-y")
        settle(page)
        after = page.locator("#curves-plot path.line").first.get_attribute("d")
        page.check("#log-x")
        settle(page)
        assert len({before, after, page.locator("#curves-plot path.line").first.get_attribute("d")}) == 3
        assert "log scale" in page.locator("#curves-plot > svg").inner_html()


def test_hovering_over_curves_tells_the_values_there(browser, places):
    with opened(browser, places["six"]) as page:
        plot, tip = page.locator("#curves-plot > svg"), page.locator("#curves-plot .tip")
        assert tip.is_hidden()
        plot.hover(position={"x": 700, "y": 200})
        assert tip.is_visible()
        told = tip.inner_text()
        assert "M tokens" in told
        names = [name.strip() for name in tip.locator("th").all_text_contents()]
        assert names == ORDER, "from the lowest loss to the highest"
        box, inside = tip.bounding_box(), page.locator("#curves-plot").bounding_box()
        assert inside["x"] <= box["x"]
        assert box["x"] + box["width"] <= inside["x"] + inside["width"] + 1
        page.mouse.move(5, 5)
        assert tip.is_hidden()


def test_plots_are_read_with_the_keyboard(browser, places):
    with opened(browser, places["six"]) as page:
        for plot in ("finals-plot", "curves-plot", "cost-0", "lengths-plot"):
            page.locator(f"#{plot} > svg").focus()
            page.keyboard.press("ArrowRight")
            first = page.locator(f"#{plot} .tip").inner_text()
            page.keyboard.press("End")
            last = page.locator(f"#{plot} .tip").inner_text()
            assert first
            assert last
            assert first != last
            page.keyboard.press("Escape")
            assert page.locator(f"#{plot} .tip").is_hidden()


def test_final_values_of_another_metric_are_chosen(browser, places):
    with opened(browser, places["six"]) as page:
        page.select_option("#final-metric", label="decode tokens per second")
        settle(page)
        names = page.locator("#finals-plot text.name").all_text_contents()
        assert names[0] == "nope", "the fastest first"
        assert "%" in page.locator("#finals-plot text.said").first.text_content()


def column(page, place):
    return page.locator(f"#rows tbody tr > :nth-child({place})").all_inner_texts()


def test_table_is_sorted_up_down_and_back(browser, places):
    with opened(browser, places["six"]) as page:
        given, head = column(page, 1), page.locator("#rows thead th").nth(1)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert column(page, 1) == ORDER
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert column(page, 1) == ORDER[::-1]
        head.locator("button").click()
        assert (column(page, 1), head.get_attribute("aria-sort")) == (given, None)
        page.locator("#rows thead button", has_text="difference").click()
        assert column(page, 1)[-2:] == ["base", "post-norm"], "without a difference, last"


def test_page_without_a_script_shows_text_tables_and_pictures(browser, places):
    with opened(browser, places["six"], script=False) as page:
        text = page.inner_text("main")
        assert "Better than base: swiglu" in text
        assert page.locator("#rows tbody tr").count() == 6
        assert page.locator("svg.still").count() == 2
        assert page.locator(".controls:visible").count() == 0
        assert "drawn by a script" in text


def test_hostile_names_stay_names_when_they_are_shown(browser, places):
    with opened(browser, places["hostile"]) as page:
        page.locator("#finals-plot > svg").focus()
        for _ in range(6):
            page.keyboard.press("ArrowDown")
        page.locator("#curves-plot > svg").focus()
        page.keyboard.press("End")
        assert "<script>" in page.inner_text("#curves-plot .tip")
        assert page.locator("script").count() == 2
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.dataset.taken") is None


def test_most_of_twenty_variants_are_hidden_at_first_and_shown_on_request(browser, places):
    with opened(browser, places["twenty"]) as page:
        assert lines(page) == 8
        assert page.locator("#finals-plot circle.dot").count() == 20
        page.click("#all")
        settle(page)
        assert lines(page) == 20
