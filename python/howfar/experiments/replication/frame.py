"""Common parts of the reports on cost, crash and fallback: the table of modes, cards, lines for my.cnf, evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from howfar.analysis.advice import capital
from howfar.analysis.summary import Summary
from howfar.contract.receipt import TrialReceipt
from howfar.experiments.crash.analysis import FAULTS, max_loss_share, upper_percent
from howfar.experiments.replication.arms import ALONE, is_same_distance, mode_name, plural
from howfar.experiments.replication.trade import ModeComparison, ReplicationFindings, quoted_rows
from howfar.plan.factors import SEMI_SYNC
from howfar.report import figures
from howfar.report.document import Block, Bullets, Card, Cell, Code, Column, Details, Document, Table, Text, table_of
from howfar.report.frame import frame
from howfar.report.sections import cell_records
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import brackets
from howfar.units import format_duration_ns

TRADE_TITLE = "What an acknowledgement costs, what a crash loses"
Record = dict[str, object]

NO_CRASHES = "What a crash loses was not measured in this run: howfar run crash measures it."
MEMORY_FSYNC_NS = 20_000
"""Time of an fsync below which it must have gone to memory: no disk writes and flushes a block in less."""


def document(
    summary: Summary, main: Sequence[Block], sections: Sequence[Block], by_arm: Mapping[str, Record]
) -> Document:
    """The report. Lines for my.cnf come after the first screen, which stays short. `by_arm`: further columns of the records."""
    shortened = summary.model_copy(
        update={"advice": tuple(advice.model_copy(update={"lines": ()}) for advice in summary.advice)}
    )
    below = [*_configuration(summary), *sections, *_evidence(summary)]
    return frame(shortened, main, cards=cards(summary), below=below, records=_records(summary, by_arm))


def _configuration(summary: Summary) -> list[Block]:
    """The advice that comes with lines for my.cnf, with these lines."""
    actions_and_lines = [(advice.action, advice.lines) for advice in summary.advice if advice.lines]
    blocks = [block for action, lines in actions_and_lines for block in (Text(action), Code(lines))]
    return [Details("Configuration", tuple(blocks), open=True)] if blocks else []


# ---------------------------------------------------------------- the table of modes


def trade_tables(findings: ReplicationFindings) -> list[Table]:
    """Tables of each mode's cost and loss, one per distance. The first and main table is that of the quoted distance."""
    rest: list[ModeComparison] = list(findings.trade)
    tables: list[Table] = []
    table_rows = quoted_rows(rest)
    while table_rows:
        tables.append(trade_table(table_rows, main=not tables))
        rest = [row for row in rest if row not in table_rows]
        table_rows = [row for row in rest if is_same_distance(row.replica_rtt_ns, rest[0].replica_rtt_ns)]
    return tables


def trade_table(rows: Sequence[ModeComparison], main: bool = True) -> Table:
    """The table of modes at one distance, without columns on crashes if there were none."""
    has_crashes = any(row.lost_per_crash for row in rows)
    ratio_head = "of no\nreplica" if rows[0].mode == ALONE else "of the\nfirst"
    fields: dict[str | Column, Callable[[ModeComparison], str | Cell]] = {
        "mode": lambda row: mode_name(row.mode),
        "commits\nper s": lambda row: figures.number(row.commits_per_s.value),
        "ms per\ncommit": lambda row: figures.number(row.commit_ms),
        ratio_head: lambda row: Cell(figures.point(row.cost), figures.limits(row.cost)) if row.cost else "1",
    }
    if has_crashes:
        fields["lost per\ncrash"] = lambda row: lost_cell(row.lost_per_crash, row.crashes)
        fields[Column("seen,", "then gone", optional=True)] = _phantoms_text
    title = (
        f"{TRADE_TITLE}: RTT {distance(rows[0].replica_rtt_ns)}" if rows[0].replica_rtt_ns is not None else TRADE_TITLE
    )
    return table_of(title, rows, fields, trade_notes(rows), main=main)


def _phantoms_text(row: ModeComparison) -> str:
    return figures.UNKNOWN if row.phantoms is None else "yes" if row.phantoms else "no"


