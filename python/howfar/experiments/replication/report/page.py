"""The page of a run of replication. The order is that of a reader's questions: what does it cost, what does a crash lose, what to do,
and how is that known. Start at `body`."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.replication.report import fallback_chart, gallery, tables, words
from howfar.experiments.replication.report.text import first_sentences, said
from howfar.report import figures, grid_gallery, grid_page, sections
from howfar.report.fragments import details, facts, sentence, text
from howfar.report.setup import head_line


def body(summary: Summary) -> str:
    return "".join(
        (
            _answer(summary),
            sections.warnings(summary),
            _trade(summary),
            sections.advice(summary),
            gallery.split(summary),
            _losses(summary),
            gallery.last_moments(summary),
            _fallbacks(summary),
            gallery.lag(summary),
            _published(summary),
            _cells(summary),
            sections.method(summary),
            _receipts(summary) or _environment(summary),
            sections.footer(summary),
        )
    )


def _answer(summary: Summary) -> str:
    findings = summary.replication
    assert findings is not None, "this page is made of them"
    first, rest = first_sentences(summary.verdict)
    sentences = [*rest, *said(findings, summary.verdict)]
    items = "".join(f"<li>{sentence(line)}</li>" for line in sentences)
    noise = f'<p class="small">{sentence(line)}</p>' if (line := figures.noise_line(summary)) else ""
    return (
        f"<h1>howfar: {text(summary.plan)}{' (quick)' if summary.quick else ''}</h1>"
        f'<p class="verdict{" long" if len(first) > grid_page.LONG else ""}">{sentence(first)}</p>'
        f"{gallery.cards(summary) or gallery.story_cards(summary)}{_chief(summary)}"
        + (f"<ul>{items}</ul>" if items else "")
        + f'<p class="muted small">{sentence(head_line(summary))}.</p>{noise}'
    )


def _chief(summary: Summary) -> str:
    """What answers the plan's question: the cost (with one number of connections as a table), else the losses, else the fallback."""
    if drawn := gallery.throughput(summary) or gallery.losses(summary):
        return drawn
    if summary.replication and summary.replication.cost:
        return grid_page.section(tables.matrix(summary.replication.cost))
    return "".join(
        gallery.fallback(story, f"fallback{index}", summary)
        for index, story in enumerate(fallback_chart.drawn(summary)[:1])
    )


def _trade(summary: Summary) -> str:
    findings = summary.replication
    assert findings is not None, "this page is made of them"
    others = "".join(grid_page.section(found, "main stack trade") for found in tables.other_trades(findings))
    return grid_page.section(tables.trade(findings, wide=True), "main stack trade") + (
        details("At other distances", others) if others else ""
    )


def _losses(summary: Summary) -> str:
    """The table; the dots too where another chart is the chief one."""
    findings = summary.replication
    if findings is None or findings.crash is None or not findings.crash.losses:
        return ""
    dots = gallery.losses(summary) if findings.cost else ""
    return grid_page.section(tables.losses(findings.crash.losses), "main stack") + dots


def _fallbacks(summary: Summary) -> str:
    findings = summary.replication
    if findings is None or not findings.fallback:
        return ""
    first = findings.cost is None and findings.crash is None
    stories = list(enumerate(fallback_chart.drawn(summary)))[1 if first else 0 :]
    names = words.story_names(fallback_chart.drawn(summary))
    charts = "".join(
        f"<h3>{text(names[index])}</h3>{gallery.fallback(story, f'fallback{index}', summary)}"
        for index, story in stories
    )
    return grid_page.section(tables.fallbacks(findings.fallback)) + charts


def _cells(summary: Summary) -> str:
    """What only broke things has no figures but those of its faults."""
    if figures.only_broke(summary):
        return ""
    return grid_gallery.drift(summary) + details("Every cell with all its figures", sections.main_table(summary))


def _receipts(summary: Summary) -> str:
    """Of each mode under each fault one: they are long, and the JSON has them all."""
    kinds = {(cell.factors.get("replication"), cell.factors.get("fault")): cell for cell in summary.cells}
    chosen = tuple(kinds.values())
    more = len(summary.cells) - len(chosen)
    note = f'<p class="muted small">One a mode; --json has the other {more}.</p>' if more else ""
    shown = grid_page.receipts(summary.model_copy(update={"cells": chosen}))
    return shown and shown + note


def _environment(summary: Summary) -> str:
    """Where no trial has a receipt of a measured window."""
    return "<h2>The machine</h2>" + details("The machine and the versions", facts(summary.environment))


def _published(summary: Summary) -> str:
    cost = summary.replication.cost if summary.replication else None
    return grid_page.section(tables.published(cost)) if cost else ""
