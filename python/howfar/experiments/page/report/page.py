"""The web page about runs of pages. The order is that of a reader's questions: one machine or two, where does that flip, where does a
page's time go, does anybody notice, what to do, and how is that known. Start at `body`."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import PageFindings
from howfar.experiments.page.report import gallery, tables, words
from howfar.experiments.page.report.text import said
from howfar.report import figures, grid_gallery, grid_page, sections
from howfar.report.fragments import details, sentence, text
from howfar.report.setup import head_line


def body(summary: Summary) -> str:
    findings = summary.pages
    assert findings is not None, "this page is made of them"
    return "".join(
        (
            _answer(summary, findings),
            sections.warnings(summary),
            _choices(findings),
            sections.advice(summary),
            gallery.split(summary),
            grid_page.section(tables.turns(findings, wide=True), "main stack"),
            gallery.latency(summary),
            gallery.foreseen(summary),
            grid_page.section(tables.agreement(findings, wide=True), "main stack"),
            _cpu(findings),
            grid_page.section(tables.published(findings)),
            grid_gallery.drift(summary),
            _every(findings),
            sections.method(summary),
            grid_page.receipts(summary),
            sections.footer(summary),
        )
    )


def _answer(summary: Summary, findings: PageFindings) -> str:
    """Answer, flip and chart: all of it on the first screen."""
    first, rest = _said_large(summary, findings)
    items = "".join(f"<li>{sentence(line)}</li>" for line in [*rest, *said(findings, summary.verdict)])
    noise = f'<p class="small">{sentence(line)}</p>' if (line := figures.noise_line(summary)) else ""
    return (
        f"<h1>howfar: {text(summary.plan)}{' (quick)' if summary.quick else ''}</h1>"
        f'<p class="verdict{" long" if len(first) > grid_page.LONG else ""}">{sentence(first)}</p>'
        f"{gallery.cards(findings)}{gallery.crossing(summary)}"
        f"{grid_page.section(tables.first(findings), 'main stack')}"
        f"{grid_page.section(tables.flips(words.chief_crossings(findings)), 'main stack')}"
        + (f"<ul>{items}</ul>" if items else "")
        + f'<p class="muted small">{sentence(head_line(summary))}.</p>{noise}'
    )


MUCH = 360
"""Characters of an answer in large letters, with which the chart is still on the first screen."""


def _said_large(summary: Summary, findings: PageFindings) -> tuple[str, list[str]]:
    """An answer of many clauses is large as far as its first: the cards say the rest, and below it stands whole."""
    verdict = summary.verdict
    if len(verdict) > MUCH and findings.sentences and verdict == findings.sentences[0] and gallery.cards(findings):
        return f"{_first_clause(verdict)}.", [verdict]
    return verdict, []


def _first_clause(verdict: str) -> str:
    """As far as the first semicolon that is in no bracket: what the answer is for one page, with its figure and its condition."""
    depth = 0
    for at, letter in enumerate(verdict):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == ";" and depth == 0:
            return verdict[:at]
    return verdict.rstrip(".")


def _choices(findings: PageFindings) -> str:
    """The chief ones are below the chart, as its figures."""
    shown = words.chief_choices(findings)
    others = [choice for choice in findings.choices if choice not in shown]
    more = grid_page.section(tables.choices(others, wide=True)) + grid_page.section(
        tables.flips(tables.other_crossings(findings))
    )
    return details("One machine or two, with other applications, connections and pages in flight", more) if more else ""


def _cpu(findings: PageFindings) -> str:
    chief = [arm for setting in words.chief(findings) for arm in words.arms_of(findings, setting)]
    every = details("The same of every arm", grid_page.section(tables.cpu(findings, findings.arms)))
    return grid_page.section(tables.cpu(findings, chief), "main stack") + (
        every if len(findings.arms) > len(chief) else ""
    )


def _every(findings: PageFindings) -> str:
    return details("Every arm", grid_page.section(tables.everything(findings)))
