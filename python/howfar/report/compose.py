"""A run's report in each format: its experiment's document, laid out."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.registry import document
from howfar.report import csv, html, markdown, terminal


def in_terminal(summary: Summary, width: int, colour: bool, unicode: bool, details: bool) -> str:
    return terminal.render(document(summary), width, colour, unicode, details)


def as_html(summary: Summary) -> str:
    return html.render(document(summary))


def as_markdown(summary: Summary) -> str:
    return markdown.render(document(summary))


def as_csv(summary: Summary) -> str:
    return csv.render(document(summary))
