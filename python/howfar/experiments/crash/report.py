"""The report of crashes: what each mode lost under each fault, one crash moment by moment, and why to trust a zero."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from howfar.analysis.advice import capital
from howfar.analysis.summary import Summary
from howfar.experiments.crash import charts
from howfar.experiments.crash.analysis import (
    FAULTS,
    CrashFindings,
    CrashLoss,
    before_the_fault,
    may_lose,
    percent_up,
)
from howfar.experiments.experiment import Experiment
from howfar.experiments.replication import frame
from howfar.experiments.replication.arms import mode_name, plural
from howfar.experiments.replication.frame import Record, columns, count, fault_name, lost_cell, trade_tables, verdicts
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.plan.factors import SEMI_SYNC
from howfar.report import figures
from howfar.report.document import Block, Bullets, Cell, Chart, Column, Details, Document, Table, plain, single

LOSSES = "What a crash loses"


class Crash(Experiment):
    """Its findings are part of those of replication."""

    name = "crash"

    def applies(self, summary: Summary) -> bool:
        found = summary.found(ReplicationFindings)
        return found is not None and found.crash is not None

    def document(self, summary: Summary) -> Document:
        return document(summary)


def document(summary: Summary) -> Document:
    findings = summary.found(ReplicationFindings)
    assert findings is not None and findings.crash is not None, "only then it applies"
    main: list[Block] = [dots(findings.crash), *trade_tables(findings)[:1]]
    blocks = [*sections(findings.crash, summary.verdict), *verdicts(findings)]
    return frame.document(summary, main, blocks, records(findings.crash))


def sections(crash: CrashFindings, verdict: str) -> list[Block]:
    """All but the chart of all losses."""
    losses = [loss for loss in crash.losses if loss.crashes]
    if not losses:
        return []
    more = tuple(sentence for sentence in crash.sentences if sentence not in verdict)
    found: list[Block] = [Details(LOSSES, (Bullets(more), loss_table(losses)), open=True)]
    if drawn := charts.typical_crashes(losses):
        found.append(Details("One crash, moment by moment", (_moments(drawn),), open=True))
    return [*found, Details("Why trust these losses?", (Bullets(tuple(evidence(losses))),), open=True)]


def loss_table(losses: Sequence[CrashLoss]) -> Table:
    """A row for each mode and fault, over all its crashes."""
    heads = (
        Column("mode", left=True),
        Column("fault", left=True),
        Column("commits", "per s", optional=True),
        Column("lost per", "crash"),
        Column("predicted"),
        Column("applied,", "not acknowledged"),
        Column("seen,", "then gone"),
    )
    rows = tuple(
        (
            Cell(each),
            Cell(fault_name(loss.fault)),
            Cell(figures.number(loss.commits_per_s.value)),
            lost_cell(loss.lost_per_crash, loss.crashes),
            Cell(predicted(loss)),
            Cell(f"{loss.done_untold:,}"),
            Cell(f"{loss.phantoms:,}"),
        )
        for each, loss in zip(charts.mode_labels(losses), losses, strict=True)
    )
    return Table(LOSSES, heads, rows, loss_notes(losses), stack=True)


def predicted(loss: CrashLoss) -> str:
    """`4,791`; `≲ 70` where only the order of the most is known; `0` where nothing may be lost; a dash without a prediction."""
    found = loss.predicted_lost
    if found is None:
        return "0" if loss.mode in SEMI_SYNC else figures.UNKNOWN
    return f"{'' if FAULTS[loss.fault].cut_off else '≲ '}{count(found.value)}"


def loss_notes(losses: Sequence[CrashLoss]) -> tuple[str, ...]:
    faults = dict.fromkeys(loss.fault for loss in losses)
    notes = [f"{capital(fault_name(fault))}: {FAULTS[fault].text}." for fault in faults if FAULTS[fault].text]
    crashes = sorted({loss.crashes for loss in losses})
    times = plural(crashes[0], "crash") if len(crashes) == 1 else f"{crashes[0]} to {crashes[-1]} crashes"
    notes.append(
        f"{times} a row. Applied, not acknowledged (on the survivor, and the client got no answer) and seen, then gone (others read "
        "what the crash took back) are totals over all of them."
    )
    return tuple(notes)


def dots(crash: CrashFindings) -> Chart:
    losses = [loss for loss in crash.losses if loss.crashes]
    gone = (
        " Filled triangle: rows that others had seen and that were gone."
        if any(loss.phantoms for loss in losses)
        else ""
    )
    rows = tuple(
        plain(label, f"{loss.acknowledged:,}", f"{loss.lost:,}", " ".join(f"{point.lost:,}" for point in loss.each))
        for label, loss in zip(charts.labels(losses), losses, strict=True)
    )
    return Chart(
        "losses",
        "Acknowledged commits lost, a dot for each crash, by mode and fault",
        "Each mark is one crash; the axis is linear from 0 to 1 and logarithmic beyond. Upright line and grey band: predicted, with "
        f"its interval.{gone}",
        partial(charts.dots, losses),
        Table("", single("mode, fault", "acknowledged in all", "lost in all", "lost, crash by crash"), rows),
    )


def _moments(drawn: Sequence[charts.Typical]) -> Chart:
    rows = tuple(
        plain(
            mode_name(loss.mode),
            str(point.trial),
            f"{point.lost:,}",
            figures.number(point.first_lost_ms),
            figures.number(point.dead_ms),
            figures.number(point.promotion_ms),
            f"{point.unknown:,}",
        )
        for _, loss, point in drawn
    )
    heads = single(
        "mode", "trial", "lost", "first lost, ms", "primary dead, ms", "takeover, ms", "clients without an answer"
    )
    return Chart(
        "moments",
        "The last moments of one crash of each mode, from the fault on",
        f"For each mode the crash with the median loss ({fault_name(drawn[0][1].fault)}). Acknowledgements after the bar turns red "
        "were known only to clients and the primary. The takeover starts when the primary is dead.",
        partial(charts.timeline, drawn),
        Table("", heads, rows),
    )


# ---------------------------------------------------------------- evidence


def evidence(losses: Sequence[CrashLoss]) -> list[str]:
    return [line for line in (_machine_death(losses), _zero(losses), _contrast(losses), _logs(losses)) if line]


def _machine_death(losses: Sequence[CrashLoss]) -> str:
    cut = [loss for loss in losses if FAULTS[loss.fault].machine]
    if not cut:
        return "The link to the replica was never cut first, so the death of a machine was not measured."
    modes = {loss.mode: [each for each in cut if each.mode == loss.mode] for loss in cut}
    found = [
        f"{mode_name(mode)} {' and '.join(map(before_the_fault, mine))} in {plural(sum(loss.crashes for loss in mine), 'crash')}"
        for mode, mine in sorted(modes.items())
    ]
    return (
        f"The death of the primary's machine would have lost what was acknowledged before the cut was in force: {'; '.join(found)}. "
        "Two figures: until the cut was started, and until it was done."
    )


def _zero(losses: Sequence[CrashLoss]) -> str:
    """What a zero excludes, for one row and for all semi-synchronous crashes together."""
    safe = [loss for loss in losses if not loss.lost]
    if not safe:
        return ""
    most = max(loss.crashes for loss in safe)
    text = f"{plural(most, 'crash')} without a loss exclude that more than {percent_up(may_lose(most))} % of crashes lose any (95 %)"
    semi = [loss for loss in safe if loss.mode in SEMI_SYNC]
    crashes, commits = sum(loss.crashes for loss in semi), sum(loss.acknowledged for loss in semi)
    if len(semi) > 1:
        text += f"; all {crashes} semi-sync crashes together exclude more than {percent_up(may_lose(crashes))} % ({commits:,} commits)"
    return text + "."


def _contrast(losses: Sequence[CrashLoss]) -> str:
    lost = sum(loss.lost for loss in losses)
    if lost:
        return f"The same accounting found {lost:,} lost commits in this run, so it can find them."
    return "No mode of this run lost any commit, so this run does not show that the accounting would find a loss."


def _logs(losses: Sequence[CrashLoss]) -> str:
    acknowledged, void = sum(loss.acknowledged for loss in losses), sum(loss.void_crashes for loss in losses)
    return (
        f"{acknowledged:,} acknowledged keys in the clients' logs were compared with all keys on the survivors: every account adds "
        f"up. {plural(void, 'crash')} void and in no figure."
    )


# ---------------------------------------------------------------- records

_COLUMNS = """mode fault threads replica_rtt_ns commits_per_s crashes void_crashes acknowledged lost lost_per_crash share_that_may_lose
crashes_with_loss most_lost predicted_lost done_untold seen_early phantoms promotion_ms"""


def records(crash: CrashFindings) -> dict[str, Record]:
    each = {loss.arm: {"lost_each": " ".join(str(point.lost) for point in loss.each)} for loss in crash.losses}
    return {loss.arm: columns(loss, _COLUMNS) | each[loss.arm] for loss in crash.losses}
