"""The page of a study: verdict, claims, plots, table, and how it was done."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

from anyformer.explain.prompt import safe
from anyformer.lab.plots import palette
from anyformer.lab.report.drawing import css, look, still_curves, still_finals
from anyformer.lab.report.plot_data import SHOWN, metrics, plot_data, shown_first
from anyformer.lab.results import Results
from anyformer.lab.statistics import curves, series
from anyformer.lab.statistics.comparison import judge
from anyformer.lab.statistics.table import Row, cells, legend, rows
from anyformer.lab.statistics.verdict import judgement_words, metric_words, verdict
from anyformer.specs import number_format
from anyformer.train.report.page import csp_hash, duration

OUTCOMES = ("better", "identical", "can't tell", "not judged", "worse")
"""The order in which the column of marks is sorted."""
SORT: dict[str, Callable[[Row], Any]] = {
    "variant": lambda row: row.name,
    "difference": lambda row: row.comparison and row.comparison.difference,
    "mark": lambda row: OUTCOMES.index(row.comparison.outcome) if row.comparison else 1.5,
    "params": lambda row: row.params,
    "train FLOPs": lambda row: row.train_flops,
    "train tok/s": lambda row: row.train_speed,
    "peak memory": lambda row: row.peak_memory,
    "decode tok/s": lambda row: row.decode_speed,
    "KV/token": lambda row: row.kv_bytes_per_token,
    "lr factor": lambda row: row.lr_factor,
    "tuning": lambda row: row.tuning_flops,
}
"""What columns are sorted by; others by their text, and that of the metric by its mean."""


def page(results: Results) -> str:
    """The text of the file. Nothing in it but our own script runs and nothing is fetched, whatever a variant is called."""
    folder = files("anyformer.lab.report")
    style = colours() + (folder / "page.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src {csp_hash(style)}; script-src {csp_hash(script)}; base-uri 'none'; form-action 'none'"
    data = safe(json.dumps(plot_data(results), allow_nan=False, separators=(",", ":")))
    title = escape(results.title or "Study")
    body = [
        f'<header><p class="kind">Study</p><h1>{title}</h1>{_figures(results)}</header>', "<main>", _verdict(results),
        _claims(results), _finals(results), _table(results), _curves(results), _costs(results), _lengths(results),
        *(_sweep(results, sweep, place) for place, sweep in enumerate(series.sweeps(results))), _variants(results), _method(results),
        _study(results), "</main><footer>Written by anyformer. All numbers are in results.json beside this file.</footer>",
        f'<script type="application/json" id="data">{data}</script>', f"<script>{script}</script>",
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def colours() -> str:
    """The palette as variables of the style sheet, light and dark."""
    light, dark = (
        "".join(f"--c{place + 1}: {colour}; " for place, colour in enumerate(table))
        for table in (palette.COLOURS, palette.DARK)
    )
    classes = "".join(f".c{place + 1} {{ color: var(--c{place + 1}); }}\n" for place in range(len(palette.COLOURS)))
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{classes}"


def pretty(text: str) -> str:
    """A sentence or a cell for the page: escaped, and a plus or minus as one sign."""
    return re.sub(r"\+-(?=\s?\d)", "\u00b1", escape(text))


def _section(name: str, title: str, *parts: str, wide: bool = True) -> str:
    inside = "".join(part for part in parts if part)
    kind = ' class="wide"' if wide else ""
    return f'<section id="{name}"{kind} aria-labelledby="{name}-title"><h2 id="{name}-title">{escape(title)}</h2>{inside}</section>'


def _hint(text: str) -> str:
    return f'<p class="hint">{escape(text)}</p>'


def _figures(results: Results) -> str:
    """What people ask for first."""
    ranked = series.finals(results)
    seeds = sorted({len(variant.runs) for variant in results.variants if variant.runs})
    lost = sum(len(variant.lost) for variant in results.variants)
    found = {
        "variants": f"{len(results.variants)}",
        "seeds each": "" if not seeds else f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        f"best mean {metric_words(results.metric)}": f"{ranked[0].estimate.mean:,.4f}" if ranked else "",
        "runs lost": f"{lost}" if lost else "",
        "total time": duration(results.seconds) if results.seconds else "",
        "date": results.date,
    }
    cell = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in found.items() if text)
    return f"<dl>{cell}</dl>"


def _verdict(results: Results) -> str:
    if not series.finals(results):
        return _section(
            "verdict", "Verdict", f"<p>No run has a {escape(metric_words(results.metric))}: nothing is judged.</p>"
        )
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict(results))
    return _section("verdict", "Verdict", f'<div class="verdict">{said}</div>')


def _claims(results: Results) -> str:
    items = "".join(
        f'<li><p class="claim"><span class="badge {css(each.verdict)}">{escape(each.verdict)}</span> '
        f"{escape(each.claim.claim)} <cite>{escape(each.claim.paper)}</cite></p><p>{pretty(judgement_words(each))}</p></li>"
        for each in judge(results)
    )
    return _section("claims", "Claims of the literature", f'<ul class="claims">{items}</ul>') if items else ""


def _finals(results: Results) -> str:
    still = still_finals(results)
    if not still:
        return ""
    options = "".join(
        f'<option value="{place}">{escape(metric_words(metric))}</option>'
        for place, metric in enumerate(metrics(results))
    )
    control = f'<div class="controls" hidden><label>metric <select id="final-metric">{options}</select></label></div>'
    hint = (
        "Best first. Thin: 95% interval of the mean; dots: single seeds. Thick: interval of the paired difference from the "
        "base, corrected for the number of comparisons. Filled, and clear of the dashed line: it differs from the base."
    )
    return _section("finals", "Final values", _hint(hint), control, _plot("finals-plot", still))


def _plot(name: str, still: str = "") -> str:
    """Where the script draws; until then, and without it, a still picture or a sentence."""
    instead = (
        still or "<noscript>This plot is drawn by a script, which is off; the numbers are in results.json.</noscript>"
    )
    return f'<div class="plot" id="{name}">{instead}</div>'


def _curves(results: Results) -> str:
    axes = curves.axes(results)
    if not axes:
        return ""
    options = "".join(f'<option value="{axis}">{escape(curves.WORDS[axis])}</option>' for axis in axes)
    boxes = (("log-y", "log y", ""), ("log-x", "log x", ""), ("seeds", "seeds", ""), ("spread", "spread", " checked"))
    checks = "".join(f'<label><input type="checkbox" id="{name}"{on}> {words}</label>' for name, words, on in boxes)
    controls = (
        f'<div class="controls" hidden><label>x <select id="x">{options}</select></label>'
        '<label>y <select id="y"><option value="loss">held-out loss</option><option value="apart">difference from the base'
        f'</option></select></label>{checks}<span class="both"><button type="button" id="all">all</button>'
        '<button type="button" id="none">only base</button></span></div>'
    )
    keys = f'<div class="keys" id="keys" role="group" aria-label="variants">{_keys(results)}</div>'
    hint = "Means over the seeds that finished; the spread is from the lowest to the highest seed. A name shows or hides its curve."
    return _section(
        "curves", "Learning curves", _hint(hint), controls, keys, _plot("curves-plot", still_curves(results, axes[0]))
    )


def _keys(results: Results) -> str:
    """What the lines of the still picture mean; the script makes buttons of them."""
    looks = palette.styles(results, shown_first(results))
    return "".join(
        f'<span class="key"><svg viewBox="0 0 38 10" width="38" height="10" aria-hidden="true"><line {look(looks[each.name])} '
        f'x1="1" x2="37" y1="5" y2="5"/></svg>{escape(each.name)}</span>'
        for each in results.variants
    )


def _table(results: Results) -> str:
    names, texts = _cells(results)
    if not texts:
        return ""
    keys = {metric_words(results.metric): lambda row: row.estimate and row.estimate.mean, **SORT}
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    lines = []
    for row, line in zip(_rows(results), texts, strict=True):
        inside = ""
        for name, text in zip(names, line, strict=True):
            key = keys[name](row) if name in keys else text
            attributes = "" if key is None else f' data-key="{escape(str(key))}"'
            if name == "mark" and row.comparison:
                attributes += f' class="said {css(row.comparison.outcome)}"'
            shown = pretty(text)
            inside += f"<td{attributes}>{shown}</td>" if name != "variant" else _name(row.name, attributes)
        kind = ' class="base"' if row.is_base else ""
        lines.append(f"<tr{kind}>{inside}</tr>")
    table = f'<table id="rows"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    box = f'<div class="scroll" tabindex="0" role="region" aria-label="table of variants">{table}</div>'
    notes = "".join(f"<li>{pretty(line)}</li>" for line in _legend(results))
    return _section("table", "Table", box, f'<ul class="hint">{notes}</ul>' if notes else "")


def _name(name: str, attributes: str = "") -> str:
    return f'<th scope="row"{attributes}><div class="name-cell">{escape(name)}</div></th>'


def _measured(results: Results) -> bool:
    """Whether any run has the metric of the study; without one there is nothing to compare."""
    return bool(series.finals(results))


def _cells(results: Results) -> tuple[list[str], list[list[str]]]:
    return cells(results) if _measured(results) or not results.variants else cells(_uncompared(results))


def _rows(results: Results) -> list[Row]:
    return rows(results if _measured(results) else _uncompared(results))


def _legend(results: Results) -> list[str]:
    return legend(results) if _measured(results) else []


def _uncompared(results: Results) -> Results:
    """The same without a base, so that nothing is compared."""
    return replace(results, base="")


def _costs(results: Results) -> str:
    found = series.costs(results)
    if not found:
        return ""
    hint = (
        "More tokens per second and fewer bytes are better. Bars: 95% intervals, and the range of the measured rounds."
    )
    if len(results.variants) > SHOWN:
        hint += " Named: the base, and of the variants that are shown those that no other one beats in both."
    plots = "".join(_plot(f"cost-{place}") for place in range(len(found)))
    return _section("costs", "Quality and decode cost", _hint(hint), f'<div class="pair">{plots}</div>')


def _lengths(results: Results) -> str:
    if not series.by_length(results):
        return ""
    parts = _hint("Bars: 95% intervals."), '<div class="keys" id="lengths-keys"></div>', _plot("lengths-plot")
    return _section("lengths", "Held-out loss by evaluation length", *parts)


def _sweep(results: Results, sweep: series.Sweep, place: int) -> str:
    title = f"{metric_words(results.metric)} by {sweep.key}"
    keys = f'<div class="keys" id="sweep-{place}-keys"></div>'
    return _section(
        f"sweep-{place}",
        title[0].upper() + title[1:],
        _hint("Bars: 95% intervals."),
        keys,
        _plot(f"sweep-{place}-plot"),
    )


def _variants(results: Results) -> str:
    """What is different in each, and what matching chose."""
    lines = "".join(
        f"<tr>{_name(each.name)}<td>{_pairs(each.changes) or 'nothing'}</td><td>{_pairs(each.solved)}</td>"
        f"<td>{each.steps:,}</td><td>{number_format.short(each.tokens_per_step * each.steps)}</td></tr>"
        for each in results.variants
    )
    names = ("variant", "changes", "solved", "steps", "tokens")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    table = f'<table class="text"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    box = f'<div class="scroll" tabindex="0" role="region" aria-label="changes of each variant">{table}</div>'
    return _section("variants", "Variants", box) if lines else ""


def _pairs(values: Mapping[str, Any]) -> str:
    texts = (f"{name} = {_toml(value)}" for name, value in values.items())
    return "".join(f'<div class="pairs"><code>{escape(text)}</code></div>' for text in texts)


def _toml(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _method(results: Results) -> str:
    tuning = sum(variant.tuning_flops for variant in results.variants)
    facts = {
        "Compared by": metric_words(results.metric), "Base": results.base, "Matched": results.match,
        "Budget of a run": results.budget, "Tuning": number_format.flops(tuning) if tuning else "",
        "Machine": results.machine, "Date": results.date, "Total time": duration(results.seconds) if results.seconds else "",
    }  # fmt: skip
    lines = "".join(
        f'<tr><th scope="row">{name}</th><td>{escape(text)}</td></tr>' for name, text in facts.items() if text
    )
    command = f"<h3>To repeat it</h3><pre>{escape(results.command)}</pre>" if results.command else ""
    missing = [
        f"{variant.name}, seed {run.seed}: {run.status}{f', {run.reason}' if run.reason else ''}"
        for variant in results.variants
        for run in variant.lost
    ]
    lists = _list("Notes", results.notes), _list("Runs that did not finish", missing)
    return _section("method", "How it was done", f'<table class="facts">{lines}</table>', command, *lists)


def _list(title: str, texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<h3>{title}</h3><ul>{items}</ul>" if items else ""


def _study(results: Results) -> str:
    if not results.study:
        return ""
    import tomli_w

    text = tomli_w.dumps(_without_none(results.study))
    inside = (
        f"<details><summary>study.toml <small>as it was asked for</small></summary><pre>{escape(text)}</pre></details>"
    )
    return _section("study", "Study", inside)


def _without_none(value: Any) -> Any:
    """Plain data as TOML can hold it, which has no word for nothing."""
    if isinstance(value, dict):
        return {str(name): _without_none(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in value if inner is not None]
    return value
