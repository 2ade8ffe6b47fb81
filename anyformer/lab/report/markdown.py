"""Pages of finished studies as Markdown: one for each study, and one row for each claim of the literature that they judge."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anyformer.lab.results import Results
from anyformer.lab.statistics.comparison import Judgement, judge
from anyformer.lab.statistics.table import cells, legend
from anyformer.lab.statistics.verdict import judgement_words, span, verdict

VERDICTS = {"agrees": "**agrees**", "differs": "**differs**", "can't tell": "can't tell at this size"}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim with its verdict, for the page of claims."""

    study: str
    """The name of the study's folder."""
    claim: str
    paper: str
    verdict: str
    interval: str
    words: str
    command: str


def study_page(results: Results, *, pictures: Sequence[str] = (), note: str = "") -> str:
    """What is claimed, what was measured, and whether it agrees."""
    lines = [f"# {results.title}", ""]
    lines += [note, ""] if note else []
    lines += [*(f"- {sentence}" for sentence in verdict(results)), ""]
    judged = judge(results)
    if judged:
        rows = [
            (each.claim.claim, _paper(each.claim.paper), VERDICTS[each.verdict], judgement_words(each))
            for each in judged
        ]
        lines += ["## Claims", "", *table(("claim", "paper", "verdict", "what was measured"), rows), ""]
    names, body = cells(results)
    lines += ["## Variants", "", *table(names, body), "", *(f"{text}  " for text in legend(results)), ""]
    lines += [f"![{name}]({name})" for name in pictures]
    base = results.variant(results.base).changes if any(v.name == results.base for v in results.variants) else {}
    runs = [run for variant in results.variants for run in variant.runs if run.steps]
    facts = {
        "base": ", ".join(f"{name} = {value}" for name, value in base.items()),
        "repeat it": f"`{results.command}`" if results.command else "",
        "budget of a run": results.budget,
        "matched": results.match,
        "machine": results.machine,
        "date": results.date,
        "runs": f"{len(runs)}, {sum(run.seconds for run in runs):.0f} s in training steps, {results.seconds:.0f} s by the clock",
    }
    lines += ["", "## How", "", *table(("", ""), [(name, text) for name, text in facts.items() if text]), ""]
    lines += [*(f"- {note}" for note in results.notes), ""] if results.notes else []
    lines.append("[report.html](report.html) has the curves, with every seed; results.json has all numbers.")
    return "\n".join(lines) + "\n"


def judged_claims(study: str, results: Results) -> list[Judged]:
    """The rows of a study in the page of claims."""
    found: list[Judged] = []
    for each in judge(results):
        same = {"claim": each.claim.claim, "paper": each.claim.paper, "verdict": each.verdict}
        words, interval = judgement_words(each), _interval(each)
        found.append(Judged(study=study, command=results.command, words=words, interval=interval, **same))
    return found


def claims_page(rows: Sequence[Judged], *, introduction: str = "") -> str:
    """All claims, by study."""
    counts: Mapping[str, int] = {kind: sum(row.verdict == kind for row in rows) for kind in VERDICTS}
    unclear = counts["can't tell"]
    total = f"{len(rows)} claims: {counts['agrees']} agree, {counts['differs']} differ, {unclear} can't be told at this size."
    lines = ["# Claims of the literature, measured", "", introduction, "", total, ""]
    body = [
        (
            row.claim,
            _paper(row.paper),
            VERDICTS[row.verdict],
            row.interval,
            f"[{row.study}](../studies/{row.study}/README.md)",
        )
        for row in rows
    ]
    lines += table(("claim", "paper", "verdict", "difference, 95% over the study's claims", "study"), body)
    commands = dict.fromkeys((row.study, row.command) for row in rows)
    lines += ["", "## Repeat them", "", "```sh", *(command for _, command in commands if command), "```"]
    return "\n".join(lines) + "\n"


def _paper(text: str) -> str:
    """A reference, with a link where it has a number of arXiv."""
    head, found, number = text.rpartition("arXiv:")
    return (
        f"{head}[arXiv:{number}](https://arxiv.org/abs/{number})"
        if found and number.replace(".", "").isdigit()
        else text
    )


def _interval(found: Judgement) -> str:
    if found.interval is None or found.difference is None:
        return found.reason or ""
    return span(found.interval, speed=found.speed)


def table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A table of Markdown."""
    heads = list(names)
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return lines + [f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
