"""A summary in each format, as the commands show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from howfar.analysis.summary import Summary
from howfar.report import compose
from howfar.report.terminal import to_ascii


def _in_terminal(
    summary: Summary, width: int = 80, colour: bool = False, unicode: bool = True, details: bool = True
) -> str:
    return compose.in_terminal(summary, width, colour, unicode, details)


@dataclass(frozen=True)
class Format:
    render: Callable[[Summary], str]


@dataclass(frozen=True)
class Terminal:
    render: Callable[..., str]
    to_ascii: Callable[[str], str]


html, markdown, csv = Format(compose.as_html), Format(compose.as_markdown), Format(compose.as_csv)
terminal = Terminal(_in_terminal, to_ascii)