def trade_notes(rows: Sequence[ModeComparison]) -> tuple[str, ...]:
    threads = sorted({row.threads for row in rows})
    notes = [f"{' or '.join(map(str, threads))} connection{'' if threads == [1] else 's'}; 95 % intervals in brackets."]
    notes += [
        f"{capital(mode_name(row.mode))}: the ratio is from the {row.blocks} blocks in which both were measured, the rate from "
        f"{row.trials}."
        for row in rows
        if 0 < row.blocks < row.trials
    ]
    if all(row.lost_per_crash is None for row in rows):
        return (*notes, NO_CRASHES)
    faults = dict.fromkeys(row.fault for row in rows if row.fault is not None)
    texts = [
        f"{fault_name(fault)} ({FAULTS[fault].text})" if FAULTS[fault].text else fault_name(fault) for fault in faults
    ]
    notes += [f"Crashes: {'; '.join(texts)}."] if texts else []
    lossless_row = next((row for row in rows if row.lost_per_crash and not row.lost_per_crash.value), None)
    return (*notes, *([no_loss_note(lossless_row.crashes)] if lossless_row else []))


def no_loss_note(crashes: int) -> str:
    prove = "proves" if crashes == 1 else "prove"
    return f"{plural(crashes, 'crash')} without a loss {prove} little: in brackets, the share of crashes that may lose some (95 %)."


def mode_verdicts(findings: ReplicationFindings) -> list[Block]:
    """When to use each mode, and the table of modes at the other distances."""
    rows = quoted_rows(findings.trade)
    lines = dict.fromkeys(f"{capital(mode_name(row.mode))}: {row.verdict}." for row in rows if row.verdict)
    blocks: list[Block] = [Bullets(tuple(lines)), *trade_tables(findings)[1:]]
    return [Details("When to use each mode", tuple(blocks), open=True)] if lines else []


def cards(summary: Summary) -> tuple[Card, ...]:
    """A card per mode at one distance, with both sides of the trade-off."""
    findings = summary.the(ReplicationFindings)
    return tuple(_card(row, findings.cost is None) for row in quoted_rows(findings.trade))


def _card(row: ModeComparison, lost_first: bool) -> Card:
    rate = figures.number(row.commits_per_s.value)
    commit_text = f"{figures.number(row.commit_ms)} ms each{f', x {figures.point(row.cost)}' if row.cost else ''}"
    lost_per_crash = row.lost_per_crash
    phantom_lines = ["others saw rows that were then gone"] if row.phantoms else []
    if lost_per_crash is None:
        return Card(mode_name(row.mode), rate, "commits/s", (commit_text,))
    cell = lost_cell(lost_per_crash, row.crashes)
    if lost_per_crash.value > 0:
        details = [part for part in (cell.below, plural(row.crashes, "crash")) if part]
    else:
        details = [f"in {plural(row.crashes, 'crash')} {cell.below}".strip()]
    lost = (count(lost_per_crash.value), "commits lost per crash")
    if lost_first:
        return Card(
            mode_name(row.mode), *lost, (", ".join(details), f"{rate} commits/s, {commit_text}", *phantom_lines)
        )
    return Card(
        mode_name(row.mode),
        rate,
        "commits/s",
        (commit_text, f"{lost[0]} {lost[1]}, {', '.join(details)}", *phantom_lines),
    )


# ---------------------------------------------------------------- figures as text


def count(value: float) -> str:
    """A number of commits as text, without decimals if it is an integer."""
    return f"{value:,.0f}" if value == int(value) else figures.number(value)


def limits(estimate: Estimate | None) -> str:
    """`[463, 481]`; empty where there is no interval."""
    return "" if estimate is None else brackets(estimate, lambda value: count(max(value, 0.0)))


def with_limits(estimate: Estimate | None) -> str:
    """`472 [463, 481]`."""
    return figures.UNKNOWN if estimate is None else f"{count(estimate.value)} {limits(estimate)}".strip()


def lost_cell(per_crash: Estimate | None, crashes: int) -> Cell:
    """Commits lost per crash: `2,130` above `[1,870, 2,390]`. If none was lost, the share of crashes that may still lose some: `0 of
    20` above `(< 14 %)`."""
    if per_crash is None:
        return Cell(figures.UNKNOWN)
    if per_crash.value > 0:
        return Cell(count(per_crash.value), limits(per_crash))
    return Cell(f"0 of {crashes}", f"(< {upper_percent(max_loss_share(crashes))} %)" if crashes else "")


def distance(rtt_ns: int | None) -> str:
    """`85ms`, measured `85.1ms`; empty without a link."""
    return "" if rtt_ns is None else format_duration_ns(float(f"{rtt_ns:.3g}"))


def fault_name(fault: str) -> str:
    return FAULTS[fault].name


# ---------------------------------------------------------------- evidence


def _evidence(summary: Summary) -> list[Block]:
    """Whether replication was as configured and what a flush costs, by this run's receipts."""
    lines = tuple(
        line
        for line in (
            _acknowledgements_line(summary),
            _fastest_commit_line(summary),
            _void_trials_line(summary),
            flush_line(summary),
        )
        if line
    )
    return [Details("Evidence", (Bullets(lines),))]


