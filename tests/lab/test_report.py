"""The page of a study: all that was found is in it as text, nothing that a name says can break it, and it stays small."""

import html
import json
import re
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from anyformer.lab.report import FILE, write_report
from anyformer.lab.report.page import page
from anyformer.lab.report.plot_data import POINTS, plot_data
from anyformer.lab.results import Results
from anyformer.lab.statistics.comparison import judge
from anyformer.lab.statistics.table import cells
from anyformer.lab.statistics.verdict import verdict
from anyformer.train.report.page import csp_hash
from tests.lab.synthetic import GAINS, many, study, sweep, variant

HOSTILE = (
    "</script><script>document.documentElement.dataset.taken='yes'</script>",
    "<img src=x onerror=\"document.documentElement.dataset.taken='yes'\">",
    "]]><!--<script>\u2028 &amp; \"double\" 'single' \\",
    "</textarea></style></title></svg>",
)


def text_of(document):
    """What a reader sees, without the script, in one line."""
    visible = re.sub(r"<(script|style)\b.*?</\1>", " ", document, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", visible)).split())


def data_of(document):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def stills_of(document):
    """The still pictures, each the first thing in the place of a plot."""
    plots = re.findall(r'<div class="plot" id="[\w-]+">(.*?)</div>', document, re.DOTALL)
    return [plot for plot in plots if plot.startswith('<svg class="still"')]


def hostile_study():
    """Everything that a study can be given is made of tags."""
    results, script = study(seeds=2), HOSTILE[0]
    names = ["base", *HOSTILE, "x" * 300]
    variants = [
        replace(v, name=name, changes={script: HOSTILE[1]}, solved={HOSTILE[1]: script})
        for v, name in zip(results.variants, names, strict=True)
    ]
    claims = [replace(claim, claim=script, paper=HOSTILE[1], better=script) for claim in results.claims]
    return replace(
        results, title=script, notes=list(HOSTILE), command=HOSTILE[1], machine=script, date=script, budget=HOSTILE[1],
        match=script, study={script: {"x": HOSTILE[1]}}, variants=variants, claims=claims,
    )  # fmt: skip


@pytest.fixture(scope="module")
def document():
    return page(study(lengths=(128, 512, 2048)))


def test_report_is_written_into_a_new_folder_and_made_again_from_the_stored_results(tmp_path):
    results = study(seeds=2)
    place = write_report(results, tmp_path / "deep" / "folder")
    assert place == tmp_path / "deep" / "folder" / FILE
    results.save(tmp_path)
    assert page(Results.read(tmp_path)) == place.read_text(encoding="utf-8")


def test_page_says_the_verdict_and_every_claim_with_its_own(document):
    results, text = study(lengths=(128, 512, 2048)), text_of(document)
    for sentence in verdict(results):
        assert sentence in text
    for found in judge(results):
        assert f"{found.verdict} {found.claim.claim} {found.claim.paper}" in text
    assert {found.verdict for found in judge(results)} == {"agrees", "can't tell"}


def test_page_has_the_table_with_a_value_to_sort_each_cell_by(document):
    results = study(lengths=(128, 512, 2048))
    names, rows = cells(results)
    table = re.search(r'<table id="rows">(.*?)</table>', document, re.DOTALL)
    assert table is not None
    head, *lines = re.findall(r"<tr.*?</tr>", table[1], re.DOTALL)
    assert re.findall(r'<th scope="col">(.*?)</th>', head) == names
    assert len(lines) == len(GAINS)
    for line, row in zip(lines, rows, strict=True):
        assert text_of(line).replace("\u00b1", "+-") == " ".join(" ".join(row).split())
    keys = [re.findall(r'data-key="([^"]*)"', line) for line in lines]
    means = [sum(v.values("loss").values()) / len(v.values("loss")) for v in results.variants]
    assert [float(line[1]) for line in keys] == pytest.approx(means)


def test_page_says_how_the_study_was_done(document):
    results, text = study(), text_of(document)
    for fact in (results.match, results.budget, results.command, results.machine, results.date, *results.notes):
        assert fact in text
    assert "ffn.width = 344" in text
    assert "post-norm, seed 3: diverged, the loss was not finite at step 512" in text


def test_page_holds_the_study_as_toml_that_reads_back(document):
    found = re.search(r"<summary>study.toml.*?<pre>(.*?)</pre>", document, re.DOTALL)
    assert found is not None
    assert tomllib.loads(html.unescape(found[1])) == study().study


def test_page_of_a_study_with_empty_fields_leaves_them_out_of_its_toml():
    found = re.search(
        r"<summary>study.toml.*?<pre>(.*?)</pre>", page(replace(study(), study={"then": None, "seeds": 2})), re.DOTALL
    )
    assert found is not None
    assert tomllib.loads(html.unescape(found[1])) == {"seeds": 2}


def test_page_asks_nobody_for_anything(document):
    assert not re.search(
        r"<link|<iframe|\bsrc=|\burl\(|@import|\bfetch\(|XMLHttpRequest|\bimport\(|WebSocket", document
    )
    assert re.findall(r"https?://[^\"' ]+", document) == ["http://www.w3.org/2000/svg"], "the name of a namespace"


def test_page_allows_its_own_style_and_script_only(document):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', document)
    assert policy is not None
    (style,) = re.findall(r"<style>(.*?)</style>", document, re.DOTALL)
    script = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)[-1]
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules == {
        "default-src": "'none'", "style-src": csp_hash(style), "script-src": csp_hash(script), "base-uri": "'none'",
        "form-action": "'none'",
    }  # fmt: skip
    assert not re.search(r"<[^>]+\s(style|on\w+)=", re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL))


