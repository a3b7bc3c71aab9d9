"""Sections that an experiment puts into the frame: the table of cells and its records, limits that were tested, every trial, and a
card for each path."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import get_args

from howfar.analysis.cells import CellSummary
from howfar.analysis.confirmation import is_refuted
from howfar.analysis.summary import Summary
from howfar.bottleneck.limit import Confirmation
from howfar.plan.factors import breaks
from howfar.report import charts, figures, limit_text
from howfar.report.document import (
    Block,
    Bullets,
    Card,
    Cell,
    Chart,
    Column,
    Details,
    Fields,
    Heading,
    Table,
    plain,
    single,
    table_of,
)
from howfar.report.figures import UNKNOWN, baseline_name, number, point, shown_cells
from howfar.stats.estimate import Estimate, Part
from howfar.stats.trials import ONE
from howfar.store.records import ArmRole

LONG_NAME = 20
"""Length of a baseline's name beyond which it does not fit into the head of a column."""

Record = Mapping[str, object]

# ---------------------------------------------------------------- the table of cells


@dataclass(frozen=True)
class Field:
    """One column of the table of cells, and the same figures in a spreadsheet; defined only here. `column` None: in spreadsheets
    only."""

    column: Column | None
    cell: Callable[[CellSummary], Cell]
    record: Callable[[CellSummary], Record]


def limits_of(name: str, estimate: Estimate | None) -> dict[str, object]:
    """An estimate in the three columns of a spreadsheet."""
    ends = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return {f"{name}{end}": written(value) for end, value in zip(("", "_low", "_high"), ends, strict=True)}


def written(value: float | None) -> str:
    """A figure in a spreadsheet; unknown is empty."""
    return "" if value is None else f"{value:.6g}"


def columns(part: Part, names: str, **renamed: str) -> dict[str, object]:
    """Fields of a finding as columns of a spreadsheet, some under another name; an estimate has three, an empty field is unknown."""
    found: dict[str, object] = {}
    for field in names.split():
        value, name = getattr(part, field), renamed.get(field, field)
        if Estimate in get_args(kind := type(part).model_fields[field].annotation) or kind is Estimate:
            found |= limits_of(name, value)
        else:
            found[name] = written(value) if isinstance(value, float) or value is None else value
    return found


def _fields(summary: Summary) -> list[Field]:
    """Fields in the order of the columns of a spreadsheet."""
    base, one = baseline_name(summary), ONE[summary.asked]
    base = base if len(base) <= LONG_NAME else "baseline"
    forwarded = any(cell.cpu_us_per_query.forwarder for cell in shown_cells(summary))
    return [
        Field(
            Column(f"{summary.asked}/s", "95 % interval"),
            lambda cell: Cell(number(cell.qps.value), figures.plus_minus(cell.qps)),
            lambda cell: limits_of("qps", cell.qps),
        ),
        Field(
            Column(f"of {base}", "[95 % interval]"),
            lambda cell: Cell(figures.ratio(cell.ratio), figures.reading(cell)),
            lambda cell: {**limits_of("ratio", cell.ratio), "resolution": cell.resolution.value},
        ),
        Field(
            Column(f"CPU µs/{one}", "client+server" + ("+fwd" if forwarded else "")),
            lambda cell: Cell(number(figures.cpu_total(cell)), figures.cpu_parts(cell)),
            lambda cell: {
                **limits_of("client_cpu_us_per_query", cell.cpu_us_per_query.client),
                **limits_of("server_cpu_us_per_query", cell.cpu_us_per_query.server),
                **limits_of("forwarder_cpu_us_per_query", cell.cpu_us_per_query.forwarder),
            },
        ),
        Field(
            Column("CPU vs.", base),
            lambda cell: Cell(figures.cpu_point(cell), figures.limits(cell.cpu_ratio)),
            lambda cell: {**limits_of("cpu_ratio", cell.cpu_ratio), "cpu_bound": cell.cpu_bound.value},
        ),
        _latency("p50"),
        _latency("p95", optional=True),
        _latency("p99"),
        _latency("max", optional=True),
        *_more_fields(summary),
    ]


