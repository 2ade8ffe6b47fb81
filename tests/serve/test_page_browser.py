"""The page of the server in a real browser: it streams, branches, listens to the keyboard, and runs nothing that a model says."""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data.tokenizer import train_bpe
from anyformer.generation.samplers.logits_processors import MinP, Temperature, TokenHistory, TopK, TopP, process
from tests.cli.small_run import small_run
from tests.contract.contracts import randomise
from tests.serve import page_stage
from tests.serve.conftest import SPEC, TEXT
from tests.serve.page_stage import BASE, WORDS, Reply, Stage, as_json, candidates, refused

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("there is no chromium", allow_module_level=True)

ARGS = (
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
SCREENS = ("write", "chat", "inside", "compare", "server")
AXE = next(
    (
        place
        for place in (Path(os.environ.get("AXE_CORE", "axe-core")), Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js")
        if place.is_file()
    ),
    None,
)  # fmt: skip
TAKEN = "document.documentElement.dataset.taken='yes'"
HOSTILE = (
    f"</script><script>{TAKEN}</script>",
    f'<img src=x onerror="{TAKEN}">',
    "<!--<script>",
    f'"><svg onload={TAKEN}>',
    "\x1b[31mred\x1b]8;;http://evil.example\x07",
    "\u202egnirts\u2066\u200f\u061c",
    "a\u0000b\u2028c\ufeff\ud83d\u200b",
    "javascript:alert(1)",
    "__proto__",
    "constructor",
    "bytes:\\xe2\\x80",
    "<iframe src='http://evil.example/'></iframe>",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=list(ARGS))
        yield found
        found.close()


@contextlib.contextmanager
def staged(browser: Any, *, quiet: bool = True, viewport: Any = None, **changes: Any) -> Iterator[Stage]:
    """A page before canned answers. Afterwards it must have asked no other host and, if `quiet`, said nothing in the console."""
    options = {
        name: changes.pop(name) for name in ("color_scheme", "forced_colors", "reduced_motion") if name in changes
    }
    context = browser.new_context(viewport=viewport or WIDE, **options)
    stage = Stage(context, **changes)
    try:
        yield stage
        assert stage.page.evaluate("document.documentElement.dataset.taken") is None
    finally:
        context.close()
    assert stage.strangers == []
    if quiet:
        assert stage.said == []


def words(page: Any, box: str = "#write-tokens") -> list[str]:
    """The places of the chips' titles are left out, as are their scores."""
    return [json.loads(title.split(": ", 1)[1].split('", ')[0] + '"') for title in titles(page, box)]


def titles(page: Any, box: str) -> list[str]:
    return page.locator(f"{box} .chip").evaluate_all("chips => chips.map((chip) => chip.title)")


def shown_ids(page: Any) -> list[int]:
    return [int(title.split(", id ")[-1].split(",")[0]) for title in titles(page, "#write-tokens")]


def done(page: Any, screen: str = "write") -> None:
    """Wait until what was started has ended, and all of it is drawn."""
    page.locator(f"#{screen}-{'send' if screen == 'chat' else 'go'}").wait_for()
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


def go_on(page: Any, text: str = "the cat") -> None:
    page.fill("#write-text", text)
    page.press("#write-text", "Control+Enter")
    page.locator("#write-tokens .chip").first.wait_for()
    done(page)


def fill_screen(page: Any, screen: str) -> None:
    """Have something on a screen that there is to see."""
    if screen == "write":
        go_on(page)
        page.locator("#write-tokens .chip").nth(4).click()
        page.locator("#write-panel li").nth(2).click()
        page.locator("#write-tree").wait_for()
        done(page)
    if screen == "chat":
        page.fill("#chat-text", "the cat")
        page.press("#chat-text", "Enter")
        done(page, "chat")
        page.click("#chat-layer")
        page.locator("#chat-messages .chip").nth(1).click()
        page.click("#chat-read-box summary")
        page.locator("#chat-read .chip").first.wait_for()
    if screen == "inside":
        page.fill("#inside-text", "the cat sat")
        page.click("#inside-go")
        page.locator("#screen-inside[data-selected]").wait_for()
    if screen == "compare":
        page.fill("#compare-text", "the cat")
        page.click("#compare-go")
        page.locator("#compare-difference").wait_for()
    if screen == "server":
        page.locator(".tile b", has_text="25.0%").wait_for()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["1280", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_screen_is_drawn_without_an_error_and_is_accessible(browser, screen, scheme, viewport):
    with staged(browser, viewport=viewport, color_scheme=scheme, reduced_motion="reduce") as stage:
        page = stage.open(f"#{screen}")
        assert page.locator("#tabs a[aria-current=page]").inner_text().lower() == screen
        fill_screen(page, screen)
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        if AXE is None:
            pytest.skip("everything but accessibility was checked: AXE_CORE names no file of axe-core")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run().then((all) => all.violations)")
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in serious] == []


def test_write_shows_a_chip_for_every_token_of_prompt_and_completion(browser):
    with staged(browser) as stage:
        page = stage.open("#write&max_tokens=9&seed=5&top_k=7")
        go_on(page)
        assert words(page) == [WORDS[i] for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)]
        (body,) = stage.bodies("/v1/completions")
        assert body["prompt"] == [0, 1, 2]
        assert {name: body[name] for name in ("stream", "logprobs", "echo", "max_tokens", "seed", "top_k")} == {
            "stream": True, "logprobs": 20, "echo": True, "max_tokens": 9, "seed": 5, "top_k": 7,
        }  # fmt: skip
        assert "9 new tokens" in page.inner_text("#write-status")
        assert "12 of 4,096 tokens, 12.0 KiB" in page.inner_text("#write-count")


def test_write_tells_bits_probability_rank_id_and_bytes_of_the_token_with_focus(browser):
    with staged(browser) as stage:
        page = stage.open("#write&max_tokens=4")
        go_on(page)
        chips = page.locator("#write-tokens .chip")
        chips.nth(6).focus()
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.dataset.place") == "5"
        facts = page.locator("#write-panel dl").inner_text().split("\n")
        share = math.exp(candidates(4)[0][1])
        assert facts[:10] == [
            "bits", f"{-math.log2(share):.2f}", "probability", f"{100 * share:.1f}%", "rank", "1", "id", "5", "bytes", "20 6f 6e",
        ]  # fmt: skip
        page.keyboard.press("Home")
        assert "Nothing stands before the first token" in page.inner_text("#write-panel")
        assert page.locator("#write-tokens .chip[tabindex='0']").count() == 1


def test_write_sliders_redraw_the_bars_without_a_request(browser):
    with staged(browser) as stage:
        page = stage.open("#write&max_tokens=4&temperature=1")
        go_on(page)
        before, numbers = len(stage.asked), page.locator("#write-panel .number:visible")
        first = numbers.all_inner_texts()
        page.locator("#write-top_k").fill("2")
        page.locator("#write-temperature").fill("0.5")
        assert numbers.all_inner_texts()[:3] == ["80.0%", "20.0%", "never"], "shares of 2 to 1 at half the temperature"
        assert numbers.all_inner_texts() != first
        assert len(stage.asked) == before
        page.wait_for_url("**/*top_k=2*")
        assert "temperature=0.5" in page.url


def test_write_alternative_by_the_keyboard_cuts_the_text_there_and_goes_on(browser):
    with staged(browser) as stage:
        page = stage.open("#write&max_tokens=3")
        go_on(page)
        page.locator("#write-tokens .chip").nth(4).focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.getAttribute('role')") == "listbox"
        page.keyboard.press("ArrowDown")
        assert page.locator("#write-panel li[aria-selected=true] .word").inner_text() == "\u00b7on"
        page.keyboard.press("Enter")
        page.locator("#write-tree").wait_for()
        done(page)
        *_, body = stage.bodies("/v1/completions")
        assert body["prompt"] == [0, 1, 2, 3, 5], "the second after 3"
        assert body["echo"] is False, "all of it is scored already"
        assert words(page) == [WORDS[i] for i in (0, 1, 2, 3, 5, 6, 7, 8)]


def test_write_branches_are_kept_and_walked_with_alt_and_arrows(browser):
    with staged(browser) as stage:
        page = stage.open("#write&max_tokens=3")
        go_on(page)
        first = words(page)
        page.locator("#write-tokens .chip").nth(4).click()
        page.locator("#write-panel li").nth(3).click()
        page.locator("#write-tree").wait_for()
        done(page)
        second = words(page)
        page.locator("#write-tokens .chip").last.focus()
        page.keyboard.press("Alt+ArrowLeft")
        done(page)
        assert words(page) == first
        assert "Branch 1 of 2" in page.inner_text("#write-status")
        page.keyboard.press("Alt+ArrowRight")
        done(page)
        assert words(page) == second
        page.keyboard.press("Alt+ArrowRight")
        assert "no branch on that side" in page.inner_text("#write-status")
        assert page.locator("#write-branches button").count() == 2
        page.locator("#write-branches button").first.click()
        done(page)
        assert words(page) == first
        assert len(list(stage.bodies("/v1/completions"))) == 2, "no way back asks for anything"


def test_write_the_same_continuation_twice_is_one_branch(browser):
    with staged(browser) as stage:
        page = stage.open("#write&max_tokens=3")
        go_on(page)
        page.locator("#write-tokens .chip").nth(4).click()
        page.locator("#write-panel li").first.click()
        done(page)
        assert words(page) == [WORDS[i] for i in range(8)]
        assert page.locator("#write-tree").is_hidden()


def test_write_tree_forgets_the_oldest_of_more_than_64_branches(browser):
    with staged(browser) as stage:
        page = stage.open("#write")
        found = page.evaluate("""async () => {
            const { Tree } = await import("/page/tree.js"), tree = new Tree();
            for (let i = 0; i < 70; i++) tree.leaf = tree.walk(tree.top, { id: i }, (child) => child.id === i);
            return tree.leaves().map((leaf) => leaf.id);
        }""")
        assert found == list(range(6, 70))


def test_write_scores_a_text_and_shows_what_could_come_next(browser):
    with staged(browser) as stage:
        page = stage.open("#write")
        page.fill("#write-text", "the cat")
        page.click("#write-as-tokens")
        page.locator(".chip.ghost").wait_for()
        (body,) = stage.bodies("/v1/completions")
        assert (body["max_tokens"], body["echo"]) == (1, True)
        assert words(page) == ["<s>", " the", " cat", "next"]
        assert page.inner_text("#write-here") == "What could come next"
        page.locator("#write-panel li").nth(1).click()
        page.locator("#write-tokens .chip").nth(5).wait_for()
        *_, body = stage.bodies("/v1/completions")
        assert body["prompt"] == [0, 1, 2, 4]


def test_write_text_that_was_edited_goes_on_from_what_it_says_now(browser):
    with staged(browser) as stage:
        page = stage.open("#write&max_tokens=2")
        go_on(page)
        page.click("#write-as-text")
        page.locator("#write-text").wait_for()
        assert page.input_value("#write-text") == "the cat dog sat"
        page.fill("#write-text", "the cat and")
        page.press("#write-text", "Control+Enter")
        done(page)
        *_, body = stage.bodies("/v1/completions")
        assert body["prompt"] == [0, 1, 2, 7]


def test_write_stops_on_escape_and_keeps_what_came(browser):
    with staged(browser, quiet=False) as stage:
        page = stage.open("#write&max_tokens=3")
        go_on(page)
        stage.answers["/v1/completions"] = lambda _: None
        with page.expect_event("requestfailed"):
            page.keyboard.press("Control+Enter")
            page.locator("#write-stop").wait_for()
            page.keyboard.press("Escape")
        done(page)
        assert "Stopped after 0 tokens" in page.inner_text("#write-status")
        assert len(words(page)) == 6


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (refused(429, "256 requests wait.", Retry_After="7"), ["as many requests as it can take", "256 requests wait.", "Try again in 7 seconds"]),
        (refused(400, "prompt: 9 tokens, at most 4"), ["prompt: 9 tokens, at most 4"]),
        (refused(503, "loading", Retry_After="1"), ["not ready", "Try again in 1 second."]),
        (Reply("<h1>Bad Gateway</h1>", 502, "text/html"), ["<h1>Bad Gateway</h1>"]),
        (Reply(None), ["can't be reached", "Nothing is lost"]),
        (page_stage.stream([{"error": {"message": "out of memory", "type": "server_error", "param": None, "code": None}}]), ["out of memory"]),
    ],
    ids=["429", "400", "503", "502", "network", "event"],
)  # fmt: skip
def test_write_error_is_told_in_words_and_nothing_is_lost(browser, reply, says):
    with staged(browser, quiet=False) as stage:
        page = stage.open("#write&max_tokens=3")
        go_on(page)
        before = words(page)
        stage.answers["/v1/completions"] = lambda _: reply
        page.click("#write-go")
        page.locator("#write-error:not(:empty)").wait_for()
        for part in says:
            assert part in page.inner_text("#write-error")
        assert words(page) == before
        del stage.answers["/v1/completions"]
        stage.answers["/v1/completions"] = page_stage.completion
        page.click("#write-go")
        done(page)
        assert page.inner_text("#write-error") == ""
        assert len(words(page)) == len(before) + 3


