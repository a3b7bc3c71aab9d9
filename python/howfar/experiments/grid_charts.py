"""Charts of plans with several factors: cycle budgets and the network of chosen cells."""

from __future__ import annotations

from typing import Any

import altair as alt

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.bottleneck.traffic import NetworkSeries
from howfar.report import limit_text, palette
from howfar.report.charts import (
    PHONE,
    Drawable,
    Rows,
    arm_axis,
    axis,
    by_name,
    data,
    layer,
    legend,
    looks,
    pick,
    rows_of,
    vconcat,
)
from howfar.report.figures import tps
from howfar.report.grid import grid

MOST_BARS = 30
"""More bars than this are no picture: rows of the grid are left out evenly, the first and the last stay."""

MOST_NETWORKS = 4
NAMED_SHARE = 0.2
"""A part of a bar at least this long has room for its name."""

REST = "rest"
MIB = 2**20


def budget_cells(summary: Summary) -> list[tuple[str, CellSummary]]:
    """(label, cell) of the bars, column by column."""
    table = grid(summary)
    rows = range(len(table.rows))
    while len(rows) * len(table.columns) > MOST_BARS and len(rows) > 2:
        rows = range(0, len(table.rows), rows.step + 1)
    chosen = [*rows, *([len(table.rows) - 1] if rows[-1] != len(table.rows) - 1 else [])]
    return [
        (", ".join((*column, table.rows[row])), cell)
        for index, column in enumerate(table.columns)
        for row in chosen
        if (cell := table.cells[row][index]) is not None and cell.cycle is not None
    ]


def part_names(cells: list[tuple[str, CellSummary]]) -> list[str]:
    """In the order of the cycles; the rest is last."""
    names = dict.fromkeys(part.name for _, cell in cells if cell.cycle for part in cell.cycle.parts if part.us > 0)
    names.pop(REST, None)
    return [*names, REST]


def budgets(summary: Summary, width: int) -> Drawable | None:
    """A bar a cell, each as long as its cycle is whole: shares, with the cycle's length and the limit at its end."""
    cells = budget_cells(summary)
    if not cells:
        return None
    narrow = width < PHONE
    rows: Rows = []
    lengths: Rows = []
    for label, cell in cells:
        assert cell.cycle is not None, "chosen for it"
        # A phone has no room for the limit next to the bar: its letter stands with the name.
        name = f"{label} {limit_text.letter(cell.limit)}".rstrip() if narrow else label
        at = 0.0
        for part in cell.cycle.parts:
            share = part.us / cell.cycle.us
            if share > 0:
                long = share >= NAMED_SHARE and part.name != REST
                text = f"{part.name} {share * 100:.0f} %" if long else ""
                ends = {"from": at, "to": at + share, "middle": at + share / 2}
                rows.append({"cell": name, "part": part.name, "text": text, **ends})
            at += share
        limit = f": {limit_text.name(cell.limit.resource)}" if cell.limit else ""
        lengths.append({"cell": name, "at": 1.0, "text": f"{duration(cell.cycle.us)}{limit}"})
    names = part_names(cells)
    colours = [*pick((*palette.PARTS[:5], *palette.SERIES[5:], *palette.MORE), len(names) - 1), palette.PARTS[5]]
    y = arm_axis([row["cell"] for row in lengths], "cell", 120 if narrow else 200)
    key = legend(2 if narrow else 4, 160, symbolType="square")
    colour = by_name(alt.Color, "part", dict(zip(names, colours, strict=True)), key)

    def along(field: str) -> alt.X:
        return axis(alt.X, field, "of a connection's cycle", (0, 1), format="%", tickCount=5)

    layers: list[Any] = [data(rows).mark_bar(size=17).encode(x=along("from"), x2="to:Q", y=y, color=colour)]
    if not narrow:
        named = data([row for row in rows if row["text"]]).mark_text(color=palette.ON_BAR, fontSize=11)
        text_of = data(lengths).mark_text(align="left", dx=6, color=palette.INK, fontSize=11)
        layers += [
            named.encode(x=along("middle"), y=y, text="text:N"),
            text_of.encode(x=along("at"), y=y, text="text:N"),
        ]
    return layer(*layers, width=width - (0 if narrow else 170), height=22 * len(cells))


def duration(us: float) -> str:
    return f"{us / 1e6:.3g} s" if us >= 1e6 else f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} µs"