def _hidden(record: Callable[[CellSummary], Record]) -> Field:
    """A field in spreadsheets only."""
    return Field(None, lambda cell: Cell(""), record)


def _latency(name: str, optional: bool = False) -> Field:
    return Field(
        Column(name, "ms/txn", optional=optional),
        lambda cell: Cell(number(getattr(cell.latency_ms, name))),
        lambda cell: {f"{name}_ms": written(getattr(cell.latency_ms, name))},
    )


def _more_fields(summary: Summary) -> list[Field]:
    """Fields with what a transaction exchanges, what others published, and what limits the cell."""
    return [
        _hidden(lambda cell: {**limits_of("latency_ratio", cell.latency_ratio), **limits_of("tps", figures.tps(cell))}),
        Field(
            Column("round trips", "/txn", optional=True),
            lambda cell: Cell(f"{cell.turns_per_txn:.4g}"),
            lambda cell: {
                "turns_per_txn": written(cell.turns_per_txn),
                "queries_per_txn": written(cell.queries_per_txn),
            },
        ),
        Field(
            Column("bytes/txn out", "in", optional=True),
            lambda cell: Cell(figures.whole(cell.bytes_per_txn.to_server), figures.whole(cell.bytes_per_txn.to_client)),
            lambda cell: {
                "bytes_to_server_per_txn": written(cell.bytes_per_txn.to_server),
                "bytes_to_client_per_txn": written(cell.bytes_per_txn.to_client),
            },
        ),
        Field(
            Column("published") if any(cell.published for cell in shown_cells(summary)) else None,
            _published,
            lambda cell: {
                "published_ratio": written(cell.published.ratio if cell.published else None),
                "published_qps": written(cell.published.qps if cell.published else None),
            },
        ),
        _hidden(
            lambda cell: {
                "cycle_us": written(cell.cycle.us if cell.cycle else None),
                "cycle_rest_share": written(cell.cycle.rest_share if cell.cycle else None),
                "limit": cell.limit.resource.value if cell.limit else "",
                "limit_confidence": cell.limit.confidence if cell.limit else "",
                "limit_says": cell.limit.says if cell.limit else "",
                "warnings": "; ".join(warning.value for warning in cell.warnings),
            }
        ),
    ]


def _published(cell: CellSummary) -> Cell:
    if cell.published is None:
        return Cell(UNKNOWN)
    ratio = "1" if cell.published.ratio == 1 else f"{cell.published.ratio:.2f}"
    return Cell(ratio, f"{cell.published.qps:,.0f}/s")


def cell_table(summary: Summary, title: str = "", main: bool = True) -> Table:
    """A row for each cell."""
    fields = [field for field in _fields(summary) if field.column]
    columns = (Column("path", left=True), *(field.column for field in fields if field.column))
    rows = tuple((Cell(cell.arm), *(field.cell(cell) for field in fields)) for cell in shown_cells(summary))
    return Table(title, columns, rows, _table_notes(summary), main=main)


def _table_notes(summary: Summary) -> tuple[str, ...]:
    sources = sorted({cell.published.source for cell in shown_cells(summary) if cell.published})
    return (f"Published: {'; '.join(sources)}, on other machines and versions.",) if sources else ()


def cell_records(summary: Summary) -> list[dict[str, object]]:
    """A record for each cell. Of a cell with a fault only its identity: rates and CPU would include the outage."""
    factors = sorted({name for cell in summary.cells for name in cell.factors})
    fields = _fields(summary)
    found = []
    for cell in summary.cells:
        record: dict[str, object] = {
            "arm": cell.arm,
            "role": cell.role.value,
            **{name: cell.factors.get(name, "") for name in factors},
            "trials": cell.trials,
            "void_trials": cell.void_trials,
        }
        if not breaks(cell.factors):
            for field in fields:
                record |= field.record(cell)
        found.append(record)
    return found


# ---------------------------------------------------------------- limits that were tested