def test_write_stream_that_breaks_leaves_what_came(browser):
    def broken(body: Any) -> Reply:
        whole = page_stage.completion(body)
        return Reply(str(whole.body).split('data: {"choices": [{"index": 0, "text": ""')[0], kind=whole.kind)

    with staged(browser, answers={"/v1/completions": broken}) as stage:
        page = stage.open("#write&max_tokens=3")
        go_on(page)
        assert "connection broke" in page.inner_text("#write-error")
        assert len(words(page)) == 6


@pytest.mark.parametrize("screen", SCREENS)
def test_page_after_the_network_is_cut_says_so_and_keeps_everything(browser, screen):
    with staged(browser, quiet=False) as stage:
        page = stage.open(f"#{screen}")
        fill_screen(page, screen)
        for path in stage.answers:
            stage.answers[path] = lambda _: Reply(None)
        before = page.locator("main").inner_text() if screen == "inside" else None
        if screen == "chat":
            page.fill("#chat-text", "again")
        if screen != "server":
            page.click(
                {"write": "#write-go", "chat": "#chat-send", "inside": "#inside-go", "compare": "#compare-go"}[screen]
            )
        page.locator(f"#{screen}-error:not(:empty)").wait_for()
        assert "can't be reached" in page.inner_text(f"#{screen}-error")
        if screen == "write":
            assert len(words(page)) > 3
        if screen == "chat":
            assert "again" in page.inner_text("#chat-messages")
        if before is not None:
            assert page.locator("#tokens .chip").count() == 4
        for other in SCREENS:
            page.click(f"#tab-{other}")
            page.locator(f"#screen-{other}").wait_for()