def _has_semi_sync(summary: Summary) -> bool:
    findings = summary.the(ReplicationFindings)
    modes = {row.mode for row in findings.trade} | {story.mode for story in findings.fallback}
    modes |= {loss.mode for loss in (findings.crash.losses if findings.crash else ())}
    return bool(modes & set(SEMI_SYNC))


def _acknowledgements_line(summary: Summary) -> str:
    """What the primary counted in the last good trial of each cell."""
    counts_or_none = [
        _acknowledged_and_not(cell.receipt) for cell in summary.cells if cell.factors.get("replication") in SEMI_SYNC
    ]
    counts = [count for count in counts_or_none if count is not None]
    if not counts:
        return ""
    acknowledged, without = map(sum, zip(*counts, strict=True))
    return (
        f"In the last good trials of {plural(len(counts), 'semi-sync cell')} the primary counted {acknowledged:,} acknowledgements "
        f"(some servers count groups) and {without:,} commits without one; one such commit makes a trial void."
    )


def _acknowledged_and_not(receipt: TrialReceipt) -> tuple[int, int] | None:
    """Commits of the window with an acknowledgement, and without one, as the primary counted them. None: not counted."""
    window = receipt.replication_window
    before = None if window is None or window.before is None else window.before.primary
    after = None if window is None or window.after is None else window.after.primary
    if before is None or after is None or before.yes_tx is None or after.yes_tx is None:
        return None
    return after.yes_tx - before.yes_tx, after.no_tx - before.no_tx


def _fastest_commit_line(summary: Summary) -> str:
    """Evidence from measured times, independent of the server's counters: round trips of the fastest semi-synchronous commits."""
    cost = summary.the(ReplicationFindings).cost
    round_trips = [
        point.p50_ms / (curve.rest_rtt_ns / 1e6)
        for curve in (cost.curves if cost else ())
        if curve.mode in SEMI_SYNC and curve.rest_rtt_ns and curve.replica_rtt_ns
        for point in curve.points
    ]
    return (
        f"Independent of counters: no median semi-sync commit took less than {min(round_trips):.2f} round trips."
        if round_trips
        else ""
    )


_NOT_AS_CONFIGURED = (
    "acknowledge",
    "semi-sync",
    "asynchronous",
    "round trip to the replica",
    "was not replicating",
    "wait point was",
    "timeout in ms was",
    "counters went back",
)
"""Texts in the void reasons of `lab/replication/proof.py` that mean that replication was not as configured."""
_LOAD_FAILED = ("no commit was acknowledged before the fault",)


def _void_trials_line(summary: Summary) -> str:
    if not _has_semi_sync(summary):
        return ""
    void = sum(
        count
        for reason, count in summary.void_reasons.items()
        if any(mark in reason for mark in _NOT_AS_CONFIGURED) and not any(mark in reason for mark in _LOAD_FAILED)
    )
    return f"Trials void because replication was not as configured: {void}."


def flush_line(summary: Summary) -> str:
    fsync_ns = summary.environment.fsync_ns
    system = summary.environment.work_file_system
    levels = sorted({str(cell.factors["durability"]) for cell in summary.cells if "durability" in cell.factors})
    durability = f" Durability: {', '.join(levels)}." if levels else ""
    if fsync_ns is None:
        return f"The cost of a flush to disk is unknown.{durability}"
    took = f"{fsync_ns / 1e3:.0f} µs" if fsync_ns < 1e6 else f"{fsync_ns / 1e6:.1f} ms"
    text = f"Writing and flushing 512 bytes{f' on {system}' if isinstance(system, str) else ''} took {took} (median)"
    if fsync_ns < MEMORY_FSYNC_NS:
        text += ": that is memory. On a disk every commit, or group of commits, costs one more flush on each server"
    return f"{text}.{durability}"


# ---------------------------------------------------------------- records


def _records(summary: Summary, by_arm: Mapping[str, Record]) -> list[Record]:
    """Records of the cells with the further columns of their arms, then arms that are no cells, because a fault was injected in
    them."""
    names = dict.fromkeys(name for record in by_arm.values() for name in record)
    extra_columns = {arm: {name: record.get(name, "") for name in names} for arm, record in by_arm.items()}
    cells = [record | extra_columns.pop(str(record["arm"]), {}) for record in cell_records(summary)]
    return cells + [{"arm": arm} | record for arm, record in extra_columns.items()]
