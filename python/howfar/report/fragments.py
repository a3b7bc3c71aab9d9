"""Small pieces of HTML. Everything that comes from data is escaped here; nothing else in the report writes `<`...`>` by hand
around a value."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_DEPTH = 6
"""Receipts and environments are nested tables; deeper values are written as text."""


def text(value: object) -> str:
    """Escaped."""
    return html.escape(str(value), quote=True)


def sentence(value: str) -> str:
    """Escaped; intervals in brackets, and numbers with their percent sign, are kept on one line."""
    return re.sub(
        r"(?:[≥≤x] )?[0-9.]+ \[[^\]]*\]|\[[^\]]*\]|[0-9.]+ %|\bx [0-9.]+",
        lambda match: f'<span class="keep">{match[0]}</span>',
        text(value),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", kind: str = "") -> str:
    """A plain table of text; the first cell of a row names it. `kind`: its classes in the style
    sheet; a `stack` becomes cards on a phone."""

    def cell_of(name: str, value: str) -> str:
        label = f' data-label="{text(name)}"' if "stack" in kind else ""
        return f"<td{label}><span>{sentence(value)}</span></td>" if label else f"<td>{text(value)}</td>"

    top = "".join(f'<th scope="col">{sentence(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>'
        + "".join(cell_of(*pair) for pair in zip(head[1:], row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    named = f"<caption>{text(caption)}</caption>" if caption else ""
    shown = f' class="{kind}"' if kind else ""
    return f'<div class="scroll"><table{shown}>{named}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(values: Mapping[str, Any], depth: int = 0) -> str:
    """Nested facts as a two-column table; None reads "unknown"."""
    rows = "".join(
        f'<tr><th scope="row">{text(_name(key))}</th><td>{_fact(key, value, depth)}</td></tr>'
        for key, value in values.items()
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>' if rows else '<p class="muted">nothing recorded</p>'


def _name(key: str) -> str:
    return key.replace("_", " ")


def _fact(key: str, value: Any, depth: int) -> str:
    if value is None:
        # A receipt says null for "off" as well as for "cannot be asked"; only these two are known to mean off.
        return "off" if key in ("tls_version", "tls_cipher", "compression") else "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        return facts(value, depth + 1)
    if isinstance(value, list | tuple) and not any(isinstance(item, Mapping | list) for item in value):
        return text(", ".join(str(item) for item in value))
    return text(value)


def details(title: str, inner: str, *, open_: bool = False) -> str:
    return f"<details{' open' if open_ else ''}><summary>{text(title)}</summary>{inner}</details>"


def figure(drawing: str, caption: str, data: str) -> str:
    """A chart with its reading aid and its figures as a table."""
    return f"<figure>{drawing}<figcaption>{sentence(caption)}</figcaption>{details('The figures as a table', data)}</figure>"
