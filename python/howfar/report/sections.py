"""Sections that several experiments pass to `frame`: the table of cells and its records, limits that were tested, and every trial."""

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
from howfar.bottleneck.texts import resource_name
from howfar.findings import fill, note
from howfar.plan.factors import has_fault
from howfar.report import charts, figures
from howfar.report.document import (
    Block,
    Bullets,
    Cell,
    Chart,
    Column,
    Details,
    Fields,
    Heading,
    Table,
    make_table,
    plain_cells,
    plain_columns,
)
from howfar.report.figures import UNKNOWN, baseline_name, number, shown_cells
from howfar.report.texts import BLOCKS
from howfar.stats.estimate import Estimate, Part
from howfar.stats.trials import singular

MAX_NAME_IN_HEAD = 20
"""Length of a baseline's name beyond which it does not fit into the head of a column."""

Record = Mapping[str, object]

# ---------------------------------------------------------------- the table of cells


@dataclass(frozen=True)
class CellField:
    """One column of the table of cells, and the same figures in the CSV. `column` None: only in the CSV."""

    column: Column | None
    cell: Callable[[CellSummary], Cell]
    record: Callable[[CellSummary], Record]


def csv_limits(name: str, estimate: Estimate | None) -> dict[str, object]:
    """An estimate as three columns of the CSV: its value, and the limits of its interval."""
    limits = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return {f"{name}{suffix}": csv_value(value) for suffix, value in zip(("", "_low", "_high"), limits, strict=True)}


def csv_value(value: float | None) -> str:
    """A figure in the CSV; an unknown one is empty."""
    return "" if value is None else f"{value:.6g}"


def csv_columns(part: Part, names: str, **renamed: str) -> dict[str, object]:
    """Fields of a finding as columns of the CSV, some under another name. An estimate has three columns; an empty field is unknown."""
    values: dict[str, object] = {}
    for field in names.split():
        value, name = getattr(part, field), renamed.get(field, field)
        if Estimate in get_args(kind := type(part).model_fields[field].annotation) or kind is Estimate:
            values |= csv_limits(name, value)
        else:
            values[name] = csv_value(value) if isinstance(value, float) or value is None else value
    return values


def _fields(summary: Summary) -> list[CellField]:
    """Fields in the order of the columns of the CSV."""
    baseline, operation = baseline_name(summary), singular(summary.operation_unit)
    baseline = baseline if len(baseline) <= MAX_NAME_IN_HEAD else "baseline"
    forwarded = any(cell.cpu_us_per_query.forwarder for cell in shown_cells(summary))
    return [
        CellField(
            Column(f"{summary.operation_unit}/s", "± at 95 %"),
            lambda cell: Cell(number(cell.qps.value), figures.plus_minus(cell.qps)),
            lambda cell: csv_limits("qps", cell.qps),
        ),
        CellField(
            Column(f"of {baseline}", "[95 % interval]"),
            lambda cell: Cell(figures.ratio(cell.ratio), figures.resolution_text(cell)),
            lambda cell: {**csv_limits("ratio", cell.ratio), "resolution": cell.resolution.value},
        ),
        CellField(
            Column(f"CPU µs/{operation}", "client+server" + ("+fwd" if forwarded else "")),
            lambda cell: Cell(number(figures.cpu_total(cell)), figures.cpu_parts(cell)),
            lambda cell: {
                **csv_limits("client_cpu_us_per_query", cell.cpu_us_per_query.client),
                **csv_limits("server_cpu_us_per_query", cell.cpu_us_per_query.server),
                **csv_limits("forwarder_cpu_us_per_query", cell.cpu_us_per_query.forwarder),
            },
        ),
        CellField(
            Column("CPU vs.", baseline),
            lambda cell: Cell(figures.cpu_point(cell), figures.ratio_limits(cell.cpu_ratio)),
            lambda cell: {**csv_limits("cpu_ratio", cell.cpu_ratio), "cpu_bound": cell.cpu_bound.value},
        ),
        _latency_field("p50"),
        _latency_field("p95", optional=True),
        _latency_field("p99"),
        _latency_field("max", optional=True),
        *_further_fields(summary),
    ]


