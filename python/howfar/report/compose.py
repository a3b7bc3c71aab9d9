"""Until every experiment makes a document: its document where there is one, else the older report."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.registry import document
from howfar.report import csv, html, markdown, old_csv, old_html, old_markdown, old_terminal, terminal


def in_terminal(summary: Summary, width: int, colour: bool, unicode: bool, details: bool) -> str:
    found = document(summary)
    if found is None:
        return old_terminal.render(summary, width, colour, unicode)
    return terminal.render(found, width, colour, unicode, details)


def as_html(summary: Summary) -> str:
    found = document(summary)
    return html.render(found) if found else old_html.render(summary)


def as_markdown(summary: Summary) -> str:
    found = document(summary)
    return markdown.render(found) if found else old_markdown.render(summary)


def as_csv(summary: Summary) -> str:
    found = document(summary)
    return csv.render(found) if found else old_csv.render(summary)
