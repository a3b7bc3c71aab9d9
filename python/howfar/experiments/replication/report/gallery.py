"""The charts of replication with their captions and tables, and the cards of the first screen. Functions give HTML, or nothing."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.crash.analysis import CrashLoss, CrashPoint
from howfar.experiments.fallback.analysis import FallbackStory
from howfar.experiments.replication.report import cost_chart, fallback_chart, loss_chart, tables, words
from howfar.experiments.replication.trade import TradeRow
from howfar.report import figures
from howfar.report.drawing import draw
from howfar.report.fragments import figure, sentence, table, text
from howfar.report.tables import Table


def shown(found: Table) -> str:
    """A table below a chart: its heads on one line."""
    return table([f"{upper} {lower}".strip() for upper, lower in found.head], found.rows)


def cards(summary: Summary) -> str:
    """Both sides of the trade, a card a mode, at one distance."""
    findings = summary.replication
    rows = words.chief_trade(findings.trade) if findings else []
    if not rows:
        return ""
    lost_first = findings is not None and findings.cost is None
    inner = "".join(_card(row, lost_first) for row in rows)
    rtt = next((row.replica_rtt_ns for row in rows if row.replica_rtt_ns is not None), None)
    threads = sorted({row.threads for row in rows})
    where = [f"RTT {words.distance(rtt)} to the replica"] if rtt is not None else []
    where.append(f"{' or '.join(map(str, threads))} connection{'' if threads == [1] else 's'}")
    broken = f" {said}" if (said := words.trade_fault(rows)) else ""
    unknown = f" {tables.NOT_BROKEN}" if all(row.lost_per_crash is None for row in rows) else ""
    return f'<div class="answers four">{inner}</div><p class="muted small">{text(", ".join(where))}.{text(unknown or broken)}</p>'


def _card(row: TradeRow, lost_first: bool) -> str:
    cost = (
        f"<b>{text(figures.number(row.commits_per_s.value))}</b><div>commits a second</div>"
        f'<div class="muted">{sentence(f"{words.milliseconds(row.commit_ms)} ms each{_of(row)}")}</div>'
    )
    both = [_lost(row), cost] if lost_first else [cost, _lost(row)]
    return f'<div class="answer"><span class="arm">{text(words.mode_words(row.mode))}</span>{"".join(both)}</div>'


def story_cards(summary: Summary) -> str:
    """What a fallback did, of the first mode."""
    stories = summary.replication.fallback if summary.replication else ()
    if not stories:
        return ""
    story, name = stories[0], words.story_names(stories)[0]
    told = [
        (
            f"{figures.number(story.stall_ms.value / 1e3)} s",
            "nobody was answered",
            f"timeout {story.timeout_ms / 1e3:g} s",
        ),
        (words.asynchronous_for(story, story.degraded_ms), "asynchronous, and no client was told", ""),
        (words.asynchronous_for(story, story.after_return_ms), "of it after the replica could be reached again", ""),
        (
            words.unacknowledged(story),
            "commits that no replica acknowledged",
            f"{words.with_limits(story.unprotected_alone)} of them before the replica had caught up",
        ),
    ]
    inner = "".join(
        f'<div class="answer"><b>{text(figure_)}</b><div>{text(what)}</div><div class="muted">{text(more)}</div></div>'
        for figure_, what, more in told
    )
    return (
        f'<div class="answers four">{inner}</div><p class="muted small">{text(name)}, {story.threads} connections.</p>'
    )


def _of(row: TradeRow) -> str:
    return f", x {figures.point(row.cost)}" if row.cost else ""


def _crashes(row: TradeRow) -> str:
    return f"{row.crashes} crash{'' if row.crashes == 1 else 'es'}"


def _lost(row: TradeRow) -> str:
    found = row.lost_per_crash
    if found is None:
        return ""
    gone = '<div class="muted">others saw rows that were then gone</div>' if row.phantoms else ""
    if found.value > 0:
        number, what = words.count(found.value), "commits lost in a crash"
        more = ", ".join(part for part in (words.with_limits(found).partition(" ")[2], _crashes(row)) if part)
    else:
        number, what, more = "0", "commits lost in", f"{_crashes(row)}{words.upper(row.crashes)}"
    return f'<b>{text(number)}</b><div>{what}</div><div class="muted">{sentence(more)}</div>{gone}'


def throughput(summary: Summary) -> str:
    cost = cost_chart.cost_of(summary)
    drawing = draw(
        cost_chart.throughput,
        summary,
        "Commits a second against connections, by mode of replication and distance",
        "commits",
    )
    if not drawing or cost is None:
        return ""
    modelled = any(point.predicted for curve in cost.curves for point in curve.points)
    theirs = words.PUBLISHED_RTT_NS in words.distances(cost.curves) and bool(cost.published)
    caption = (
        "Points: measured, with 95 % intervals; both axes are logarithmic."
        + (" Dashed: the model." if modelled else "")
        + (" Crosses: published elsewhere, one connection." if theirs else "")
    )
    return figure(drawing, caption, shown(tables.matrix(cost)))


def split(summary: Summary) -> str:
    cost = cost_chart.cost_of(summary)
    drawing = draw(cost_chart.split, summary, "What a commit's time is made of, by mode and connections", "split")
    if not drawing or cost is None:
        return ""
    rtt = words.quoted_distance(words.distances(cost.curves))
    caption = (
        "Local work: what as many connections take without a replica; MariaDB's AFTER_COMMIT: what a commit "
        "takes there at this rate. Wire: one round trip, as measured at rest. Waiting: the rest, "
        "which is queueing for the acknowledgement of others and the replica's own work. RTT: what the acknowledgement costs in round "
        "trips."
    )
    others = "".join(
        f"<h3>{text(found.title)}</h3>{shown(found)}"
        for other in words.distances(cost.curves)
        if other != rtt
        for found in (tables.split(cost, other),)
    )
    at = f" at {words.distance(rtt)}" if rtt is not None else ""
    return f"<h2>Where does a commit's time go{text(at)}?</h2>" + figure(
        drawing, caption, shown(tables.split(cost, rtt)) + others
    )


def lag(summary: Summary) -> str:
    cost = cost_chart.cost_of(summary)
    drawing = draw(cost_chart.lag, summary, "How far the replica was behind over one trial of each mode", "lag")
    if not drawing or cost is None:
        return ""
    rows = [
        [
            curve.label,
            figures.UNKNOWN if curve.lag_p50 is None else f"{curve.lag_p50:,.0f}",
            figures.UNKNOWN if curve.lag_max is None else f"{curve.lag_max:,}",
            figures.number(curve.heartbeat_p50_ms),
        ]
        for curve in cost.curves
        if curve.replica_rtt_ns is not None
    ]
    head = ["mode", "transactions behind, median", "most", "age of the newest heartbeat row, ms"]
    caption = "Transactions that the primary had committed and the replica had not applied; the last good trial at most connections."
    return "<h2>How far behind is the replica?</h2>" + figure(drawing, caption, table(head, rows))


def losses(summary: Summary) -> str:
    found = loss_chart.losses_of(summary)
    drawing = draw(loss_chart.dots, summary, "Acknowledged commits lost, a dot a crash, by mode and fault", "losses")
    if not drawing:
        return ""
    gone = any(loss.phantoms for loss in found)
    caption = (
        "Each mark is one crash; the axis is straight from 0 to 1, and logarithmic beyond. Upright line, grey: what the model says, "
        "with its limits." + (" Filled triangle: rows that others had seen, and that were gone." if gone else "")
    )
    return figure(drawing, caption, _each(found))


def _each(found: tuple[CrashLoss, ...]) -> str:
    """A row a mode and fault: every crash's loss, in the order in which they were made."""
    rows = [
        [
            name,
            f"{loss.acknowledged:,}",
            f"{loss.lost:,}",
            " ".join(f"{point.lost:,}" for point in loss.each),
        ]
        for name, loss in zip(loss_chart.labels(found), found, strict=True)
    ]
    return table(["mode, what broke", "acknowledged in all", "lost in all", "lost, crash by crash"], rows)