def _record_only_field(record: Callable[[CellSummary], Record]) -> CellField:
    """A field that is only in the CSV."""
    return CellField(None, lambda cell: Cell(""), record)


def _latency_field(name: str, optional: bool = False) -> CellField:
    return CellField(
        Column(name, "ms/txn", optional=optional),
        lambda cell: Cell(number(getattr(cell.latency_ms, name))),
        lambda cell: {f"{name}_ms": csv_value(getattr(cell.latency_ms, name))},
    )


def _further_fields(summary: Summary) -> list[CellField]:
    """Fields with what a transaction exchanges, what others published, and what limits the cell."""
    return [
        _record_only_field(
            lambda cell: {**csv_limits("latency_ratio", cell.latency_ratio), **csv_limits("tps", cell.tps)}
        ),
        CellField(
            Column("round trips", "/txn", optional=True),
            lambda cell: Cell(f"{cell.turns_per_txn:.4g}"),
            lambda cell: {
                "turns_per_txn": csv_value(cell.turns_per_txn),
                "queries_per_txn": csv_value(cell.queries_per_txn),
            },
        ),
        CellField(
            Column("bytes/txn out", "in", optional=True),
            lambda cell: Cell(
                figures.whole_number(cell.bytes_per_txn.to_server), figures.whole_number(cell.bytes_per_txn.to_client)
            ),
            lambda cell: {
                "bytes_to_server_per_txn": csv_value(cell.bytes_per_txn.to_server),
                "bytes_to_client_per_txn": csv_value(cell.bytes_per_txn.to_client),
            },
        ),
        CellField(
            Column("published") if any(cell.published for cell in shown_cells(summary)) else None,
            _published_cell,
            lambda cell: {
                "published_ratio": csv_value(cell.published.ratio if cell.published else None),
                "published_qps": csv_value(cell.published.qps if cell.published else None),
            },
        ),
        _record_only_field(
            lambda cell: {
                "cycle_us": csv_value(cell.cycle.us if cell.cycle else None),
                "cycle_rest_share": csv_value(cell.cycle.rest_share if cell.cycle else None),
                "limit": cell.limit.resource.value if cell.limit else "",
                "limit_confidence": cell.limit.confidence if cell.limit else "",
                "limit_id": cell.limit.id if cell.limit else "",
                "warnings": "; ".join(warning.value for warning in cell.warnings),
            }
        ),
    ]


def _published_cell(cell: CellSummary) -> Cell:
    if cell.published is None:
        return Cell(UNKNOWN)
    ratio = "1" if cell.published.ratio == 1 else f"{cell.published.ratio:.2f}"
    return Cell(ratio, f"{cell.published.qps:,.0f}/s")


def cell_table(summary: Summary, title: str = "", main: bool = True) -> Table:
    """A row for each cell."""
    fields = [field for field in _fields(summary) if field.column]
    columns = (Column("path", left_aligned=True), *(field.column for field in fields if field.column))
    rows = tuple((Cell(cell.arm), *(field.cell(cell) for field in fields)) for cell in shown_cells(summary))
    return Table(title, columns, rows, _table_notes(summary), main=main)


def _table_notes(summary: Summary) -> tuple[str, ...]:
    sources = sorted({cell.published.source for cell in shown_cells(summary) if cell.published})
    published = note(BLOCKS["published"], sources="; ".join(sources)) if sources else ""
    ratios = note(BLOCKS["ratios"]) if figures.ratios_differ_from_rows(summary) else ""
    return tuple(line for line in (figures.cpu_bound_note(summary), ratios, published) if line)