def test_page_shows_hostile_names_as_they_are_and_runs_none_of_them():
    made = page(hostile_study())
    assert made.count("<script") == made.count("</script>") == 2
    assert not re.search(r"<img|<textarea|<!--", made)
    assert {each["name"] for each in data_of(made)["variants"]} == {"base", *HOSTILE, "x" * 300}
    # Blanks at line separators are the test's, not the page's.
    for name in HOSTILE:
        assert " ".join(name.split()) in text_of(made)
    for still in stills_of(made):
        ET.fromstring(still)


def test_page_without_a_script_shows_final_values_and_curves_as_pictures(document):
    finals, curves = stills_of(document)
    assert finals.count('class="dot') == len(GAINS)
    assert 'class="dot better"' in finals
    assert "diverged in 1 of 5 seeds" in finals
    assert curves.count("<polyline") == len(GAINS)
    for still in (finals, curves):
        ET.fromstring(still)


def test_curves_of_a_page_are_thinned_and_end_where_the_runs_do():
    results = study(points=500)
    data = plot_data(results)
    assert max(len(each["y"]) for each in (*data["bands"], *data["runs"])) == POINTS
    for run in data["runs"]:
        of = results.variants[run["v"]].runs[run["seed"]]
        assert run["y"][-1] == pytest.approx(of.curve[-1][2], abs=1e-4)
        steps = data["grids"][run["step"]]
        assert steps[-1] == of.steps
        assert steps[-1] * run["x"]["time"]["each"] == pytest.approx(of.seconds, rel=1e-5)
    assert [run["lost"] for run in data["runs"] if "lost" in run] == ["diverged"]


def test_runs_whose_tokens_do_not_grow_evenly_have_a_list_of_them():
    results = study(seeds=2)
    uneven = [
        replace(run, curve=[(step, tokens + step**2, loss) for step, tokens, loss in run.curve])
        for run in results.variants[0].runs
    ]
    data = plot_data(replace(results, variants=[replace(results.variants[0], runs=uneven)], claims=[]))
    along = data["runs"][0]["x"]["tokens"]
    assert data["grids"][along] == pytest.approx([tokens for _, tokens, _ in uneven[0].curve], rel=1e-5)


def test_page_of_twelve_variants_and_five_seeds_is_small():
    variants = [variant(f"variant {i}", 0.01 * i, points=1000, speed=1 + i / 100) for i in range(11)]
    results = replace(study(points=1000), claims=[])
    results = replace(results, variants=[results.variants[0], *variants])
    assert len(page(results).encode()) < 300_000


def test_page_of_twenty_variants_shows_few_curves_first():
    data = plot_data(many())
    assert len(data["variants"]) == 20
    first = [each["name"] for each in data["variants"] if each["shown"]]
    assert len(first) == 8
    assert "base" in first
    assert {0, 1, 19} <= {each["rank"] for each in data["variants"] if each["shown"]}


def test_page_of_a_sweep_has_a_plot_for_it():
    made = page(sweep(seeds=2))
    assert 'id="sweep-0-plot"' in made
    assert "Held-out loss by lr" in text_of(made)
    (found,) = data_of(made)["sweeps"]
    assert [line["label"] for line in found["lines"]] == ["width=256", "width=512"]


def odd_studies():
    results = study(seeds=2)
    unmeasured = [
        replace(v, speeds={}, runs=[replace(run, status="failed", metrics={}, curve=[]) for run in v.runs])
        for v in results.variants
    ]
    short = [replace(v, runs=[replace(run, curve=run.curve[-1:]) for run in v.runs]) for v in results.variants]
    lost = replace(
        results.variants[1], runs=[replace(run, status="diverged", metrics={}) for run in results.variants[1].runs]
    )
    return {
        "empty": Results(title=""),
        "without a base": replace(results, base="nobody", claims=[]),
        "without a value": replace(results, variants=unmeasured),
        "base alone": replace(results, variants=results.variants[:1], claims=[]),
        "one seed": study(seeds=1),
        "one point": replace(results, variants=short),
        "all runs of a variant lost": replace(results, variants=[results.variants[0], lost], claims=[]),
        "by a speed": replace(results, metric="decode_tokens_per_second", claims=[]),
    }


@pytest.mark.parametrize("name", odd_studies())
def test_page_of_an_odd_study_is_whole(name):
    results = odd_studies()[name]
    made = page(results)
    assert made.endswith("</html>\n")
    assert len(data_of(made)["variants"]) == len(results.variants)
    for still in stills_of(made):
        ET.fromstring(still)
    sections = re.findall(r'<section id="([\w-]+)"', made)
    assert len(sections) == len(set(sections))
    assert "verdict" in sections


def test_page_of_a_study_whose_runs_failed_says_so_and_lists_them():
    text = text_of(page(odd_studies()["without a value"]))
    assert "No run has a held-out loss: nothing is judged." in text
    assert "alibi, seed 1: failed" in text


def test_page_of_a_variant_without_a_finished_run_names_it_among_the_final_values():
    finals = stills_of(page(odd_studies()["all runs of a variant lost"]))[0]
    assert "diverged in 2 of 2 seeds" in finals