def last_moments(summary: Summary) -> str:
    drawing = draw(
        loss_chart.timeline, summary, "The last moments of one crash of each mode, from the fault on", "moments"
    )
    chosen = loss_chart.moments(summary)
    if not drawing:
        return ""
    fault = words.fault_words(chosen[0].fault)
    caption = (
        f"Of each mode the crash whose loss is the median ({fault}). What was acknowledged after the bar turns red was known to "
        "clients and to the primary only. The takeover is drawn from the primary's death on."
    )
    rows = [_moment(loss, point) for loss in chosen if (point := loss_chart.middle(loss)) is not None]
    head = [
        "mode",
        "trial",
        "lost",
        "the first of them, ms",
        "primary dead, ms",
        "takeover, ms",
        "clients without an answer",
    ]
    return "<h2>One crash, moment by moment</h2>" + figure(drawing, caption, table(head, rows))


def _moment(loss: CrashLoss, point: CrashPoint) -> list[str]:
    return [
        words.mode_words(loss.mode),
        str(point.trial),
        f"{point.lost:,}",
        figures.number(point.first_lost_ms),
        figures.number(point.dead_ms),
        figures.number(point.promotion_ms),
        f"{point.unknown:,}",
    ]


def fallback(story: FallbackStory, name: str, summary: Summary) -> str:
    """The story of one trial, and what the server said of it."""
    series = story.series
    assert series is not None, "only those with a series are drawn"
    title = "Commits a second while the replica goes and returns, with the states of link and primary"
    drawing = draw(lambda _, width: fallback_chart.chart(series, width), summary, title, name)
    said = [f"at {series.left_s:.1f} s the link is cut"]
    if series.fell_s is not None:
        said.append(f"from {series.fell_s:.1f} s the primary acknowledges alone, and no client is told")
    said.append(f"at {series.returned_s:.1f} s the link carries again")
    if series.reconnected_s is not None:
        said.append(f"at {series.reconnected_s:.1f} s the replica is connected")
    if series.fell_s is not None:
        said.append(_back(story))
    caption = f"Trial {series.trial}: {'; '.join(said)}. Below: transactions that the replica lacks; a gap: it could not be asked."
    rows = [
        [entry["row"], entry["state"], f"{entry['at']:.2f}", f"{entry['to']:.2f}"]
        for entry in fallback_chart.phases(series)
    ]
    return figure(drawing, caption, table(["of", "state", "from, s", "to, s"], rows)) + _log(story)


def _back(story: FallbackStory) -> str:
    series = story.series
    assert series is not None, "only those with a series are drawn"
    if series.back_s is None:
        return "no commit waits for it until the trial's end"
    if words.to_the_end(story):
        return f"only when the load has ended, at {series.back_s:.1f} s, would a commit wait for it again"
    return f"at {series.back_s:.1f} s commits wait for it again"


def _log(story: FallbackStory) -> str:
    if not story.log_lines:
        return '<p class="small">In its log the primary said nothing of it.</p>'
    lines = "\n".join(story.log_lines)
    return f'<p class="small">All that the primary said of it, in its log:</p><pre class="log">{text(lines)}</pre>'
