"""Common parts of the reports on cost, crash and fallback: the table of modes, cards, lines for my.cnf, evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from howfar.analysis.advice import COMMANDS
from howfar.analysis.summary import Summary
from howfar.contract.receipt import TrialReceipt
from howfar.experiments.replication.analysis import point_at, round_trip_sentences
from howfar.experiments.replication.arms import ALONE, is_same_distance, mode_name
from howfar.experiments.replication.crash.analysis import joined, max_loss_share
from howfar.experiments.replication.crash.texts import FAULT_TEXTS
from howfar.experiments.replication.factors import DURABILITY, REPLICATION, SEMI_SYNC
from howfar.experiments.replication.texts import TEXTS
from howfar.experiments.replication.trade import ModeComparison, ReplicationFindings, quoted_rows
from howfar.experiments.replication.violations import NOT_AS_CONFIGURED
from howfar.findings import capital, fill, note
from howfar.report import figures
from howfar.report.document import Block, Bullets, Card, Cell, Column, Details, Document, Table, make_table
from howfar.report.frame import configuration, frame
from howfar.report.sections import cell_records
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import limits_text

Record = dict[str, object]

MEMORY_FSYNC_NS = 20_000
"""Time of an fsync below which it must have gone to memory: no disk writes and flushes a block in less."""


def document(
    summary: Summary,
    main: Sequence[Block],
    sections: Sequence[Block],
    by_arm: Mapping[str, Record],
    proofs: Sequence[str] = (),
) -> Document:
    """The report. Lines for my.cnf come after the first screen, which stays short. `by_arm`: further columns of the records; `proofs`:
    what makes the answer sure."""
    shortened = summary.model_copy(
        update={
            "advice": tuple(
                advice if advice.id in COMMANDS else advice.model_copy(update={"lines": ()})
                for advice in summary.advice
            )
        }
    )
    below = [*configuration(summary), *sections, *_evidence(summary)]
    return frame(
        shortened,
        main,
        cards=cards(summary),
        more_blocks=below,
        records=_records(summary, by_arm),
        is_about_ratios=False,
        proofs=proofs,
    )


# ---------------------------------------------------------------- the table of modes


def trade_tables(findings: ReplicationFindings, summary: Summary) -> list[Table]:
    """Tables of each mode's cost and loss, one per distance. The first and main table is that of the quoted distance."""
    rest: list[ModeComparison] = list(findings.trade)
    tables: list[Table] = []
    table_rows = quoted_rows(rest)
    while table_rows:
        tables.append(_trade_table(table_rows, findings, summary, main=not tables))
        rest = [row for row in rest if row not in table_rows]
        table_rows = [row for row in rest if is_same_distance(row.replica_rtt_ns, rest[0].replica_rtt_ns)]
    return tables


def _trade_table(
    rows: Sequence[ModeComparison], findings: ReplicationFindings, summary: Summary, main: bool = True
) -> Table:
    """The table of modes at one distance, without columns on crashes if there were none, and with the rate of one connection if the
    main one is that of many."""
    has_crashes = any(row.lost_per_crash for row in rows)
    ratio_head = "of no\nreplica" if rows[0].mode == ALONE else "of the\nfirst"
    single_rates = _single_rates(findings, rows)
    fields: dict[str | Column, Callable[[ModeComparison], str | Cell]] = {
        "mode": lambda row: mode_name(row.mode),
        **({"commits/s\nfrom 1": lambda row: figures.number(single_rates.get(row.mode))} if single_rates else {}),
        f"commits/s\nfrom {rows[0].threads}" if single_rates else "commits\nper s": lambda row: figures.number(
            row.commits_per_s.value
        ),
        "ms per\ncommit": lambda row: figures.number(row.commit_ms),
        ratio_head: lambda row: (
            Cell(figures.ratio_value(row.cost), figures.ratio_limits(row.cost)) if row.cost else "1"
        ),
    }
    if has_crashes:
        fields["lost per\ncrash"] = lambda row: lost_cell(row.lost_per_crash, row.crashes)
        fields[Column("others read,", "then lost", optional=True)] = _phantoms_text
    title = TEXTS["losses" if findings.cost is None else "costs-and-losses" if has_crashes else "costs"]
    title += f": RTT {distance(rows[0].replica_rtt_ns)}" if rows[0].replica_rtt_ns is not None else ""
    notes = [
        *trade_notes(rows, is_memory(summary.environment.fsync_ns)),
        *(_main_notes(findings, rows, summary) if main else ()),
    ]
    return make_table(title, rows, fields, notes, main=main)


