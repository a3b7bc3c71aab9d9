"""What a run says of replication, as tables of text: terminal, Markdown and page lay the same ones out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from howfar.analysis.sentence import capital
from howfar.experiments.crash.analysis import MACHINE, CrashLoss, before_the_fault
from howfar.experiments.fallback.analysis import FallbackStory
from howfar.experiments.replication.analysis import CommitCost, ReplicationCost, ReplicationCurve
from howfar.experiments.replication.report import words
from howfar.experiments.replication.trade import ReplicationFindings, TradeRow
from howfar.report import figures
from howfar.report.tables import Head, Table, share, single

TRADE = "What an acknowledgement costs, what a crash loses"
NOT_BROKEN = "What a crash loses was not measured in this run: howfar run crash does."
MATRIX = "Commits a second, and how far off the model is"


def trade(findings: ReplicationFindings, wide: bool = False) -> Table | None:
    """Mode x cost x loss at one distance, the one nearest to what was published. `wide`: what a mode is for is a column, no note."""
    rows = words.chief_trade(findings.trade)
    if not rows:
        return None
    found = _trade(rows, wide)
    worst = words.trade_fault(findings.trade)
    return replace(found, notes=(*found.notes, worst)) if worst else found


def other_trades(findings: ReplicationFindings) -> list[Table]:
    """The same at the run's other distances."""
    found = []
    rest = [row for row in findings.trade if row not in words.chief_trade(findings.trade)]
    while rest:
        here = [row for row in rest if words.near(row.replica_rtt_ns, rest[0].replica_rtt_ns)]
        found.append(_trade(here, wide=True))
        rest = [row for row in rest if row not in here]
    return found


def _trade(rows: Sequence[TradeRow], wide: bool) -> Table:
    """What a crash loses has no column where nobody looked."""
    known = any(row.lost_per_crash for row in rows)
    of = ("of no", "replica") if rows[0].mode == "none" else ("of the", "first")
    heads: list[Head] = [("mode", ""), ("commits", "a second"), ("ms a", "commit"), of]
    if known:
        heads += [("a crash loses", "[95 %]"), ("seen,", "gone")]
    if wide:
        heads.append(("for you", ""))
    title = f"{TRADE}: RTT {words.distance(rows[0].replica_rtt_ns)}" if rows[0].replica_rtt_ns is not None else TRADE
    return Table(title, tuple(heads), tuple(_trade_row(row, known, wide) for row in rows), trade_notes(rows, wide))


def _trade_row(row: TradeRow, known: bool, wide: bool) -> tuple[str, ...]:
    cells = [
        words.mode_words(row.mode),
        figures.number(row.commits_per_s.value),
        words.milliseconds(row.commit_ms),
        (figures.ratio(row.cost) if wide else figures.point(row.cost)) if row.cost else "1",
    ]
    cells += [words.lost(row.lost_per_crash, row.crashes), words.phantoms(row.phantoms)] if known else []
    return (*cells, row.verdict) if wide else tuple(cells)


def trade_notes(rows: Sequence[TradeRow], wide: bool) -> tuple[str, ...]:
    threads = sorted({row.threads for row in rows})
    found = [f"With {' or '.join(map(str, threads))} connection{'' if threads == [1] else 's'}."]
    verdicts = dict.fromkeys((words.mode_words(row.mode), row.verdict) for row in rows if row.verdict)
    found += [] if wide else [f"{capital(mode)}: {verdict}." for mode, verdict in verdicts]
    found += [
        f"{words.mode_words(row.mode)}: the share is of the {row.blocks} blocks in which both were measured, the rate of {row.trials}."
        for row in rows
        if 0 < row.blocks < row.trials
    ]
    if all(row.lost_per_crash is None for row in rows):
        found.append(NOT_BROKEN)
    elif zeros := next((row for row in rows if row.lost_per_crash and not row.lost_per_crash.value), None):
        found.append(zero_note(zeros.crashes))
    if any(row.phantoms for row in rows):
        found.append("Seen, gone: other connections had read rows that the crash took back.")
    return tuple(found)


