"""Common parts of the reports on plans with several factors: the grid of cells, limits, the model's predictions for other settings,
and charts. Each function returns the blocks that answer one question, or none if the run does not answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.bottleneck.cycle import largest_parts
from howfar.bottleneck.rules import MIB
from howfar.bottleneck.texts import resource_name
from howfar.bottleneck.traffic import NetworkSeries
from howfar.experiments.network.bandwidth.curves import predictions, published, scaling
from howfar.experiments.network.bandwidth.texts import REPORT
from howfar.experiments.network.what_if import WhatIf, WhatIfWorked
from howfar.findings import fill
from howfar.report import figures, limit_text, palette
from howfar.report.charts import (
    PHONE,
    Drawable,
    Rows,
    arm_axis,
    arrange_in_rows,
    axis,
    by_style,
    data,
    layer,
    legend,
    repeat_styles,
    styles,
    vconcat,
)
from howfar.report.document import (
    Block,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Fields,
    Heading,
    Table,
    make_table,
    plain_cells,
    plain_columns,
)
from howfar.report.drawing import alt
from howfar.report.frame import frame
from howfar.report.grid import Grid, arrange_grid
from howfar.report.sections import cell_table, confirmation_blocks, trial_blocks
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import half_width_text

MAX_BARS = 30
"""Maximum number of bars in a chart. Beyond it, rows of the grid are left out at even intervals; the first and the last stay."""

MAX_NETWORK_CHARTS = 4
LETTER_WIDTH = 6.5
"""Pixels of a letter, to find out whether the name of a part fits into its bar."""

REST_PART = "rest"


def budget_cells(summary: Summary) -> list[tuple[str, CellSummary]]:
    """The bars of the chart of time budgets as (label, cell), column by column of the grid."""
    table = arrange_grid(summary)
    rows = range(len(table.rows))
    while len(rows) * len(table.columns) > MAX_BARS and len(rows) > 2:
        rows = range(0, len(table.rows), rows.step + 1)
    chosen = [*rows, *([len(table.rows) - 1] if rows[-1] != len(table.rows) - 1 else [])]
    return [
        (", ".join((*column, table.rows[row])), cell)
        for index, column in enumerate(table.columns)
        for row in chosen
        if (cell := table.cells[row][index]) is not None and cell.cycle is not None
    ]


def names_of_parts(cells: list[tuple[str, CellSummary]]) -> list[str]:
    """Names of the parts of all cycles, in their order; `rest` is last."""
    names = dict.fromkeys(part.name for _, cell in cells if cell.cycle for part in cell.cycle.parts if part.us > 0)
    names.pop(REST_PART, None)
    return [*names, REST_PART]


def _draw_budgets(summary: Summary, width: int) -> Drawable:
    """A bar for each cell, all equally long: the shares of its cycle. The cycle's length and the limit are at its end."""
    cells = budget_cells(summary)
    narrow = width < PHONE
    bar_width = width - (0 if narrow else 170)
    rows: Rows = []
    lengths: Rows = []
    for label, cell in cells:
        assert cell.cycle is not None, "chosen cells have a cycle"
        # A phone has no room for the limit next to the bar, so its letter follows the name.
        letter = limit_text.limit_letter(cell.limit, not summary.answer.is_missing)
        name = f"{label} {letter}".rstrip() if narrow else label
        start = 0.0
        for part in cell.cycle.parts:
            share = part.us / cell.cycle.us
            if share > 0:
                label_text = f"{part.name} {share * 100:.0f} %"
                fits = len(label_text) * LETTER_WIDTH <= share * bar_width and part.name != REST_PART
                text = label_text if fits else ""
                positions = {"from": start, "to": start + share, "middle": start + share / 2}
                rows.append({"cell": name, "part": part.name, "text": text, **positions})
            start += share
        limit = f": {resource_name(cell.limit.resource)}" if cell.limit else ""
        lengths.append({"cell": name, "at": 1.0, "text": f"{format_duration_us(cell.cycle.us)}{limit}"})
    names = names_of_parts(cells)
    colours = [*repeat_styles(palette.MANY_PARTS, len(names) - 1), palette.PARTS[5]]
    y = arm_axis([row["cell"] for row in lengths], "cell", 120 if narrow else 200)
    legend_spec = legend(2 if narrow else 4, 160, symbolType="square")
    colour = by_style(alt.Color, "part", dict(zip(names, colours, strict=True)), legend_spec)

    def x_axis(field: str) -> alt.X:
        return axis(alt.X, field, "of a connection's cycle", (0, 1), format="%", tickCount=5)

    layers: list[Any] = [data(rows).mark_bar(size=17).encode(x=x_axis("from"), x2="to:Q", y=y, color=colour)]
    if not narrow:
        labelled = data([row for row in rows if row["text"]]).mark_text(color=palette.ON_BAR, fontSize=11)
        length_labels = data(lengths).mark_text(align="left", dx=6, color=palette.INK, fontSize=11)
        layers += [
            labelled.encode(x=x_axis("middle"), y=y, text="text:N"),
            length_labels.encode(x=x_axis("at"), y=y, text="text:N"),
        ]
    return layer(*layers, width=bar_width, height=22 * len(cells))


