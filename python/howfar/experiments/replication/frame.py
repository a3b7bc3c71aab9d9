"""Common parts of the reports of cost, crash and fallback: the table of modes, cards, lines for my.cnf, evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from howfar.analysis.advice import capital
from howfar.analysis.summary import Summary
from howfar.experiments.crash.analysis import FAULTS, may_lose, percent_up
from howfar.experiments.replication.arms import ALONE, mode_name, near, plural
from howfar.experiments.replication.trade import ReplicationFindings, TradeRow, quoted_rows
from howfar.plan.factors import SEMI_SYNC
from howfar.report import figures
from howfar.report.document import Block, Bullets, Card, Cell, Code, Column, Details, Document, Table, Text, table_of
from howfar.report.frame import frame
from howfar.report.sections import cell_records
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import brackets
from howfar.store.receipts import number_in
from howfar.units import format_duration_ns

TRADE = "What an acknowledgement costs, what a crash loses"
Record = dict[str, object]

NO_CRASHES = "What a crash loses was not measured in this run: howfar run crash measures it."
MEMORY_FSYNC_NS = 20_000
"""Time of an fsync below which it went to memory: no disk writes and flushes a block in less."""


def document(
    summary: Summary, main: Sequence[Block], sections: Sequence[Block], by_arm: Mapping[str, Record]
) -> Document:
    """The report. The first screen is short: lines for my.cnf come after it. `by_arm`: further columns of the records."""
    short = summary.model_copy(
        update={"advice": tuple(each.model_copy(update={"lines": ()}) for each in summary.advice)}
    )
    below = [*_configuration(summary), *sections, *_evidence(summary)]
    return frame(short, main, cards=cards(summary), below=below, records=_records(summary, by_arm))


def _configuration(summary: Summary) -> list[Block]:
    """Lines for my.cnf that belong to a piece of advice."""
    found = [(each.action, each.lines) for each in summary.advice if each.lines]
    blocks = [block for action, lines in found for block in (Text(action), Code(lines))]
    return [Details("Configuration", tuple(blocks), open=True)] if blocks else []


# ---------------------------------------------------------------- the table of modes


def trade_tables(findings: ReplicationFindings) -> list[Table]:
    """Mode x cost x loss, a table for each distance; the quoted distance is the main one."""
    rest: list[TradeRow] = list(findings.trade)
    tables: list[Table] = []
    here = quoted_rows(rest)
    while here:
        tables.append(trade_table(here, main=not tables))
        rest = [row for row in rest if row not in here]
        here = [row for row in rest if near(row.replica_rtt_ns, rest[0].replica_rtt_ns)]
    return tables


def trade_table(rows: Sequence[TradeRow], main: bool = True) -> Table:
    """The table of modes at one distance, without columns on crashes if nothing was broken."""
    known = any(row.lost_per_crash for row in rows)
    of = "of no\nreplica" if rows[0].mode == ALONE else "of the\nfirst"
    fields: dict[str | Column, Callable[[TradeRow], str | Cell]] = {
        "mode": lambda row: mode_name(row.mode),
        "commits\nper s": lambda row: figures.number(row.commits_per_s.value),
        "ms per\ncommit": lambda row: figures.number(row.commit_ms),
        of: lambda row: Cell(figures.point(row.cost), figures.limits(row.cost)) if row.cost else "1",
    }
    if known:
        fields["lost per\ncrash"] = lambda row: lost_cell(row.lost_per_crash, row.crashes)
        fields[Column("seen,", "then gone", optional=True)] = _seen
    title = f"{TRADE}: RTT {distance(rows[0].replica_rtt_ns)}" if rows[0].replica_rtt_ns is not None else TRADE
    return table_of(title, rows, fields, trade_notes(rows), main=main)


def _seen(row: TradeRow) -> str:
    return figures.UNKNOWN if row.phantoms is None else "yes" if row.phantoms else "no"


def trade_notes(rows: Sequence[TradeRow]) -> tuple[str, ...]:
    threads = sorted({row.threads for row in rows})
    found = [f"{' or '.join(map(str, threads))} connection{'' if threads == [1] else 's'}; 95 % intervals in brackets."]
    found += [
        f"{capital(mode_name(row.mode))}: the ratio is from the {row.blocks} blocks in which both were measured, the rate from "
        f"{row.trials}."
        for row in rows
        if 0 < row.blocks < row.trials
    ]
    if all(row.lost_per_crash is None for row in rows):
        return (*found, NO_CRASHES)
    faults = dict.fromkeys(row.fault for row in rows if row.fault is not None)
    texts = [
        f"{fault_name(fault)} ({FAULTS[fault].text})" if FAULTS[fault].text else fault_name(fault) for fault in faults
    ]
    found += [f"Crashes: {'; '.join(texts)}."] if texts else []
    zero = next((row for row in rows if row.lost_per_crash and not row.lost_per_crash.value), None)
    return (*found, *([zero_note(zero.crashes)] if zero else []))


def zero_note(crashes: int) -> str:
    prove = "proves" if crashes == 1 else "prove"
    return f"{plural(crashes, 'crash')} without a loss {prove} little: in brackets, the share of crashes that may lose some (95 %)."


def verdicts(findings: ReplicationFindings) -> list[Block]:
    """When to use each mode, and the table of modes at the other distances."""
    rows = quoted_rows(findings.trade)
    lines = dict.fromkeys(f"{capital(mode_name(row.mode))}: {row.verdict}." for row in rows if row.verdict)
    blocks: list[Block] = [Bullets(tuple(lines)), *trade_tables(findings)[1:]]
    return [Details("When to use each mode", tuple(blocks), open=True)] if lines else []


def cards(summary: Summary) -> tuple[Card, ...]:
    """A card per mode at one distance, with both sides of the trade-off."""
    findings = summary.the(ReplicationFindings)
    return tuple(_card(row, findings.cost is None) for row in quoted_rows(findings.trade))


def _card(row: TradeRow, lost_first: bool) -> Card:
    rate = figures.number(row.commits_per_s.value)
    each = f"{figures.number(row.commit_ms)} ms each{f', x {figures.point(row.cost)}' if row.cost else ''}"
    found = row.lost_per_crash
    gone = ["others saw rows that were then gone"] if row.phantoms else []
    if found is None:
        return Card(mode_name(row.mode), rate, "commits/s", (each,))
    cell = lost_cell(found, row.crashes)
    if found.value > 0:
        what = [part for part in (cell.below, plural(row.crashes, "crash")) if part]
    else:
        what = [f"in {plural(row.crashes, 'crash')} {cell.below}".strip()]
    lost = (count(found.value), "commits lost per crash")
    if lost_first:
        return Card(mode_name(row.mode), *lost, (", ".join(what), f"{rate} commits/s, {each}", *gone))
    return Card(mode_name(row.mode), rate, "commits/s", (each, f"{lost[0]} {lost[1]}, {', '.join(what)}", *gone))


# ---------------------------------------------------------------- figures as text


def count(value: float) -> str:
    """A number of commits: whole ones without decimals."""
    return f"{value:,.0f}" if value == int(value) else figures.number(value)


def limits(estimate: Estimate | None) -> str:
    """`[463, 481]`; empty where there is no interval."""
    return "" if estimate is None else brackets(estimate, lambda value: count(max(value, 0.0)))


def with_limits(estimate: Estimate | None) -> str:
    """`472 [463, 481]`."""
    return figures.UNKNOWN if estimate is None else f"{count(estimate.value)} {limits(estimate)}".strip()


def lost_cell(per_crash: Estimate | None, crashes: int) -> Cell:
    """`2,130` above `[1,870, 2,390]`. Without a loss the share of crashes that may still lose some: `0 of 20` above `(< 14 %)`."""
    if per_crash is None:
        return Cell(figures.UNKNOWN)
    if per_crash.value > 0:
        return Cell(count(per_crash.value), limits(per_crash))
    return Cell(f"0 of {crashes}", f"(< {percent_up(may_lose(crashes))} %)" if crashes else "")


def distance(rtt_ns: int | None) -> str:
    """`85ms`, measured `85.1ms`; empty without a link."""
    return "" if rtt_ns is None else format_duration_ns(float(f"{rtt_ns:.3g}"))


def fault_name(fault: str) -> str:
    return FAULTS[fault].name


# ---------------------------------------------------------------- evidence


def _evidence(summary: Summary) -> list[Block]:
    """Whether the modes held and what a flush costs, by this run's receipts."""
    lines = tuple(line for line in (_counted(summary), _clock(summary), _void(summary), flush_line(summary)) if line)
    return [Details("Evidence", (Bullets(lines),))]