def network_cells(summary: Summary) -> list[CellSummary]:
    """The fastest cell of each kind of limit over a link, then the fastest of other columns, a few in all."""
    table = grid(summary)
    columns = [
        [cell for cell in table.column(index) if cell.network and cell.network.at_s]
        for index in range(len(table.columns))
    ]
    fastest = [max(cells, key=lambda cell: tps(cell).value) for cells in columns if cells]
    linked = [cell for cell in fastest if cell.network and cell.network.interface_ceiling_bytes_per_s]
    seen: set[str] = set()
    first = []
    for cell in linked or fastest:
        kind = cell.limit.resource.value if cell.limit else ""
        if kind not in seen:
            seen.add(kind)
            first.append(cell)
    rest = [cell for cell in linked or fastest if cell not in first]
    chosen = (first + rest)[:MOST_NETWORKS]
    return [cell for cell in fastest if cell in chosen]


def networks(summary: Summary, width: int) -> Drawable | None:
    """Bytes a second each way against the ceilings, the queue, and retransmits, for each chosen cell."""
    cells = network_cells(summary)
    if not cells:
        return None
    across = 2 if width >= PHONE and len(cells) > 1 else 1
    return rows_of([_network(cell, width if across == 1 else (width - 90) // 2) for cell in cells], across)


def _network(cell: CellSummary, width: int) -> Drawable:
    series = cell.network
    assert series is not None, "chosen for it"
    title = alt.TitleParams(cell.arm, anchor="start", subtitle=_filled(series), limit=width + 40)
    x = axis(alt.X, "at", "s", (0, series.at_s[-1]), tickCount=4, grid=False)
    parts = [layer(*_bytes(series, x), width=width, height=110, title=title)]
    if series.to_client_queue_bytes is not None:
        counts = zip(series.at_s, series.to_client_queue_bytes, strict=True)
        area = data([{"at": at, "kb": count / 1000} for at, count in counts]).mark_area(
            color=palette.SERIES[0], opacity=0.35
        )
        parts.append(layer(area.encode(x=x, y=axis(alt.Y, "kb", "queue kB", tickCount=2)), width=width, height=44))
    return vconcat(*parts, spacing=4)


def _filled(series: NetworkSeries) -> str:
    most = max(max(series.to_client_bytes_per_s), max(series.to_server_bytes_per_s))
    sent = sum(series.retransmits_per_s) * (series.at_s[-1] / len(series.at_s))
    again = f"{sent:.0f} segments sent again" if sent >= 0.5 else "nothing sent again"
    ceiling = series.interface_ceiling_bytes_per_s
    if not ceiling:
        return f"up to {most / MIB:,.1f} MiB/s; {again}"
    return f"up to {most / MIB:,.1f} of {ceiling / MIB:,.1f} MiB/s; {again}"


def _bytes(series: NetworkSeries, x: alt.X) -> list[Any]:
    directions = {"to client": series.to_client_bytes_per_s, "to server": series.to_server_bytes_per_s}
    rows: Rows = [
        {"at": at, "direction": direction, "mib": count / MIB}
        for direction, counts in directions.items()
        for at, count in zip(series.at_s, counts, strict=True)
    ]
    most = max(row["mib"] for row in rows)
    ceilings: Rows = [
        {"mib": ceiling / MIB, "text": name, "at": 0.0}
        for name, ceiling in (
            ("interface", series.interface_ceiling_bytes_per_s),
            ("payload", series.payload_ceiling_bytes_per_s),
        )
        if ceiling and ceiling / MIB < most * 3
    ]
    top = max([most, *(row["mib"] for row in ceilings)]) * 1.16
    y = axis(alt.Y, "mib", "MiB/s", (0, top), tickCount=4)
    key = legend(2, symbolStrokeWidth=2)
    colour = by_name(alt.Color, "direction", looks(list(directions), palette.SERIES), key)
    dash = by_name(alt.StrokeDash, "direction", looks(list(directions), ([1, 0], [5, 3])), key)
    layers: list[Any] = [data(rows).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour, strokeDash=dash)]
    for offset, row in zip((-6, 10), ceilings, strict=False):
        text = data([row]).mark_text(align="left", dx=4, dy=offset, fontSize=10, color=palette.MUTED)
        layers += [
            data([row]).mark_rule(color=palette.MUTED, strokeDash=[2, 3]).encode(y=y),
            text.encode(x=x, y=y, text="text:N"),
        ]
    return layers