def zero_note(crashes: int) -> str:
    return (
        f"A 0 is no proof of never: {crashes} crash{'' if crashes == 1 else 'es'} without a loss leave{'s' if crashes == 1 else ''} "
        "room for the share in brackets (95 %)."
    )


def matrix(cost: ReplicationCost) -> Table:
    """Rows are connections, columns modes at distances; behind a figure the model's error."""
    threads = sorted({point.threads for curve in cost.curves for point in curve.points})
    heads = tuple(_column_head(name, curve) for name, curve in words.named(cost.curves))
    rows = tuple((str(number), *(_measured_and_off(_at(curve, number)) for curve in cost.curves)) for number in threads)
    return Table(MATRIX, (("connections", ""), *heads), rows, matrix_notes(cost))


def _column_head(name: str, curve: ReplicationCurve) -> Head:
    extra = name.removeprefix(words.mode_words(curve.mode)).removeprefix(", ")
    return words.short(curve.mode), " ".join(part for part in (words.distance(curve.replica_rtt_ns), extra) if part)


def _at(curve: ReplicationCurve, threads: int) -> CommitCost | None:
    return next((point for point in curve.points if point.threads == threads), None)


def _measured_and_off(point: CommitCost | None) -> str:
    if point is None:
        return figures.UNKNOWN
    off = "" if point.predicted_error is None else f"{round(point.predicted_error * 100):+d} %".replace("+0", "0")
    return f"{figures.number(point.commits_per_s.value)}{off:>6}"


def matrix_notes(cost: ReplicationCost) -> tuple[str, ...]:
    if cost.mean_error is None or cost.worst_error is None:
        return ("No model: too few arms to make one of.",)
    off = f"off by {share(cost.mean_error)} on average, by {share(abs(cost.worst_error))} at worst"
    return (f"In percent: the model's prediction over what was measured; {off}.",)


def split(cost: ReplicationCost, rtt_ns: int | None) -> Table:
    """Where a commit's time goes; of one distance, with what has none."""
    here = [(name, curve) for name, curve in words.named(cost.curves) if curve.replica_rtt_ns in (None, rtt_ns)]
    rows = tuple(
        (
            name,
            str(point.threads),
            words.with_limits(point.commits_per_s),
            words.milliseconds(point.commit_ms),
            f"{words.milliseconds(point.p50_ms)} / {words.milliseconds(point.p99_ms)}",
            words.milliseconds(point.local_ms),
            words.milliseconds(point.wire_ms) if point.rtts else figures.UNKNOWN,
            words.milliseconds(point.waiting_ms) if point.rtts else figures.UNKNOWN,
            figures.ratio(point.rtts),
            figures.number(point.group),
            figures.number(point.predicted),
            share(point.predicted_error, signed=True),
        )
        for name, curve in here
        for point in curve.points
    )
    head = single(
        "mode", "connections", "commits/s [95 %]", "ms a commit", "p50 / p99", "local work", "wire", "waiting"
    )
    head += single("round trips [95 %]", "commits a group", "model", "off by")
    return Table(f"A commit at {words.distance(rtt_ns)}" if rtt_ns is not None else "A commit", head, rows)


def published(cost: ReplicationCost) -> Table | None:
    if not cost.published:
        return None
    none = next((there for mode, there, _ in cost.published if mode == "none"), None)
    ours_none = next((ours for mode, _, ours in cost.published if mode == "none"), None)
    rows = tuple(
        (
            words.mode_words(mode),
            figures.number(there),
            _of(there, none),
            figures.number(ours),
            _of(ours, ours_none),
        )
        for mode, there, ours in cost.published
    )
    head = single("one connection, RTT 85ms", "inserts/s there", "of none there", "ours", "of none, ours")
    note = "Other machines: without an acknowledgement compare the shares, not the rates."
    durable = f"There no commit was flushed (innodb_flush_log_at_trx_commit = 0); ours: durability {cost.curves[0].durability}."
    return Table("What others published", head, rows, (note, durable))


def _of(value: float | None, whole: float | None) -> str:
    return figures.number(value / whole) if value is not None and whole else figures.UNKNOWN


