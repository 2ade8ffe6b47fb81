"""The page of a run: title, figures, charts, samples, and what it was made of."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from anyformer.specs import number_format
from anyformer.train.report.chart import Chart, Line, plain

if TYPE_CHECKING:
    from anyformer.train.report import About, Report

SHOWN = 6
"""Samples that are shown at once; the others on request."""
FIGURES = 4
"""Other figures of looks, and terms of the loss, that have a chart of their own."""
UNITS = {"accuracy": "share that is right", "bleu": "BLEU (0 to 100)"}
"""What goes up a chart of these figures; of others, their names."""


def page(report: Report) -> str:
    """The text of the file. Nothing in it runs and nothing is fetched, whatever a sample says."""
    style = (files("anyformer.train.report") / "page.css").read_text(encoding="utf-8")
    about, title = report.about, headline(report)
    body = [
        f'<header><p class="kind">Training run</p><h1>{escape(about.name)}: {escape(title)}</h1>{_figures(report)}</header>',
        "<main>", *_charts(report), _samples(report), _architecture(about), *(_facts(title, table) for title, table in about.facts.items()),
        _text("Config", "config.toml, every default written out", about.config), _text("Spec", "spec.toml", about.spec),
        "</main><footer>Written by anyformer. The numbers are in metrics.jsonl beside this file.</footer>",
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src {csp_hash(style)}">\n'
        f"<title>{escape(about.name)}: {escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def csp_hash(text: str) -> str:
    """What a content security policy calls an inline element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def headline(report: Report) -> str:
    """The result in a few words."""
    done, total = int(report.steps.last("step")), report.about.total
    spent = f"after {done:,} steps" if done >= total else f"at step {done:,} of {total:,}"
    look = report.newest()
    if look is None or look.get("loss") is None:
        return f"loss {plain(report.steps.last('loss'))} {spent}"
    if look.get("bits_per_byte") is not None:
        return f"{look['bits_per_byte']:.3f} bits per byte {spent}"
    figures = look.get("figures") or {}
    for name in ("bleu", "accuracy"):
        if figures.get(name) is not None:
            value = figures[name]
            return f"{name} {f'{value:.1%}' if 0 <= value <= 1 else plain(value)} {spent}"
    return f"held-out loss {look['loss']:.4f} {spent}"


def _figures(report: Report) -> str:
    """The numbers that people ask for first."""
    steps, about = report.steps, report.about
    seconds, tokens = steps.last("seconds"), steps.last("tokens")
    speed = tokens / seconds if seconds > 0 else math.nan
    look: Mapping[str, Any] = report.newest() or {}
    held = look.get("loss")
    # The whole held-out part can't be compared with a sample of it.
    final = any(look is each for each in report.finals)
    best = None if final else min((n for seen in report.curve() if (n := seen.get("loss"))), default=None)
    found = {
        "held-out loss": None if held is None else f"{held:.4f}",
        "held-out rows": _rows_of(look),
        "best held-out loss": None if best is None or held is None or best >= held else f"{best:.4f}",
        "training loss": f"{steps.smooth('loss')[-1][1]:.4f}" if steps.smooth("loss") else None,
        "parameters": number_format.params(about.params),
        "tokens": number_format.short(tokens),
        "time in steps": duration(seconds),
        "tokens/s": f"{speed:,.0f}" if math.isfinite(speed) else None,
        "MFU": None if not about.peak else f"{about.flops_per_token(int(steps.last('step'))) * speed / about.peak:.1%}",
        "memory": number_format.data(steps.last("memory")) if steps.last("memory") > 0 else None,
        "steps left out": f"{len(steps.skips())}" if steps.skips() else None,
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in found.items() if value)
    return f"<dl>{cells}</dl>"


def _charts(report: Report) -> Iterator[str]:
    steps, about = report.steps, report.about
    stages = [(each.first, each.words) for each in about.stretches if len(about.stretches) > 1]
    common: dict[str, Any] = {"total": about.total, "marks": stages}
    train = Line(name="training rows, smoothed", points=steps.smooth("loss"), style="train")
    faults = steps.skips()
    loss = "squared error" if "squared_error" in steps.terms else "loss (nats per label)"
    lines, band = [train, *_held_out(report, lambda look: look.get("loss"))], steps.band("loss")
    yield _chart(Chart(title="Loss", measure=loss, lines=lines, band=band, faults=faults, wide=True, **common))
    charts = [
        Chart(title="Learning rate", measure="factor on the peak", unit=lambda v: f"{v:g}", from_zero=True,
              lines=[Line(name="factor on the peak", points=steps.curve("rate"), style="train")], **common),
        Chart(title="Gradient norm", measure="norm", log=True, faults=faults, band=steps.band("gradient_norm"),
              lines=[Line(name="before clipping", points=steps.smooth("gradient_norm"), style="train")], **common),
        Chart(title="Speed", measure="tokens per second", unit=number_format.short, from_zero=True,
              lines=[Line(name="tokens/s", points=steps.speed(), style="train")], **common),
        Chart(title="Memory", measure="bytes in use at most", unit=number_format.data, from_zero=True,
              lines=[Line(name="at most so far", points=steps.curve("memory"), style="train")], **common),
    ]  # fmt: skip
    for name in _others(report):
        lines = _held_out(report, lambda look, name=name: {**look, **(look.get("figures") or {})}.get(name))
        words = name.replace("_", " ")
        charts.append(Chart(title=words.capitalize(), measure=UNITS.get(name, words), lines=lines, **common))
    for name in [name for name in steps.terms if name not in ("total", "cross_entropy", "squared_error")][:FIGURES]:
        line = Line(name="term of the loss", points=steps.smooth(name), style="train")
        words = name.replace("_", " ")
        charts.append(Chart(title=words.capitalize(), measure=words, lines=[line], **common))
    yield from map(_chart, charts)