def test_page_asks_for_a_key_keeps_it_in_the_tab_and_sends_it(browser):
    def locked(body: Any) -> Reply:
        sent = stage.asked[-1][2].get("authorization")
        return as_json(stage.model) if sent == "Bearer secret-7" else refused(401, "give a key")

    with staged(browser, quiet=False) as stage:
        stage.answers["/api/model"] = locked
        page = stage.page
        page.goto(f"{BASE}/#write")
        page.locator("#key-dialog").wait_for()
        page.keyboard.type("secret-7")
        page.keyboard.press("Enter")
        page.locator("html[data-ready=yes]").wait_for(state="attached")
        go_on(page)
        assert all(headers["authorization"] == "Bearer secret-7" for _, _, headers in stage.asked[1:])
        page.click("#tab-server")
        assert "secret-7" not in page.url
        assert "secret-7" not in page.inner_text("main")
        assert "Bearer $OPENAI_API_KEY" in page.inner_text("#server-curl")
        kept = page.evaluate("[Object.values({...localStorage}), Object.values({...sessionStorage})]")
        assert kept == [[], ["secret-7"]]


def test_page_whose_key_is_refused_says_so_and_can_try_again(browser):
    with staged(browser, quiet=False, answers={"/api/model": lambda _: refused(401, "give a key")}) as stage:
        page = stage.page
        page.goto(BASE)
        page.locator("#key-cancel").click()
        assert "needs an API key" in page.inner_text("#start")
        stage.answers["/api/model"] = lambda _: as_json(stage.model)
        page.locator("#start button").click()
        page.locator("html[data-ready=yes]").wait_for(state="attached")