def _single_rates(findings: ReplicationFindings, rows: Sequence[ModeComparison]) -> dict[str, float]:
    """Commits/s of one connection by mode, at the distance and durability of these rows. Empty: the rows are about it, or none was
    measured."""
    if findings.cost is None or {row.threads for row in rows} == {1}:
        return {}
    return {
        curve.mode: point.commits_per_s.value
        for curve in findings.cost.curves
        if not curve.held
        and curve.durability == rows[0].durability
        and curve.replica_rtt_ns in (None, rows[0].replica_rtt_ns)
        and (point := point_at(curve, 1)) is not None
    }


def _main_notes(findings: ReplicationFindings, rows: Sequence[ModeComparison], summary: Summary) -> Iterator[str]:
    """Why waiting costs more than a round trip, and a mode without waiting something; that there are further crashes."""
    if findings.cost is not None and not summary.answer.is_missing:
        yield from round_trip_sentences(findings.cost.curves, summary.server["kind"])
        if not figures.on_hosts(summary):
            yield note(TEXTS["shared-cpus"])
    if findings.crash is not None and {loss.fault for loss in findings.crash.losses} - {row.fault for row in rows}:
        yield note(TEXTS["other-crashes"])


def _phantoms_text(row: ModeComparison) -> str:
    return figures.UNKNOWN if row.phantoms is None else "yes" if row.phantoms else "no"


def trade_notes(rows: Sequence[ModeComparison], flushes_to_memory: bool = False) -> tuple[str, ...]:
    estimates = [each for row in rows for each in (row.commits_per_s, row.cost, row.lost_per_crash)]
    has_intervals = any(each is not None and each.low is not None for each in estimates)
    notes = [
        note(TEXTS["connections-noted"], threads=threads, intervals=has_intervals)
        for threads in sorted({row.threads for row in rows})
    ]
    lossless_row = next((row for row in rows if row.lost_per_crash and not row.lost_per_crash.value), None)
    notes += [_little_proof(lossless_row.crashes)] if lossless_row and lossless_row.crashes else []
    notes += [
        note(TEXTS[level], memory=int(flushes_to_memory)) for level in dict.fromkeys(row.durability for row in rows)
    ]
    notes += [
        note(TEXTS["fewer-blocks"], subject=mode_name(row.mode), blocks=row.blocks, trials=row.trials)
        for row in rows
        if 0 < row.blocks < row.trials
    ]
    if all(row.lost_per_crash is None for row in rows):
        return (*notes, note(TEXTS["no-crashes"]))
    faults = dict.fromkeys(row.fault for row in rows if row.fault is not None)
    texts = [f"{name} ({text})" if text else name for name, _, text in (FAULT_TEXTS[fault] for fault in faults)]
    return (*notes, *([f"Crashes: {'; '.join(texts)}."] if texts else []))


def _little_proof(crashes: int) -> str:
    """What none lost in so many crashes shows."""
    return note(TEXTS["little-proof"], share=max_loss_share(crashes))


def mode_verdicts(findings: ReplicationFindings, summary: Summary, tables: Sequence[Table]) -> list[Block]:
    """`tables` of modes at the other distances, and, if the run has an answer, when to use each mode."""
    if summary.answer.is_missing:
        return [Details("Other distances", tuple(tables), open=True)] if tables else []
    lines = dict.fromkeys(
        f"{capital(mode_name(row.mode))}: {row.verdict}." for row in quoted_rows(findings.trade) if row.verdict
    )
    return [Details("When to use each mode", (Bullets(tuple(lines)), *tables), open=True)] if lines else []


def cards(summary: Summary) -> tuple[Card, ...]:
    """A card per mode at one distance, with both sides of the trade-off. None for a run about joining nodes, which chooses no mode."""
    findings = summary.require_findings(ReplicationFindings)
    if findings.crash is not None and joined(findings.crash.losses):
        return ()
    return tuple(_card(row, findings.cost is None) for row in quoted_rows(findings.trade))


def _card(row: ModeComparison, lost_first: bool) -> Card:
    ratio = f", x {figures.ratio_value(row.cost)}" if row.cost else ""
    costs = figures.number(row.commits_per_s.value), "commits/s", f"{figures.number(row.commit_ms)} ms each{ratio}"
    if row.lost_per_crash is None:
        return Card(mode_name(row.mode), *costs[:2], costs[2:])
    cell, crashes = lost_cell(row.lost_per_crash, row.crashes), fill("{n:of crash crashes}", n=row.crashes)
    details = (
        f"{cell.below}, {crashes}".removeprefix(", ") if row.lost_per_crash.value else f"in {crashes} {cell.below}"
    )
    losses = count(row.lost_per_crash.value), "commits lost per crash", details.strip()
    first, second = (losses, costs) if lost_first else (costs, losses)
    phantom_lines = ["others read rows that were then lost"] if row.phantoms else []
    return Card(mode_name(row.mode), *first[:2], (first[2], f"{second[0]} {second[1]}, {second[2]}", *phantom_lines))