def _held_out(report: Report, value: Callable[[Mapping[str, Any]], float | None]) -> list[Line]:
    """A figure of held-out rows: its curve, what was measured on other rows, and all of them at the end."""

    def points(looks: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
        return [(look["step"], found) for look in looks if (found := value(look)) is not None]

    sample = report.curve()
    part = f", {words}" if sample and (words := _rows_of(sample[-1])) else ""
    other: dict[str, Any] = {"name": "held out, other rows", "style": "other", "dots": True}
    return [
        *(Line(points=points(looks), **other) for looks in report.other_curves()),
        Line(name=f"held out{part}", points=points(sample), style="valid", dots=True),
        Line(name="held out, all rows", points=points(report.finals), style="final", dots=True, joined=False),
    ]


def _rows_of(look: Mapping[str, Any]) -> str | None:
    """How many of the rows a look was at."""
    rows, every = look.get("rows"), look.get("all_rows")
    if not isinstance(rows, int) or not isinstance(every, int):
        return None
    return f"all {every:,} rows" if rows == every else f"{rows:,} of {every:,} rows"


def _others(report: Report) -> list[str]:
    """Figures of looks beside the loss."""
    names: dict[str, None] = {}
    for look in (*report.looks, *report.finals):
        names |= dict.fromkeys(["bits_per_byte"] if look.get("bits_per_byte") is not None else [])
        names |= dict.fromkeys(look.get("figures") or {})
    return list(names)[:FIGURES]


def _chart(chart: Chart) -> str:
    if chart.empty:
        return ""
    keys = "".join(f'<span class="{line.style}">{escape(line.name)}</span>' for line in chart.lines if line.points)
    if chart.faults:
        keys += '<span class="fault">left out</span>'
    wide, drawn = ' class="wide"' if chart.wide else "", chart.svg()
    if chart.wide:
        # A phone gets a drawing of its own: the wide one would be too small to read there.
        drawn = f'<div class="desk">{drawn}</div><div class="phone">{replace(chart, wide=False).svg()}</div>'
    return f'<section{wide}><h2>{escape(chart.title)}</h2><p class="keys">{keys}</p>{drawn}</section>'


def _samples(report: Report) -> str:
    """What the model said, the last first."""
    said = [sample for sample in reversed(report.samples) if str(sample.get("text", "")).strip()]
    if not said:
        return ""
    # Of many, those that show how it learned to speak: spread over the run, newest and oldest included.
    shown = {round(i * (len(said) - 1) / (SHOWN - 1)) for i in range(SHOWN)} if len(said) > SHOWN else range(len(said))
    parts = [
        f'<div class="sample"><h3>step {sample["step"]:,}</h3><pre>{escape(str(sample["text"]))}</pre></div>'
        for sample in said
    ]
    rest = [part for i, part in enumerate(parts) if i not in shown]
    more = f"<details><summary>{len(rest)} more</summary>{''.join(rest)}</details>" if rest else ""
    return f'<section class="wide"><h2>Samples</h2>{"".join(parts[i] for i in sorted(shown))}{more}</section>'


def _architecture(about: About) -> str:
    words = f"<p>{escape(about.summary)}</p>" if about.summary else ""
    stages = "".join(f"<li>{escape(each.words)}, from step {each.first + 1:,}</li>" for each in about.stretches)
    listed = f"<h3>Stages</h3><ul>{stages}</ul>" if len(about.stretches) > 1 else ""
    return f'<section class="wide"><h2>Model</h2>{words}{listed}</section>' if words or listed else ""


def _facts(title: str, table: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in table.items())
    return f"<section><h2>{escape(title)}</h2><table>{rows}</table></section>" if table else ""


def _text(title: str, hint: str, text: str) -> str:
    if not text:
        return ""
    return f"<section><details><summary>{title} <small>{escape(hint)}</small></summary><pre>{escape(text)}</pre></details></section>"


def duration(seconds: float) -> str:
    """A time for people: 42 s, 3:05 min, 2:10 h, 3.5 days."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    if whole < 48 * 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole / 86400:.1f} days"