def test_page_restores_what_its_address_says_and_refuses_nonsense(browser):
    with staged(browser) as stage:
        page = stage.open("#write&temperature=1.5&top_p=9&top_k=-3&min_p=x&seed=12&max_tokens=33&prompt=the+cat")
        assert page.input_value("#write-text") == "the cat"
        shown = [
            page.input_value(f"#write-{name}")
            for name in ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
        ]
        assert shown == ["1.5", "1", "0", "0", "12", "33"]
        page.click("#tab-server")
        assert '"prompt": "the cat"' in page.inner_text("#server-curl") or '"the cat"' in page.inner_text(
            "#server-curl"
        )
        page.wait_for_url("**/#server&*")
        page.reload()
        page.locator("html[data-ready=yes]").wait_for(state="attached")
        page.click("#tab-write")
        assert (page.input_value("#write-text"), page.input_value("#write-seed")) == ("the cat", "12")


def test_page_that_is_about_to_write_its_address_follows_a_link_first(browser):
    with staged(browser) as stage:
        page = stage.open("#write")
        page.fill("#write-text", "the cat")
        # The address is due while the page has yet to hear of the link.
        page.evaluate("""() => {
            const end = performance.now() + 400;
            location.hash = "#server";
            while (performance.now() < end);
        }""")
        page.locator("#screen-server").wait_for()
        page.wait_for_url("**/#server&prompt=the+cat")


def hostile_completion(body: Any) -> Reply:
    vocabulary = [*WORDS[: len(WORDS) - len(HOSTILE)], *HOSTILE]
    return page_stage.completion(body, range(len(WORDS) - len(HOSTILE), len(WORDS)), vocabulary)


def test_hostile_output_stays_text_on_every_screen(browser):
    answers = {
        "/v1/completions": hostile_completion,
        "/v1/chat/completions": lambda body: page_stage.chat(body, HOSTILE),
        "/api/look": lambda body: page_stage.look(body, [*HOSTILE, *WORDS]),
    }
    model = page_stage.MODEL | {
        "name": HOSTILE[0],
        "spec": {HOSTILE[1]: HOSTILE[3]},
        "counts": {HOSTILE[1]: 1},
        "topology": HOSTILE[3],
    }
    with staged(browser, answers=answers, model=model) as stage:
        page = stage.open("#write")
        go_on(page)
        shown = page.locator("#write-tokens .chip").all_inner_texts()
        assert shown[-len(HOSTILE) :][:4] == list(HOSTILE[:4])
        assert shown[-len(HOSTILE) :][4].startswith("\u241b[31mred\u241b]8;;")
        assert (
            shown[-len(HOSTILE) :][5]
            == "\u2039U+202E\u203agnirts\u2039U+2066\u203a\u2039U+200F\u203a\u2039U+061C\u203a"
        )
        page.locator("#write-tokens .chip").last.focus()
        for _ in range(len(HOSTILE)):
            page.keyboard.press("ArrowLeft")
        page.click("#tab-inside")
        page.locator("#screen-inside[data-selected]").wait_for()
        page.click("#tab-chat")
        for _ in range(2):
            page.fill("#chat-text", HOSTILE[1])
            page.press("#chat-text", "Enter")
            done(page, "chat")
        text = page.locator(".message.assistant .text").first.inner_text()
        assert HOSTILE[0] in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        page.click("#chat-layer")
        page.click("#chat-read-box summary")
        page.locator("#chat-read .chip").first.wait_for()
        page.click("#tab-compare")
        page.fill("#compare-text", HOSTILE[0])
        page.click("#compare-go")
        page.locator("#compare-difference").wait_for()
        page.click("#tab-server")
        page.locator("#server-model ~ details summary").first.click()
        assert page.locator("main script, main img, main iframe, main svg[onload], header script").count() == 0
        assert page.inner_text("#name") == HOSTILE[0]


def test_hostile_address_is_only_a_text(browser):
    with staged(browser) as stage:
        page = stage.open(f"#write&prompt=%3Cimg src=x onerror={TAKEN}%3E&temperature=%3Cscript%3E&seed=__proto__")
        assert page.input_value("#write-text").startswith("<img src=x onerror=")
        assert page.locator("main img").count() == 0