def cell_records(summary: Summary) -> list[dict[str, object]]:
    """A record for each cell. That of a cell with a fault has only its identity, because rates and CPU would include the outage."""
    factors = sorted({name for cell in summary.cells for name in cell.factors})
    fields = _fields(summary)
    records = []
    for cell in summary.cells:
        record: dict[str, object] = {
            "arm": cell.arm,
            "role": cell.role.value,
            **{name: cell.factors.get(name, "") for name in factors},
            "trials": cell.trials,
            "void_trials": cell.void_trials,
        }
        if not has_fault(cell.factors):
            for field in fields:
                record |= field.record(cell)
        records.append(record)
    return records


# ---------------------------------------------------------------- limits that were tested


def confirmation_blocks(summary: Summary) -> list[Block]:
    """The tests of limits. Each changed one thing and compared the throughput with the prediction for that change."""
    fields: Fields[Confirmation] = {
        "cell": lambda confirmation: confirmation.arm,
        "limit": lambda confirmation: resource_name(confirmation.resource),
        "changed": lambda confirmation: confirmation.changed,
        "predicted": lambda confirmation: f"x {confirmation.predicted:.2f}",
        "measured [95 %]": lambda confirmation: f"x {figures.ratio(confirmation.measured)}",
        "outcome": confirmation_outcome,
        "blocks": lambda confirmation: str(confirmation.blocks),
    }
    notes = tuple(line for line in (figures.unconfirmed_line(summary),) if line)
    if not summary.confirmations:
        return [Details("Limits that could not be tested", (Bullets(notes),))] if notes else []
    table = make_table("", summary.confirmations, fields, notes, stack=True)
    return [Details("Tested limits", (table,), open=not summary.answer.is_missing)]


def confirmation_outcome(confirmation: Confirmation) -> str:
    """Outcome of a test of a limit. It is inconclusive if the interval includes the middle between both expectations. If something
    other than the resource itself was changed, the expected outcome only rules out another limit."""
    if confirmation.confirmed:
        return f"rules out {confirmation.rules_out}" if confirmation.rules_out else "confirmed"
    return "NOT confirmed" if is_refuted(confirmation) else "inconclusive"


# ---------------------------------------------------------------- every trial


def trial_blocks(summary: Summary) -> list[Block]:
    """The chart of every trial in the order of execution, which shows whether the machine was quiet and whether anything drifted."""
    good_trials = charts.ratios_to_median(summary)
    if not good_trials:
        return []
    caption = BLOCKS["trials"]
    if len(good_trials) > charts.MAX_TRIALS_DRAWN:
        caption = fill(BLOCKS["trials of blocks"], trials=caption)
        data = _block_table(summary)
    else:
        head = ("trial", "block", "cell", *figures.trial_head(summary))
        data = Table("", plain_columns(*head), tuple(plain_cells(*row) for row in figures.trial_rows(summary)))
    distances = sorted(abs(row["ratio"] - 1) for row in good_trials)
    title = fill(BLOCKS["trials title"], half=statistics.median(distances), most=distances[-1])
    return [
        Heading("Was the machine quiet?"),
        Chart("trials", title, BLOCKS["trials axis"] + caption, partial(charts.drift_chart, summary), data),
    ]


def _block_table(summary: Summary) -> Table:
    """A table of blocks, used if there are too many trials to list each."""
    rows = []
    for block in charts.block_ranges(charts.ratios_to_median(summary)):
        block_trials = [trial for trial in summary.trials if trial.block == block["block"]]
        others_cpus = [trial.others_cpus for trial in block_trials if trial.others_cpus is not None]
        rows.append(
            plain_cells(
                str(block["block"]),
                str(len(block_trials)),
                str(sum(trial.qps is None for trial in block_trials)),
                f"{block['ratio']:.3f}",
                f"{block['low']:.3f} to {block['high']:.3f}",
                figures.cpus(statistics.median(others_cpus) if others_cpus else None),
            )
        )
    head = plain_columns(
        "block", "trials", "void", "median, relative to the cell's", "middle 80 %", "CPUs used by others"
    )
    return Table("", head, tuple(rows))
