"""docs/generation.md: its blocks print what it shows, and the options in its table are those that exist."""

import re

from anyformer.generation.engine import OWN
from anyformer.generation.options import ALIASES, NAMES
from tests.docs.fences import read, run

PAGE = read("docs/generation.md")


def test_generation_page_blocks_run_and_print_what_the_page_shows():
    run(PAGE, "docs/generation.md")


def test_generation_page_names_every_option():
    table = PAGE.split("| to | options |")[1].split("\n\n")[0]
    shown = set(re.findall(r"`(\w+)(?:=\w+)?`", table))
    known = {*NAMES, *ALIASES}
    assert shown <= known | set(OWN)
    # `first` is how a prompt that ends with a blank is continued, which the command line does by itself.
    assert known - shown == {"first"}