def test_token_of_ten_megabytes_is_shown_in_short_and_the_page_still_answers(browser):
    endless = "x" * 10_000_000

    def written(_: Any) -> Reply:
        def one(text: str) -> dict[str, Any]:
            scores = {
                "tokens": [text],
                "token_logprobs": [-1.0],
                "top_logprobs": [{"y": -1.0}],
                "top_ids": [[[3, -1.0]]],
            }
            return {
                "choices": [{"index": 0, "text": text, "logprobs": scores, "token_ids": [3], "finish_reason": None}]
            }

        # A prompt of three tokens, which are echoed.
        return page_stage.stream([one(text) for text in ("a", "b", "c", "d", endless, "e")])

    def said(_: Any) -> Reply:
        def one(text: str) -> dict[str, Any]:
            scores = {"content": [{"token": text, "logprob": -1.0, "top_logprobs": []}]}
            return {"choices": [{"index": 0, "delta": {"content": text}, "logprobs": scores, "finish_reason": None}]}

        return page_stage.stream([one(text) for text in ("a", endless, "b")])

    answers = {"/v1/completions": written, "/v1/chat/completions": said}
    with staged(browser, answers=answers) as stage:
        page = stage.open("#write")
        go_on(page)
        assert [len(text) for text in page.locator("#write-tokens .chip").all_inner_texts()][-2:] == [121, 1]
        page.click("#write-as-text")
        assert "more than can be edited here" in page.inner_text("#write-error")
        page.click("#tab-chat")
        page.fill("#chat-text", "the cat")
        page.press("#chat-text", "Enter")
        done(page, "chat")
        text = page.locator(".message.assistant .text")
        assert len(text.inner_text()) == 100_000
        assert text.get_attribute("data-more") == "9,900,002 more characters are not shown"
        assert page.evaluate("document.documentElement.scrollWidth") == WIDE["width"]


def test_two_thousand_tokens_at_once_are_drawn_over_many_frames(browser):
    def many(body: Any) -> Reply:
        return page_stage.completion(body, [i % len(WORDS) for i in range(2000)])

    with staged(browser, answers={"/v1/completions": many}) as stage:
        page = stage.open("#write")
        page.evaluate("""() => {
            window.grown = [];
            new MutationObserver((changes) => grown.push(changes.reduce((sum, each) => sum + each.addedNodes.length, 0)))
                .observe(document.getElementById("write-tokens"), { childList: true });
        }""")
        go_on(page)
        page.locator("#write-tokens .chip").nth(2002).wait_for()
        grown = page.evaluate("grown")
        assert page.locator("#write-tokens .chip").count() == 2003
        assert max(grown) <= 300, "no frame draws all of it"


def test_chat_is_sent_answered_again_and_edited_and_all_versions_stay(browser):
    with staged(browser) as stage:
        page = stage.open("#chat")
        page.click(".system summary")
        page.fill("#chat-system", "be brief")
        page.fill("#chat-text", "the cat")
        page.press("#chat-text", "Enter")
        done(page, "chat")
        (body,) = stage.bodies("/v1/chat/completions")
        assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat"}]
        assert (body["logprobs"], body["top_logprobs"], body["stream"]) == (True, 20, True)
        answers = page.locator(".message.assistant")
        assert answers.locator(".text").inner_text().startswith(" the cat dog")
        answers.get_by_role("button", name="another answer").click()
        done(page, "chat")
        assert "2 of 2" in answers.inner_text()
        answers.get_by_role("button", name="version before").click()
        assert "1 of 2" in answers.inner_text()
        page.get_by_role("button", name="edit what you said").click()
        page.get_by_label("the message, to be edited").fill("the dog")
        page.keyboard.press("Control+Enter")
        done(page, "chat")
        *_, body = stage.bodies("/v1/chat/completions")
        assert body["messages"][-1] == {"role": "user", "content": "the dog"}
        assert "2 of 2" in page.locator(".message.user").inner_text()
        page.locator(".message.user").get_by_role("button", name="version before").click()
        assert page.locator(".message.user .text").inner_text() == "the cat"


def test_chat_tokens_are_a_layer_that_p_switches_and_an_alternative_goes_on_from_there(browser):
    with staged(browser) as stage:
        page = stage.open("#chat")
        page.fill("#chat-text", "the cat, up")
        page.press("#chat-text", "Enter")
        done(page, "chat")
        assert page.locator("#chat-messages .chip").count() == 0
        page.locator("#chat-layer").focus()
        page.keyboard.press("p")
        page.locator("#chat-messages .chip").nth(2).wait_for()
        page.locator("#chat-messages .chip").nth(2).click()
        page.locator("#chat-panel li").nth(1).click()
        done(page, "chat")
        *_, body = stage.bodies("/v1/chat/completions")
        assert body["messages"][-1] == {"role": "assistant", "content": " the cat else"}
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert words(page, ".message.assistant")[:4] == [" the", " cat", " else", " the"]
        page.focus("#chat-text")
        page.keyboard.type("p")
        assert page.locator("#chat-layer").get_attribute("aria-pressed") == "true", "a letter of a message is no key"


def test_chat_shows_what_the_model_read_with_special_tokens_marked(browser):
    with staged(browser) as stage:
        page = stage.open("#chat")
        fill_screen(page, "chat")
        assert page.locator("#chat-read .chip.special").all_inner_texts() == ["<|user|>"]
        assert page.locator("#chat-read .chip").count() == 2


def test_inside_looks_at_what_was_written_and_the_chosen_token_is_linked_both_ways(browser):
    with staged(browser) as stage:
        page = stage.open("#write&max_tokens=3")
        go_on(page)
        page.locator("#write-tokens .chip").nth(2).click()
        page.click("#tab-inside")
        page.locator("#screen-inside[data-selected]").wait_for()
        (body,) = stage.bodies("/api/look")
        assert body == {"ids": [0, 1, 2, 3, 4, 5]}
        assert page.locator("#tokens .chip[aria-pressed=true]").get_attribute("data-place") == "2"
        page.locator("#tokens .chip").nth(4).click()
        page.click("#tab-write")
        assert page.locator("#write-tokens .chip[aria-pressed=true]").get_attribute("data-place") == "4"


