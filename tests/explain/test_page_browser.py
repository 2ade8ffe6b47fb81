"""The page about a prompt in a real browser: both themes, narrow and wide, by keyboard, and accessible."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anyformer.explain import prompt
from anyformer.explain.prompt import MODULES, one_script, page, trace_prompt
from tests.cli.small_run import small_run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("there is no chromium", allow_module_level=True)

ARGS = (
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
AXE = Path(os.environ.get("AXE_CORE", "axe-core"))
WEB = Path(prompt.__file__).parent / "web"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=list(ARGS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    seen = trace_prompt(*small_run(folder / "run"), "the cat sat on the dog", name="small")
    strange = {seen.ids[2]: "\x1b[31m\u202eevil\x00"}
    found = folder / "page.html"
    found.write_text(page(dataclasses.replace(seen, texts=seen.texts | strange)), encoding="utf-8")
    return found


@contextlib.contextmanager
def opened(browser: Any, place: Path, viewport: Any = None, scheme: str = "light", fragment: str = "") -> Iterator[Any]:
    """A page that may say nothing in the console and ask for no other file."""
    context = browser.new_context(viewport=viewport or WIDE, color_scheme=scheme, reduced_motion="reduce")
    shown, said, asked = context.new_page(), [], []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(place.as_uri() + fragment)
    shown.locator("html[data-ready=yes]").wait_for(state="attached")
    yield shown
    context.close()
    assert said == []
    assert asked == [place.as_uri()]


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["1280", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_of_a_prompt_is_drawn_without_an_error_and_is_accessible(browser, place, scheme, viewport):
    with opened(browser, place, viewport, scheme) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        if not AXE.is_file():
            pytest.skip("everything but accessibility was checked: AXE_CORE names no file of axe-core")
        shown.evaluate(AXE.read_text(encoding="utf-8"))
        found = shown.evaluate("axe.run().then((all) => all.violations)")
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in serious] == []


def test_page_of_a_prompt_is_walked_with_the_arrow_keys(browser, place):
    with opened(browser, place, fragment="#layer=0&head=0&token=1") as shown:
        shown.locator("#tokens .chip[tabindex='0']").focus()
        shown.keyboard.press("ArrowRight")
        assert shown.locator("#tokens .chip[aria-pressed=true]").get_attribute("data-place") == "2"
        assert shown.evaluate("document.documentElement.dataset.row") == "2"
        assert "token=2" in shown.evaluate("location.hash")
        shown.locator("#matrix").focus()
        shown.keyboard.press("ArrowDown")
        shown.keyboard.press("ArrowRight")
        shown.locator("html[data-selected='0.1'][data-row='3']").wait_for(state="attached")
        assert shown.locator("#table .on").count() == 4, "the head of the column and three layers"


def test_page_of_a_prompt_shows_characters_that_would_move_the_cursor(browser, place):
    with opened(browser, place) as shown:
        assert shown.locator("#tokens .chip").nth(2).inner_text() == "\u241b[31m\u2039U+202E\u203aevil\u2400"


def test_modules_of_the_page_become_one_script_without_imports():
    names = {each.stem for each in WEB.glob("*.js")}
    script = one_script(*((WEB / f"{name}.js").read_text(encoding="utf-8") for name in MODULES))
    assert names == set(MODULES)
    assert not [line for line in script.splitlines() if line.startswith(("import ", "export "))]