def confirmations(summary: Summary) -> list[Block]:
    """Tests of limits: after a change that shows whether a limit is one, did throughput move as predicted?"""
    fields: Fields[Confirmation] = {
        "cell": lambda found: found.arm,
        "limit": lambda found: limit_text.name(found.resource),
        "changed": lambda found: found.changed,
        "predicted": lambda found: f"x {found.predicted:.2f}",
        "measured [95 %]": lambda found: f"x {figures.ratio(found.measured)}",
        "outcome": confirmation_outcome,
        "blocks": lambda found: str(found.blocks),
    }
    notes = tuple(line for line in (figures.unconfirmed_line(summary),) if line)
    if not summary.confirmations:
        return [Details("Limits that could not be tested", (Bullets(notes),))] if notes else []
    table = table_of("", summary.confirmations, fields, notes, stack=True)
    return [Details("Tested limits", (table,), open=True)]


def confirmation_outcome(found: Confirmation) -> str:
    """Outcome of a test. An interval that includes the middle between both expectations shows neither. Where something other than the
    resource itself was changed, the expected outcome only rules out another limit."""
    if found.confirmed:
        return f"rules out {found.rules_out}" if found.rules_out else "confirmed"
    return "NOT confirmed" if is_refuted(found) else "inconclusive"


# ---------------------------------------------------------------- every trial


def trials(summary: Summary) -> list[Block]:
    """Every trial in the order in which they ran: was the machine quiet, did anything drift?"""
    seen = charts.against_median(summary)
    if not seen:
        return []
    caption = "A trend or a jump within blocks would show here; what all cells of a block share cancels in the ratios."
    if len(seen) > charts.MOST_TRIALS:
        caption = f"Dot and line: median and middle 80 % of the trials of a block. {caption}"
        data = _blocks(summary)
    else:
        head = ("trial", "block", "cell", *figures.trial_head(summary))
        data = Table("", single(*head), tuple(plain(*row) for row in figures.trial_rows(summary)))
    title = "Every trial relative to the median of its cell, in order of execution"
    return [Heading("Was the machine quiet?"), Chart("trials", title, caption, partial(charts.drift, summary), data)]


def _blocks(summary: Summary) -> Table:
    """A table of blocks, used if there are too many trials to list each."""
    rows = []
    for found in charts.block_ranges(charts.against_median(summary)):
        trials = [trial for trial in summary.trials if trial.block == found["block"]]
        others = [trial.others_cpus for trial in trials if trial.others_cpus is not None]
        rows.append(
            plain(
                str(found["block"]),
                str(len(trials)),
                str(sum(trial.qps is None for trial in trials)),
                f"{found['ratio']:.3f}",
                f"{found['low']:.3f} to {found['high']:.3f}",
                figures.cpus(statistics.median(others) if others else None),
            )
        )
    head = single("block", "trials", "void", "median, relative to the cell's", "middle 80 %", "CPUs used by others")
    return Table("", head, tuple(rows))


# ---------------------------------------------------------------- cards


def ratio_cards(summary: Summary) -> tuple[Card, ...]:
    """A card for each path that is compared with the baseline."""
    base = baseline_name(summary)
    return tuple(_card(cell, base, summary) for cell in summary.cells if cell.role is ArmRole.CONTENDER)


def _card(cell: CellSummary, base: str, summary: Summary) -> Card:
    if cell.ratio is None:
        return Card(cell.arm, UNKNOWN, figures.reading(cell))
    lines = [figures.limits(cell.ratio)]
    if cell.cpu_ratio:
        lines.append(
            f"{figures.cpu_ratio(cell)} times the CPU per {ONE[summary.asked]}: {figures.cpu_reading(cell.cpu_resolution)}"
        )
    if cell.published:
        lines.append(f"published: {cell.published.ratio:.2f}")
    meaning = f"of {base}'s {summary.asked} per second: {figures.unresolved(cell) or cell.resolution.value}"
    return Card(cell.arm, point(cell.ratio), meaning, tuple(line for line in lines if line))