def losses(found: Sequence[CrashLoss]) -> Table:
    """A row a mode and fault, over all its crashes."""
    pairs = zip(words.loss_names(found), found, strict=True)
    rows = tuple((name, words.fault_words(loss.fault), *_loss_cells(loss)) for name, loss in pairs)
    return Table(LOSSES, (("mode", ""), ("what broke", ""), *LOSS_HEADS), rows, loss_notes(found))


def losses_by_fault(found: Sequence[CrashLoss]) -> list[Table]:
    """The same for a narrow page: a table a fault."""
    tables = []
    for fault in dict.fromkeys(loss.fault for loss in found):
        of_fault = [loss for loss in found if loss.fault == fault]
        pairs = zip(words.loss_names(of_fault), of_fault, strict=True)
        rows = tuple((name, *_loss_cells(loss)) for name, loss in pairs)
        tables.append(
            Table(f"{LOSSES}: {words.fault_words(fault)}", (("mode", ""), *LOSS_HEADS), rows, loss_notes(of_fault))
        )
    return tables


LOSSES = "What a crash loses"
LOSS_HEADS: tuple[Head, ...] = (
    ("commits", "a second"),
    ("lost a crash", "[95 %]"),
    ("model", "says"),
    ("done,", "untold"),
    ("seen,", "gone"),
)


def _loss_cells(loss: CrashLoss) -> tuple[str, ...]:
    return (
        figures.number(loss.commits_per_s.value),
        words.lost(loss.lost_per_crash, loss.crashes),
        words.foreseen(loss),
        f"{loss.done_untold:,}",
        f"{loss.phantoms:,}",
    )


def loss_notes(found: Sequence[CrashLoss]) -> tuple[str, ...]:
    faults = dict.fromkeys(loss.fault for loss in found)
    said = [
        f"{capital(words.fault_words(fault))}: {words.FAULTS_SAID[fault]}."
        for fault in faults
        if fault in words.FAULTS_SAID
    ]
    before = [
        f"{name} {before_the_fault(loss)} of {loss.lost:,}"
        for name, loss in zip(words.loss_names(found), found, strict=True)
        if loss.lost and loss.fault in MACHINE
    ]
    if before:
        said.append(
            f"Of the lost, acknowledged before the cut was in force: {'; '.join(before)}. The rest were until the primary was dead."
        )
    crashes = sorted({loss.crashes for loss in found})
    times = str(crashes[0]) if len(crashes) == 1 else f"{crashes[0]} to {crashes[-1]}"
    told = f"{times} crash{'' if times == '1' else 'es'} a row. Done, untold (applied, and no client was told) and seen, gone (others "
    said.append(f"{told}read what the crash took back) are over all of them.")
    return tuple(said)


def fallbacks(stories: Sequence[FallbackStory]) -> Table:
    """A column a mode: there are few, and much to say of each."""
    facts: tuple[tuple[str, Callable[[FallbackStory], str]], ...] = (
        ("timeout of the server", lambda story: f"{story.timeout_ms / 1e3:g} s"),
        ("nobody was answered for", lambda story: f"{figures.number(story.stall_ms.value / 1e3)} s"),
        ("asynchronous, nobody told, for", lambda story: words.asynchronous_for(story, story.degraded_ms)),
        ("of it after the link's return", lambda story: words.asynchronous_for(story, story.after_return_ms)),
        ("the replica had caught up after", words.caught_up),
        ("it lacked at most", lambda story: figures.number(story.most_behind)),
        ("commits no replica acknowledged", words.unacknowledged),
        ("of them before it had caught up", lambda story: words.with_limits(story.unprotected_alone)),
        ("of all commits of the trials", lambda story: share(story.share_unprotected)),
    )
    rows = tuple((name, *(text(story) for story in stories)) for name, text in facts)
    heads = tuple(
        (name, f"{story.threads} connections") for name, story in zip(words.story_names(stories), stories, strict=True)
    )
    trials = ", ".join(str(number) for number in sorted({story.trials for story in stories}))
    note = f"Means over {trials} trial{'' if trials == '1' else 's'} a mode; limits of 95 % in brackets where there are enough."
    notes = (note, *([STILL] if any(words.to_the_end(story) for story in stories) else []))
    return Table("What a fallback hides", (("", ""), *heads), rows, notes)


STILL = "≥: commits waited for the replica again only when the load had ended, or not at all."