def _semi_sync(summary: Summary) -> bool:
    findings = summary.the(ReplicationFindings)
    modes = {row.mode for row in findings.trade} | {story.mode for story in findings.fallback}
    modes |= {loss.mode for loss in (findings.crash.losses if findings.crash else ())}
    return bool(modes & set(SEMI_SYNC))


def _counted(summary: Summary) -> str:
    """What the primary counted in the last good trial of each cell."""
    pairs = [_ends(cell.receipt) for cell in summary.cells if cell.factors.get("replication") in SEMI_SYNC]
    ends = [pair for pair in pairs if pair is not None]
    if not ends:
        return ""
    acknowledged, without = (sum(after[name] - before[name] for before, after in ends) for name in ("yes_tx", "no_tx"))
    return (
        f"In the last good trials of {plural(len(ends), 'semi-sync cell')} the primary counted {acknowledged:,} acknowledgements "
        f"(some servers count groups) and {without:,} commits without one; one such commit makes a trial void."
    )


def _ends(receipt: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]] | None:
    """The primary's counters before and after. None: another kind of receipt."""
    section = receipt.get("replication")
    window = section.get("window") if isinstance(section, Mapping) else None
    found = []
    for when in ("before", "after"):
        moment = window.get(when) if isinstance(window, Mapping) else None
        end = moment.get("primary") if isinstance(moment, Mapping) else None
        if not isinstance(end, dict) or not all(isinstance(end.get(name), int) for name in ("yes_tx", "no_tx")):
            return None
        found.append(end)
    return found[0], found[1]


