"""docs/trace.md: its blocks print what it shows, and the names in its table are those of a model."""

import re

import anyformer as af
from anyformer.model.trace import Sites
from tests.contract.draw import BASE
from tests.docs.fences import read, run

PAGE = read("docs/trace.md")


def test_trace_page_blocks_run_and_print_what_the_page_shows():
    run(PAGE, "docs/trace.md")


def test_trace_page_names_exist():
    known: set[str] = set()
    for changes in ({"topology": "encoder-decoder"}, {"block": {"wiring": "reversible"}}):
        sites = Sites(af.spec(BASE, {"depth": 4} | changes))
        known |= {*sites.residuals, *sites.attention, *sites.logits}
    shown = re.findall(r"`((?:en|de)coder\.[\w.]+)`", PAGE)
    assert set(shown) <= known
    # Every kind of name is in the table.
    assert {re.sub(r"\d", "N", name) for name in known if name.startswith("decoder")} <= {
        re.sub(r"\d", "N", name) for name in shown
    }
