"""Loaded into llama.cpp's pytest: leaves its downloads out, and writes down how each case ended."""

import json
import os

import pytest

RESULTS = "ANYFORMER_SUITE_RESULTS"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    """Its presets start every model once, to have them in a cache: here no model is fetched."""
    import utils

    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_runtest_logreport(report):
    """One line for each case: where, how it ended, and the end of what was said."""
    failed_before = report.when == "setup" and report.outcome != "passed"
    if report.when != "call" and not failed_before:
        return
    said = "" if report.longrepr is None else str(report.longrepr)
    printed = "".join(text for _, text in report.sections)
    line = {"name": report.nodeid, "outcome": report.outcome, "said": said[-4000:], "printed": printed[-20000:]}
    with open(os.environ[RESULTS], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