def _clock(summary: Summary) -> str:
    """Evidence from times, which unlike counters cannot be wrong: round trips of the fastest semi-synchronous commit."""
    cost = summary.the(ReplicationFindings).cost
    found = [
        point.p50_ms / (curve.rest_rtt_ns / 1e6)
        for curve in (cost.curves if cost else ())
        if curve.mode in SEMI_SYNC and curve.rest_rtt_ns and curve.replica_rtt_ns
        for point in curve.points
    ]
    return (
        f"Independent of counters: no median semi-sync commit took less than {min(found):.2f} round trips."
        if found
        else ""
    )


_MODE_NOT_HELD = (
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


def _void(summary: Summary) -> str:
    if not _semi_sync(summary):
        return ""
    void = sum(
        count
        for reason, count in summary.void_reasons.items()
        if any(mark in reason for mark in _MODE_NOT_HELD) and not any(mark in reason for mark in _LOAD_FAILED)
    )
    return f"Trials void because replication was not as configured: {void}."


def flush_line(summary: Summary) -> str:
    found = number_in(summary.environment, "data_fsync_ns", "512", "p50")
    system = summary.environment.get("work_file_system")
    levels = sorted({str(cell.factors["durability"]) for cell in summary.cells if "durability" in cell.factors})
    durability = f" Durability: {', '.join(levels)}." if levels else ""
    if found is None:
        return f"The cost of a flush to disk is unknown.{durability}"
    took = f"{found / 1e3:.0f} µs" if found < 1e6 else f"{found / 1e6:.1f} ms"
    text = f"Writing and flushing 512 bytes{f' on {system}' if isinstance(system, str) else ''} took {took} (median)"
    if found < MEMORY_FSYNC_NS:
        text += ": that is memory. On a disk every commit, or group of commits, costs one more flush on each server"
    return f"{text}.{durability}"


# ---------------------------------------------------------------- records


def _records(summary: Summary, by_arm: Mapping[str, Record]) -> list[Record]:
    """Cells with the columns of their arm, then arms that are no cells because they broke something."""
    names = dict.fromkeys(name for record in by_arm.values() for name in record)
    filled = {arm: {name: record.get(name, "") for name in names} for arm, record in by_arm.items()}
    cells = [record | filled.pop(str(record["arm"]), {}) for record in cell_records(summary)]
    return cells + [{"arm": arm} | record for arm, record in filled.items()]