def test_inside_shows_the_first_256_tokens_of_a_longer_text(browser):
    with staged(browser) as stage:
        page = stage.open("#inside")
        page.fill("#inside-text", "the" + " cat" * 300)
        page.click("#inside-go")
        page.locator("#screen-inside[data-selected]").wait_for()
        assert "The first 256 of 302 tokens are shown." in page.inner_text("#inside-status")


def test_compare_of_two_settings_tells_bits_by_token(browser):
    with staged(browser) as stage:
        page = stage.open("#compare")
        page.fill("#compare-text", "the cat")
        page.locator("#compare-a-temperature").fill("1")
        page.locator("#compare-b-temperature").fill("0.5")
        page.locator("#compare-b-top_k").fill("1")
        page.locator("#compare-a-max_tokens").fill("4")
        page.locator("#compare-b-max_tokens").fill("4")
        page.click("#compare-go")
        page.locator("#compare-difference").wait_for()
        a, b = stage.bodies("/v1/completions")
        assert sorted((body["temperature"], body.get("top_k")) for body in (a, b)) == [(0.5, 1), (1, 0)]
        bits = -math.log2(math.exp(candidates(2)[0][1]))
        shown = page.locator("#compare-apart .chip").evaluate_all("chips => chips.map((chip) => chip.dataset.bits)")
        assert shown == [f"\u2212{bits:.1f}"] * 4
        assert page.inner_text("#compare-status") == "Both wrote the same."


def test_compare_of_two_cuts_of_one_text_adds_up_what_falls_together(browser):
    with staged(browser) as stage:
        page = stage.open("#compare")
        parts = page.evaluate("""async () => {
            const { aligned } = await import("/page/compare.js"), bit = -Math.log(2);
            const token = (text, bits) => ({ text, logprob: bits * bit });
            return aligned([token("ab", 1), token("c", 2), token("d", 3)], [token("a", 4), token("bc", 5), token("d", 6)]);
        }""")
        assert [(part["text"], part["a"], part["b"]) for part in parts] == [("abc", 3, 9), ("d", 3, 6)]


def test_server_shows_gauges_and_lines_that_say_the_present_settings(browser):
    with staged(browser, model=page_stage.MODEL | {"chat": False}) as stage:
        page = stage.open("#server&temperature=0.3&top_k=4&prompt=it's")
        fill_screen(page, "server")
        tiles = dict(zip(*[iter(page.inner_text("#server-gauges").split("\n"))] * 2, strict=False))
        assert {tiles["3"], tiles["2"], tiles["25.0%"]} == {
            "requests running",
            "requests waiting",
            "of the KV cache in use",
        }
        curl = page.inner_text("#server-curl")
        assert f"curl {BASE}/v1/completions" in curl
        assert '"prompt": "it\'\\\'\'s"' in curl
        python = page.inner_text("#server-python")
        compile(python, "lines", "exec")
        assert 'extra_body={"top_k": 4, "min_p": 0}' in python
        assert "temperature=0.3" in python


def test_encoder_has_no_screens_that_write_and_can_be_looked_into(browser):
    model = page_stage.MODEL | {"topology": "encoder", "generates": False, "chat": False}
    with staged(browser, model=model) as stage:
        page = stage.open("#write")
        assert page.locator("#tabs a:visible").all_inner_texts() == ["Inside", "Server"]
        fill_screen(page, "inside")
        assert page.locator("#tokens .chip").count() == 4


def test_model_without_a_template_begins_with_write(browser):
    with staged(browser, model=page_stage.MODEL | {"chat": False}) as stage:
        page = stage.open()
        assert page.locator("#tabs a[aria-current=page]").inner_text() == "Write"
        assert page.locator("#tab-chat").is_hidden()


@pytest.mark.parametrize("screen", SCREENS)
def test_tab_reaches_every_control_in_the_order_of_the_document(browser, screen):
    with staged(browser) as stage:
        page = stage.open(f"#{screen}")
        fill_screen(page, screen)
        wanted = page.evaluate("""() => {
            const found = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
                .filter((each) => each.tabIndex >= 0 && !each.disabled && each.checkVisibility({ visibilityProperty: true }));
            found.forEach((each, i) => { each.dataset.stop = i; });
            document.activeElement.blur();
            getSelection().removeAllRanges();
            document.getElementById("skip").focus();
            return found.length;
        }""")
        reached = [0]
        for _ in range(wanted - 1):
            page.keyboard.press("Tab")
            reached.append(int(page.evaluate("document.activeElement.dataset.stop ?? -1")))
        assert reached == list(range(wanted))


def test_skip_link_goes_to_the_content_and_changes_no_screen(browser):
    with staged(browser) as stage:
        page = stage.open("#server")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        assert page.locator("#screen-server").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_shade_has_an_ink_that_can_be_read(browser, scheme):
    with staged(browser, color_scheme=scheme) as stage:
        page = stage.open("#write")
        pairs = page.evaluate("""async () => {
            const { colourAt, ink } = await import("/page/heat.js");
            return ["heat", "surprise", "entropy", "more", "less"].flatMap((name) => Array.from({ length: 256 }, (_, n) => {
                const colour = colourAt(n / 255, name);
                return [colour, ink(colour)];
            }));
        }""")
        assert min(contrast(colour, ink) for colour, ink in pairs) >= 4.5