def format_duration_us(us: float) -> str:
    return f"{us / 1e6:.3g} s" if us >= 1e6 else f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} µs"


def network_cells(summary: Summary) -> list[CellSummary]:
    """At most `MAX_NETWORK_CHARTS` cells: the fastest over a link for each kind of limit, then the fastest of other columns."""
    table = arrange_grid(summary)
    columns = [
        [cell for cell in table.column(index) if cell.network and cell.network.at_s]
        for index in range(len(table.columns))
    ]
    fastest = [max(cells, key=lambda cell: cell.tps.value) for cells in columns if cells]
    linked = [cell for cell in fastest if cell.network and cell.network.interface_ceiling_bytes_per_s]
    seen_kinds: set[str] = set()
    first_of_kind = []
    for cell in linked or fastest:
        kind = cell.limit.resource.value if cell.limit else ""
        if kind not in seen_kinds:
            seen_kinds.add(kind)
            first_of_kind.append(cell)
    others = [cell for cell in linked or fastest if cell not in first_of_kind]
    chosen = (first_of_kind + others)[:MAX_NETWORK_CHARTS]
    return [cell for cell in fastest if cell in chosen]


def _draw_networks(summary: Summary, width: int) -> Drawable:
    """For each chosen cell: bytes per second in each direction with their ceilings, the queue, and retransmits."""
    cells = network_cells(summary)
    columns = 2 if width >= PHONE and len(cells) > 1 else 1
    return arrange_in_rows(
        [_draw_network(cell, width if columns == 1 else (width - 40) // 2) for cell in cells], columns
    )


def _draw_network(cell: CellSummary, width: int) -> Drawable:
    series = cell.network
    assert series is not None, "chosen cells have a network series"
    title = alt.TitleParams(cell.arm, anchor="start", subtitle=_subtitle(series), limit=width)
    x = axis(alt.X, "at", "s", (0, series.at_s[-1]), tickCount=4, grid=False)
    parts = [layer(*_byte_rate_layers(series, x), width=width, height=110, title=title)]
    if series.to_client_queue_bytes is not None:
        counts = zip(series.at_s, series.to_client_queue_bytes, strict=True)
        area = data([{"at": at, "kb": count / 1000} for at, count in counts]).mark_area(
            color=palette.SERIES[0], opacity=0.35
        )
        parts.append(layer(area.encode(x=x, y=axis(alt.Y, "kb", "queue kB", tickCount=2)), width=width, height=44))
    return vconcat(*parts, spacing=4)


def _subtitle(series: NetworkSeries) -> str:
    segments = sum(series.retransmits_per_s) * (series.at_s[-1] / len(series.at_s))
    ceiling = series.interface_ceiling_bytes_per_s
    return fill(
        REPORT["network"],
        mib=max_bytes_per_s(series) / MIB,
        ceiling=f" of {ceiling / MIB:,.1f}" if ceiling else "",
        resent=fill(REPORT["resent"], segments=segments) if segments >= 0.5 else REPORT["not resent"],
    )


def max_bytes_per_s(series: NetworkSeries) -> float:
    """The most bytes per second in one direction."""
    return max(*series.to_client_bytes_per_s, *series.to_server_bytes_per_s)


def _byte_rate_layers(series: NetworkSeries, x: alt.X) -> list[Any]:
    directions = {"to client": series.to_client_bytes_per_s, "to server": series.to_server_bytes_per_s}
    rows: Rows = [
        {"at": at, "direction": direction, "mib": count / MIB}
        for direction, counts in directions.items()
        for at, count in zip(series.at_s, counts, strict=True)
    ]
    max_mib = max(row["mib"] for row in rows)
    ceilings: Rows = [
        {"mib": ceiling / MIB, "text": name, "at": series.at_s[-1]}
        for name, ceiling in (
            ("interface", series.interface_ceiling_bytes_per_s),
            ("payload", series.payload_ceiling_bytes_per_s),
        )
        if ceiling and ceiling / MIB < max_mib * 3
    ]
    y_max = max([max_mib, *(row["mib"] for row in ceilings)]) * 1.16
    y = axis(alt.Y, "mib", "MiB/s", (0, y_max), tickCount=4)
    legend_spec = legend(2, symbolStrokeWidth=2)
    colour = by_style(alt.Color, "direction", styles(list(directions), palette.SERIES), legend_spec)
    dash = by_style(alt.StrokeDash, "direction", styles(list(directions), ([1, 0], [5, 3])), legend_spec)
    layers: list[Any] = [data(rows).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour, strokeDash=dash)]
    for offset, row in zip((-3, 9), ceilings, strict=False):
        text = data([row]).mark_text(align="left", dx=4, dy=offset, fontSize=11, color=palette.MUTED)
        layers += [
            data([row]).mark_rule(color=palette.MUTED, strokeDash=[2, 3]).encode(y=y),
            text.encode(x=x, y=y, text="text:N"),
        ]
    return layers


def grid_document(
    summary: Summary, *, chart: Sequence[Block] | None = None, economics: Sequence[Block] = ()
) -> Document:
    """The report. `chart` answers the question of the experiment and leads; None: the curves do. `economics` are tables of a factor's
    costs. Without an answer there are no predictions."""
    curves = scaling(summary)
    charts = [block for block in (curves if chart is None else chart) if isinstance(block, Chart)]
    sections = (
        *limits_section(summary),
        *economics,
        *([block for block in curves if isinstance(block, Details)] if chart is None else curves),
        *(() if summary.answer.is_missing else what_if_section(summary)),
        *budgets_section(summary),
        *networks_section(summary),
        *predictions(summary),
        *confirmation_blocks(summary),
        *published(summary),
        Details("Latency of each cell", (latency_table(summary),)),
        *trial_blocks(summary),
        Details("Every cell with all its figures", (cell_table(summary, main=False),)),
    )
    return frame(summary, (*charts, throughput_table(summary)), more_blocks=sections)


NOT_VALID = "not valid"
"""Text below a ratio if one of its cells describes other programs or errors instead of the path."""


def prediction_text(predicted: float | None) -> str:
    """The model's prediction of a ratio, in brackets below it. Empty: none."""
    return "" if predicted is None else f"({predicted:.2f})"


# ---------------------------------------------------------------- the cells


def _matrix_columns(cells_grid: Grid) -> tuple[Column, ...]:
    """Columns, with shared levels above and distinguishing ones below."""
    heads = (
        Column(" ".join(column[:-1]), column[-1]) if len(column) > 1 else Column("", "".join(column))
        for column in cells_grid.columns
    )
    return (Column(cells_grid.row_head, left_aligned=True), *heads)


def _matrix(
    title: str, summary: Summary, make_cell: Callable[[CellSummary], Cell], *notes: str, main: bool = False
) -> Table:
    cells_grid = arrange_grid(summary)
    rows = tuple(
        (Cell(row), *(make_cell(cell) if cell else Cell(figures.UNKNOWN) for cell in cells))
        for row, cells in zip(cells_grid.rows, cells_grid.cells, strict=True)
    )
    return Table(title, _matrix_columns(cells_grid), rows, tuple(note for note in notes if note), main=main)


def throughput_table(summary: Summary) -> Table:
    """Transactions per second of each cell with the letter of its limit, shaded by its share of the largest."""
    cells = figures.shown_cells(summary)
    max_tps = max((cell.tps.value for cell in cells), default=1.0) or 1.0
    widths = [width for cell in cells if (width := _half_width(cell.qps)) is not None]
    widest = half_width_text(max(widths)) if widths else ""
    explanation = fill(REPORT["intervals" if widths else "no intervals"], width=widest)
    legend = limit_text.legend(summary)

    def make_cell(cell: CellSummary) -> Cell:
        letter = limit_text.limit_letter(cell.limit, not summary.answer.is_missing) if legend else ""
        return Cell(
            f"{figures.number(cell.tps.value)} {letter}" if legend else figures.number(cell.tps.value),
            share=cell.tps.value / max_tps,
        )

    return _matrix("Transactions per second", summary, make_cell, f"{legend} {explanation}".strip(), main=True)


def _half_width(estimate: Estimate) -> float | None:
    """Half-width of a mean, whose interval may include negative values when trials are few."""
    if estimate.low is None or estimate.high is None or not estimate.value:
        return None
    return (estimate.high - estimate.low) / 2 / estimate.value


def latency_table(summary: Summary) -> Table:
    return _matrix(
        "Milliseconds per transaction: median / 99 %",
        summary,
        lambda cell: Cell(f"{figures.number(cell.latency_ms.p50)} / {figures.number(cell.latency_ms.p99)}"),
        REPORT["closed loop"],
    )


def limits_section(summary: Summary) -> list[Block]:
    """A row for each group of cells with the same limit, with the evidence of the fastest of them. Without an answer, no remedies."""
    fields: dict[str, Callable[[limit_text.LimitGroup], str]] = {
        "cells": lambda group: group.cells,
        "limit": lambda group: resource_name(group.limit.resource),
        "confidence": lambda group: group.limit.confidence,
        "evidence": lambda group: "; ".join(group.limit.evidence),
    }
    if not summary.answer.is_missing:
        fields["remedy"] = lambda group: group.limit.would_change or figures.UNKNOWN
        fields["would not help"] = lambda group: group.limit.would_not or figures.UNKNOWN
    groups, notes = limit_text.group_limits(summary), ("The evidence is that of the fastest cell in its row.",)
    table = make_table(
        "", groups, {Column(head, left_aligned=True): text_of for head, text_of in fields.items()}, notes, stack=True
    )
    return [Details("What limits each cell", (table,), open=not summary.answer.is_missing)] if table.rows else []


# ---------------------------------------------------------------- what if


def what_if_section(summary: Summary) -> list[Block]:
    """Predictions of the fitted model for a few settings, with a mark if a setting is beyond the measured range."""
    base = summary.find_findings(WhatIf)
    if base is None or not base.worked:
        return []
    model_tps = base.worked[0].answer.tps
    fields: Fields[WhatIfWorked] = {
        "link": lambda worked: (
            _link_text(worked.settings.rate_bps) + (" *" if _is_extrapolated(summary, worked) else "")
        ),
        "RTT": lambda worked: f"{worked.settings.rtt_s * 1e3:.3g} ms",
        "connections": lambda worked: str(worked.settings.threads),
        "TLS": lambda worked: "on" if worked.settings.tls else "off",
        "connect": lambda worked: "each transaction" if worked.settings.connect_each else "persistent",
        "compression": lambda worked: worked.settings.compression,
        "model/s": lambda worked: (
            f"{figures.number(worked.answer.tps)} {figures.interval_line(worked.answer.tps_interval)}".strip()
        ),
        "of the first": lambda worked: f"x {worked.answer.tps / model_tps:.2f}",
        "limit": lambda worked: worked.answer.limits,
    }
    notes = [
        fill(
            REPORT["what if"],
            arm=base.arm,
            measured=figures.number(base.tps),
            model=figures.number(model_tps),
            error=figures.percent(model_tps / base.tps - 1, signed=True),
        )
    ]
    if any(_is_extrapolated(summary, worked) for worked in base.worked):
        notes.append(REPORT["what if, extrapolated"])
    return [Details("What if?", (make_table("", base.worked, fields, notes, stack=True),), open=True)]


def _link_text(rate_bps: float | None) -> str:
    return figures.rate(rate_bps) if rate_bps else "no link"


def _is_extrapolated(summary: Summary, worked: WhatIfWorked) -> bool:
    """Whether a setting is outside of this run's rates of the link, round trips or numbers of connections."""
    settings = worked.settings
    return any(
        value is not None and not _is_within(value, [cell.factors.get(name) for cell in summary.cells], slack)
        for value, name, slack in (
            (settings.rate_bps, "rate_bps", 1.0),
            (settings.rtt_s * 1e9, "rtt_ns", 1.25),
            (float(settings.threads), "threads", 1.0),
        )
    )


def _is_within(value: float, levels: Sequence[object], slack: float) -> bool:
    """Whether a value is within the range of the levels, widened by the factor `slack`: an unloaded round trip is a little
    longer than the requested one."""
    numbers = [float(level) for level in levels if isinstance(level, int | float)]
    return bool(numbers) and min(numbers) / slack <= value <= max(numbers) * slack


# ---------------------------------------------------------------- charts of the cells


def budgets_section(summary: Summary) -> list[Block]:
    cells = budget_cells(summary)
    if not cells:
        return []
    names = names_of_parts(cells)
    caption = REPORT["budgets"]
    for basis in ("computed", "bounded"):
        if named := [name for name in names if basis in _bases_of_part(cells, name)]:
            caption += fill(REPORT[basis], parts=", ".join(named))
    if legend := limit_text.legend(summary):
        caption += fill(REPORT["letters"], legend=legend)
    rows = []
    for label, cell in cells:
        assert cell.cycle is not None, "chosen cells have a cycle"
        parts = {part.name: part.us for part in cell.cycle.parts}
        shares = [f"{parts.get(name, 0.0) / cell.cycle.us * 100:.1f}" for name in names]
        limit = resource_name(cell.limit.resource) if cell.limit else figures.UNKNOWN
        rows.append(plain_cells(label, *shares, format_duration_us(cell.cycle.us), limit))
    data = Table("", plain_columns("% of the cycle", *names, "cycle", "limit"), tuple(rows))
    fastest = max((cell for _, cell in cells), key=lambda cell: cell.tps.value)
    assert fastest.cycle is not None, "chosen cells have a cycle"
    part = largest_parts(fastest.cycle, 1)[0]
    title = fill(
        REPORT["budget"], part="unexplained" if part.name == REST_PART else part.name, share=part.us / fastest.cycle.us
    )
    return [
        Heading("Where does the time go?"),
        Chart("budgets", title, caption, partial(_draw_budgets, summary), data),
    ]


def _bases_of_part(cells: list[tuple[str, CellSummary]], name: str) -> set[str]:
    if name == REST_PART:
        return set()
    return {
        part.basis for _, cell in cells if cell.cycle for part in cell.cycle.parts if part.name == name and part.us > 0
    }


def networks_section(summary: Summary) -> list[Block]:
    cells = network_cells(summary)
    if not cells:
        return []
    caption = REPORT["networks"]
    if any(cell.network and cell.network.to_client_queue_bytes for cell in cells):
        caption += REPORT["queue"]
    fields: Fields[NetworkSeries] = {
        "MiB/s": lambda series: names[id(series)],
        "to client": lambda series: _mib_text(fmean(series.to_client_bytes_per_s)),
        "to server": lambda series: _mib_text(fmean(series.to_server_bytes_per_s)),
        "interface ceiling": lambda series: _mib_text(series.interface_ceiling_bytes_per_s),
        "payload ceiling": lambda series: _mib_text(series.payload_ceiling_bytes_per_s),
        "most queued": lambda series: (
            figures.size(max(queue)) if (queue := series.to_client_queue_bytes) else figures.UNKNOWN
        ),
        "retransmits/s": lambda series: f"{fmean(series.retransmits_per_s):.2f}",
    }
    arms_and_series = [(cell.arm, cell.network) for cell in cells if cell.network]
    names = {id(series): arm for arm, series in arms_and_series}
    data = make_table("", [series for _, series in arms_and_series], fields)
    arm, series = max(arms_and_series, key=lambda entry: max_bytes_per_s(entry[1]))
    title = f"{arm}: {_subtitle(series)}"
    return [
        Heading("Is the network full?"),
        Chart("networks", title, caption, partial(_draw_networks, summary), data),
    ]


def _mib_text(count: float | None) -> str:
    return figures.UNKNOWN if count is None else f"{count / MIB:,.1f}"
