"""report.html: all that a study found, in one file that needs no network."""

from pathlib import Path

from anyformer.files import replace_file
from anyformer.lab.results import Results

FILE = "report.html"


def write_report(results: Results, folder: Path) -> Path:
    """Write the page of a study into its folder; where it is."""
    from anyformer.lab.report.page import page

    place, text = folder / FILE, page(results)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(place, lambda beside: beside.write_text(text, encoding="utf-8", newline="\n"))
    return place