def contrast(colour: list[int], ink: str) -> float:
    """That of WCAG 2."""

    def luminance(parts: list[int]) -> float:
        linear = [p / 255 / 12.92 if p / 255 <= 0.04045 else ((p / 255 + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(colour), luminance([int(ink[i : i + 2], 16) for i in (1, 3, 5)])))
    return (light + 0.05) / (dark + 0.05)


def test_bits_are_written_on_the_chips_on_request_and_where_colours_are_forced(browser):
    content = "chip => getComputedStyle(chip, '::after').content"
    with staged(browser) as stage:
        page = stage.open("#write")
        go_on(page)
        chip = page.locator("#write-tokens .chip").nth(3)
        assert chip.evaluate(content) == "none"
        page.check("#write-bits")
        assert chip.evaluate(content) == '"1.0"'
    with staged(browser, forced_colors="active") as stage:
        page = stage.open("#write")
        go_on(page)
        assert page.locator("#write-tokens .chip").nth(3).evaluate(content) == '"1.0"'


def test_theme_that_changes_recolours_the_chips(browser):
    with staged(browser) as stage:
        page = stage.open("#write")
        go_on(page)
        colour = "chip => getComputedStyle(chip).backgroundColor"
        chip = page.locator("#write-tokens .chip").nth(3)
        light = chip.evaluate(colour)
        page.emulate_media(color_scheme="dark")
        done(page)
        assert chip.evaluate(colour) != light


SETTINGS = [
    {"temperature": 1.0}, {"temperature": 0.4}, {"temperature": 1.7, "top_k": 5}, {"temperature": 0.9, "top_p": 0.7},
    {"temperature": 1.2, "min_p": 0.1}, {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.05}, {"temperature": 0.0},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: "-".join(f"{k}={v}" for k, v in each.items()))
def test_bars_under_settings_are_what_the_sampler_draws_from(browser, settings):
    logits = torch.randn(20, generator=torch.Generator().manual_seed(3)).sort(descending=True).values.double()
    history = TokenHistory(torch.zeros(1, 1, dtype=torch.long), torch.ones(1), torch.zeros(1))
    steps = [
        TopK(settings.get("top_k", 20)), TopP(settings.get("top_p", 1.0)), MinP(settings.get("min_p", 0.0)),
    ]  # fmt: skip
    if settings["temperature"]:
        wanted = process(Temperature(settings["temperature"]).apply(logits[None], history), steps, history)[0].softmax(
            -1
        )
    else:
        wanted = torch.nn.functional.one_hot(torch.tensor(0), 20).double()
    top = [{"id": i, "logprob": value} for i, value in enumerate(logits.log_softmax(-1).tolist())]
    values = {"top_k": 0, "top_p": 1, "min_p": 0} | settings
    with staged(browser) as stage:
        found = stage.open("#write").evaluate(
            "async ([top, values]) => (await import('/page/sampling.js')).sampled(top, values, 20)", [top, values]
        )
    assert found["shares"] == pytest.approx(wanted.tolist(), abs=1e-9)
    assert found["rest"] == pytest.approx(0, abs=1e-9)


@contextlib.contextmanager
def visiting(browser: Any, running: Any, address: str = "", **options: Any) -> Iterator[Any]:
    """The page of a real server. It may ask nobody else and say nothing in the console."""
    context = browser.new_context(viewport=WIDE, **options)
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(f"{running.base_url}/{address}")
        page.locator("html[data-ready=yes]").wait_for(state="attached")
        yield page
    finally:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith((f"{running.base_url}/", "data:"))] == []


def sent(page: Any, path: str) -> list[Any]:
    """Bodies of the requests to a path that come from now on."""
    found: list[Any] = []
    page.on("request", lambda request: request.url.endswith(path) and found.append(request.post_data_json))
    return found


def test_served_page_shows_as_many_chips_as_the_server_counts(browser, serving):
    with serving() as running, visiting(browser, running, "#write&max_tokens=24&seed=3") as page:
        bodies = sent(page, "/v1/completions")
        go_on(page, "the cat sat")
        told = running.post("/v1/completions", bodies[0] | {"stream": False, "stream_options": None}).data
        usage, (choice,) = told["usage"], told["choices"]
        assert shown_ids(page) == [*bodies[0]["prompt"], *choice["token_ids"]]
        assert len(shown_ids(page)) == usage["prompt_tokens"] + usage["completion_tokens"]
        assert f"{usage['completion_tokens']} new tokens" in page.inner_text("#write-status")
        assert page.locator("#write-tokens .chip:not([data-bits])").count() == 1, "all but the first are scored"


def test_served_page_with_the_same_seed_writes_the_same_text(browser, serving):
    seen = []
    with serving() as running:
        for seed in (5, 5, 6):
            with visiting(browser, running, f"#write&max_tokens=16&seed={seed}&temperature=1.5") as page:
                go_on(page, "the dog")
                seen.append(words(page))
    assert seen[0] == seen[1] != seen[2]


def test_served_page_goes_on_from_an_alternative_with_its_ids(browser, serving):
    with serving() as running, visiting(browser, running, "#write&max_tokens=6&seed=1") as page:
        bodies = sent(page, "/v1/completions")
        go_on(page)
        before = shown_ids(page)
        page.locator("#write-tokens .chip").nth(4).click()
        other = page.locator("#write-panel li:not(.given)").nth(5)
        wanted = int(other.get_attribute("title").split(", id ")[1].split(":")[0])
        other.click()
        page.locator("#write-tree").wait_for()
        done(page)
        assert bodies[-1]["prompt"] == [*before[:4], wanted]
        assert page.inner_text("#write-error") == ""