# ---------------------------------------------------------------- figures as text


def count(value: float) -> str:
    """A number of commits as text, without decimals if it is an integer."""
    return fill("{value:count}", value=value)


def count_limits(estimate: Estimate | None) -> str:
    """`[463, 481]`; empty where there is no interval."""
    return "" if estimate is None else limits_text(estimate, lambda value: count(max(value, 0.0)))


def with_interval(estimate: Estimate | None) -> str:
    """`472 [463, 481]`."""
    return figures.UNKNOWN if estimate is None else f"{count(estimate.value)} {count_limits(estimate)}".strip()


def lost_cell(per_crash: Estimate | None, crashes: int) -> Cell:
    """Commits lost per crash: `2,130` above `[1,870, 2,390]`. If none was lost, the share of crashes that may still lose some: `0 of
    20` above `(< 14 %)`."""
    if per_crash is None:
        return Cell(figures.UNKNOWN)
    if per_crash.value > 0:
        return Cell(count(per_crash.value), count_limits(per_crash))
    return Cell(f"0 of {crashes}", fill("(< {share:upper})", share=max_loss_share(crashes)) if crashes else "")


def distance(rtt_ns: int | None) -> str:
    """`85 ms`, measured `85.1 ms`; empty without a link."""
    return "" if rtt_ns is None else fill("{ns:time}", ns=float(f"{rtt_ns:.3g}"))


def fault_name(fault: str) -> str:
    return FAULT_TEXTS[fault].name


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
    findings = summary.require_findings(ReplicationFindings)
    modes = {row.mode for row in findings.trade} | {story.mode for story in findings.fallback}
    modes |= {loss.mode for loss in (findings.crash.losses if findings.crash else ())}
    return bool(modes & set(SEMI_SYNC))


def _acknowledgements_line(summary: Summary) -> str:
    """What the primary counted in the last good trial of each cell."""
    counts_or_none = [
        _acknowledged_and_not(cell.receipt)
        for cell in summary.cells
        if REPLICATION.level_or_none(cell.factors) in SEMI_SYNC
    ]
    counts = [count for count in counts_or_none if count is not None]
    if not counts:
        return ""
    acknowledged, without = map(sum, zip(*counts, strict=True))
    return note(TEXTS["counted"], cells=len(counts), acknowledged=acknowledged, without=without)


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
    cost = summary.require_findings(ReplicationFindings).cost
    round_trips = [
        point.p50_ms / (curve.rest_rtt_ns / 1e6)
        for curve in (cost.curves if cost else ())
        if curve.mode in SEMI_SYNC and curve.rest_rtt_ns and curve.replica_rtt_ns
        for point in curve.points
    ]
    return note(TEXTS["fastest"], round_trips=min(round_trips)) if round_trips else ""


def _void_trials_line(summary: Summary) -> str:
    if not _has_semi_sync(summary):
        return ""
    void = len({number for kind in summary.voids if kind.id in NOT_AS_CONFIGURED for number in kind.trials})
    return note(TEXTS["not-as-configured"], void=void)


def flush_line(summary: Summary) -> str:
    fsync_ns = summary.environment.fsync_ns
    system = summary.environment.work_file_system
    levels = sorted({DURABILITY.level_in(cell.factors) for cell in summary.cells if "durability" in cell.factors})
    if fsync_ns is None:
        return note(TEXTS["flush-unknown"], levels=", ".join(levels))
    took = f"{fsync_ns / 1e3:.0f} µs" if fsync_ns < 1e6 else f"{fsync_ns / 1e6:.1f} ms"
    memory = is_memory(fsync_ns)
    return note(TEXTS["flush"], system=system or "", took=took, memory=memory, levels=", ".join(levels))


def is_memory(fsync_ns: float | None) -> bool:
    """Whether a flush goes to memory only. False: it does not, or is unknown."""
    return fsync_ns is not None and fsync_ns < MEMORY_FSYNC_NS


# ---------------------------------------------------------------- records


def _records(summary: Summary, by_arm: Mapping[str, Record]) -> list[Record]:
    """Records of the cells with the further columns of their arms, then arms that are no cells, because a fault was injected in
    them."""
    names = dict.fromkeys(name for record in by_arm.values() for name in record)
    extra_columns = {arm: {name: record.get(name, "") for name in names} for arm, record in by_arm.items()}
    cells = [record | extra_columns.pop(str(record["arm"]), {}) for record in cell_records(summary)]
    return cells + [{"arm": arm} | record for arm, record in extra_columns.items()]
