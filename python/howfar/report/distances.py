"""Measurements between the hosts of a run: a matrix with goodput from the row's host to the column's, and the round trip."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import altair as alt

from howfar.analysis.summary import Summary
from howfar.report import charts, figures, palette
from howfar.report.document import Block, Chart, Fields, Heading, table_of
from howfar.units import format_duration_ns

_TITLE = "The network between the hosts, measured before the first trial"
_FIELD_PIXELS = 80, 62
"""Least width, and height, of a field's three lines."""


def blocks(summary: Summary) -> list[Block]:
    """Blocks with the distances. Empty: the run was in the laboratory, or on one host."""
    found = summary.environment.get("distances") or ()
    if not found:
        return []
    caption = f"Median round trip of one byte over TCP, at rest and with all CPUs awake; goodput of one connection. {_where(summary)}"
    fields: Fields[Mapping[str, Any]] = {
        "from": lambda one: one["from"],
        "to": lambda one: one["to"],
        "RTT at rest": lambda one: _rtt(one["rtt_ns"]),
        "RTT awake": lambda one: _rtt(one["rtt_awake_ns"]),
        "goodput": lambda one: figures.rate(one["goodput_bps"]["to_server"]),
        "goodput back": lambda one: figures.rate(one["goodput_bps"]["to_client"]),
        "path MTU": lambda one: figures.UNKNOWN if one["path_mtu"] is None else str(one["path_mtu"]),
        "congestion control": lambda one: one["congestion_control"],
    }
    data = table_of("", found, fields)
    return [Heading("How far apart are the hosts?"), Chart("distances", _TITLE, caption, partial(draw, summary), data)]


def _where(summary: Summary) -> str:
    hosts = summary.environment["hosts"]
    zones = {name: facts.get("zone", "unknown") for name, facts in hosts.items()}
    return f"Zones: {', '.join(f'{name} {zone}' for name, zone in zones.items())}."


def _rtt(found: Mapping[str, float] | None) -> str:
    return figures.UNKNOWN if found is None else format_duration_ns(found["p50"])


def _fields(summary: Summary) -> charts.Rows:
    """A field for each direction of each pair."""
    found = []
    for one in summary.environment["distances"]:
        rtt, awake = one["rtt_ns"], one["rtt_awake_ns"]
        for source, target, to in ((one["from"], one["to"], "to_server"), (one["to"], one["from"], "to_client")):
            text = "\n".join((figures.rate(one["goodput_bps"][to]), _rtt(rtt), f"awake {_rtt(awake)}"))
            found.append({"from": source, "to": target, "rtt": rtt["p50"], "text": text})
    return found


def draw(summary: Summary, width: int) -> charts.Drawable | None:
    """Chart of the distances: the farther two hosts are apart, the darker their field."""
    rows = _fields(summary)
    names = list(summary.environment["hosts"])
    least, height = _FIELD_PIXELS
    if width < least * len(names):
        return None
    axis = alt.Axis(domain=False, ticks=False, labelAngle=0, orient="top")
    x = alt.X("to:N", sort=names, scale=alt.Scale(domain=names), axis=axis, title="to")
    y = alt.Y("from:N", sort=names, scale=alt.Scale(domain=names), title="from")
    most = max(row["rtt"] for row in rows)
    depth = alt.FillOpacity("rtt:Q", scale=alt.Scale(domain=[0, most], range=[0.08, 0.4]), legend=None)
    fields = (
        charts.data(rows).mark_rect(fill=palette.SERIES[0], stroke=palette.GRID).encode(x=x, y=y, fillOpacity=depth)
    )
    text = charts.data(rows).mark_text(lineBreak="\n", fill=palette.INK, dy=-14).encode(x=x, y=y, text="text:N")
    return charts.layer(fields, text, width=width, height=height * len(names))