def test_served_page_that_is_stopped_frees_its_seat(browser, serving, tmp_path):
    tokenizer = train_bpe([TEXT], 300)
    spec = af.spec(SPEC | {"vocab": tokenizer.vocab, "context": 16384})
    af.save(randomise(af.build(spec), 0).eval(), tmp_path / "long")
    tokenizer.save(tmp_path / "long")
    with (
        serving(model=str(tmp_path / "long"), slots=True) as running,
        visiting(browser, running, "#write&max_tokens=16000") as page,
    ):
        page.fill("#write-text", "the cat")
        page.press("#write-text", "Control+Enter")
        page.locator("#write-tokens .chip").nth(20).wait_for()
        assert any(slot["is_processing"] for slot in running.get("/slots").data)
        page.keyboard.press("Escape")
        done(page)
        assert page.inner_text("#write-status").startswith("Stopped after ")
        running.eventually(lambda: not any(slot["is_processing"] for slot in running.get("/slots").data))
        kept = page.locator("#write-tokens .chip").count()
        assert 20 < kept < 16000


def test_served_page_chats_and_shows_what_the_model_read(browser, serving):
    with serving() as running, visiting(browser, running, "#chat&max_tokens=8&seed=2") as page:
        bodies = sent(page, "/v1/chat/completions")
        for text in ("the cat", "and the dog"):
            page.fill("#chat-text", text)
            page.press("#chat-text", "Enter")
            done(page, "chat")
        assert [message["role"] for message in bodies[-1]["messages"]] == ["user", "assistant", "user"]
        page.click("#chat-layer")
        page.locator("#chat-messages .chip").nth(12).wait_for()
        page.click("#chat-read-box summary")
        page.locator("#chat-read .chip").nth(4).wait_for()
        page.locator("#chat-messages .chip").nth(10).click()
        page.locator("#chat-panel li:not(.given)").first.click()
        done(page, "chat")
        assert page.inner_text("#chat-error") == ""
        assert "2 of 2" in page.locator(".message.assistant").last.inner_text()
        page.click("#tab-inside")
        page.locator("#screen-inside[data-selected]").wait_for()


def test_served_page_looks_inside_and_compares(browser, serving):
    with serving() as running, visiting(browser, running, "#write&max_tokens=12&seed=4") as page:
        go_on(page)
        count = page.locator("#write-tokens .chip").count()
        page.locator("#write-tokens .chip").nth(3).click()
        page.click("#tab-inside")
        page.locator("#screen-inside[data-selected]").wait_for()
        told = page.locator("#screen-inside").evaluate("each => ({ ...each.dataset })")
        assert (told["tokens"], told["cells"], told["heads"], told["row"]) == (str(count), str(3 * count), "8", "3")
        assert float(told["sum"]) == pytest.approx(1, abs=0.03)
        page.click("#tab-compare")
        page.fill("#compare-text", "the cat sat on the mat")
        page.click("#compare-score")
        page.locator("#compare-apart .chip").nth(3).wait_for()
        page.click("#compare-go")
        page.locator("#compare-tokens-b .chip").nth(3).wait_for()
        page.locator("#compare-stop").wait_for(state="hidden")
        assert page.inner_text("#compare-error") == ""
        page.click("#tab-server")
        page.locator(".tile b", has_text="%").wait_for()
        assert page.inner_text("#server-error") == ""


def test_served_page_compares_two_servers_of_one_model_without_a_difference(browser, serving):
    with serving() as here, serving(cors_origins=(here.base_url,)) as there:
        # Whoever starts a server decides whom its page may ask; here it is the browser that lets it.
        context = browser.new_context(bypass_csp=True)
        page = context.new_page()
        page.goto(f"{here.base_url}/#compare&prompt=the+cat+sat+on+the+mat")
        page.locator("html[data-ready=yes]").wait_for(state="attached")
        page.fill("#compare-url", there.base_url)
        page.click("#compare-score")
        page.locator("#compare-apart .chip").nth(3).wait_for()
        shown = page.locator("#compare-apart .chip[data-bits]").evaluate_all(
            "chips => chips.map((chip) => chip.dataset.bits)"
        )
        context.close()
    assert shown
    assert set(shown) == {"+0.0"}


def test_served_page_asks_for_the_key_of_its_server(browser, serving):
    with serving(keys=("one-key",)) as running:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{running.base_url}/#write")
        for typed in ("wrong", "one-key"):
            page.locator("#key-dialog").wait_for()
            page.fill("#key-field", typed)
            page.keyboard.press("Enter")
            if typed == "wrong":
                page.locator("#start button").click()
        page.locator("html[data-ready=yes]").wait_for(state="attached")
        go_on(page)
        assert page.inner_text("#write-error") == ""
        context.close()


def test_served_page_of_an_encoder_looks_inside(browser, serving, tmp_path):
    small_run(tmp_path / "encoder", {"topology": "encoder"})
    with serving(model=str(tmp_path / "encoder")) as running, visiting(browser, running) as page:
        assert page.locator("#tabs a:visible").all_inner_texts() == ["Inside", "Server"]
        page.fill("#inside-text", "the cat sat")
        page.click("#inside-go")
        page.locator("#screen-inside[data-selected]").wait_for()
        assert page.inner_text("#inside-error") == ""
