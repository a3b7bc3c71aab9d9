"""The report of crashes: losses of each mode under each fault, one crash moment by moment, and why to trust a zero."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from howfar.analysis.advice import capital
from howfar.analysis.summary import Summary
from howfar.experiments.crash.analysis import (
    FAULTS,
    CrashFindings,
    CrashLoss,
    CrashPoint,
    before_the_fault,
    may_lose,
    megabytes,
    percent_up,
)
from howfar.experiments.experiment import Experiment
from howfar.experiments.replication import frame
from howfar.experiments.replication.arms import mode_name, plural
from howfar.experiments.replication.charts import LOOKS, states, symlog_ticks
from howfar.experiments.replication.frame import (
    Record,
    count,
    fault_name,
    limits,
    lost_cell,
    trade_tables,
    verdicts,
)
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.plan.factors import CLUSTERS, LOSSLESS
from howfar.report import figures, palette
from howfar.report.charts import PHONE, Drawable, Rows, by_name, data, layer, legend
from howfar.report.document import (
    Block,
    Bullets,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Fields,
    Table,
    plain,
    single,
    table_of,
)
from howfar.report.drawing import alt
from howfar.report.sections import columns, limits_of
from howfar.stats.estimate import Estimate

Typical = tuple[str, CrashLoss, CrashPoint]
"""The label of a mode, its crashes, and the one with the median loss."""

ROW = 40
LANES = 7
"""Maximum number of dots side by side; the figure to their right gives the number."""
MARGIN = 150
"""Pixels for the figures on the right; a phone has them in the table only."""


def mode_labels(losses: Sequence[CrashLoss]) -> list[str]:
    """Labels of rows: the mode, where that and the fault identify a row; else the arm's name."""
    pairs = {(loss.mode, loss.fault) for loss in losses}
    return [mode_name(loss.mode) if len(pairs) == len(losses) else loss.arm for loss in losses]


def labels(losses: Sequence[CrashLoss]) -> list[str]:
    """Mode and fault, where they identify a row; else the arm's name."""
    short = [f"{LOOKS[loss.mode].short}, {FAULTS[loss.fault].name}" for loss in losses]
    return short if len(set(short)) == len(short) else [loss.arm for loss in losses]


def _draw_dots(losses: Sequence[CrashLoss], width: int) -> Drawable | None:
    """Acknowledged commits lost, a dot for each crash; a bar for the prediction; triangles are rows seen by others and gone."""
    if not losses:
        return None
    narrow = width < PHONE
    names = labels(losses)
    named = list(zip(names, losses, strict=True))
    most = max(_largest(loss) for loss in losses)
    scale = alt.Scale(type="symlog", constant=1, domain=[-0.4, max(most * 1.3, 3)], nice=False)
    ticks = sorted({0.0, *([1.0] if most < 1000 or not narrow else []), *symlog_ticks(max(most, 10))[1:]})
    axis = alt.Axis(values=ticks, format=",d", labelFlush=False)
    x, low = (
        alt.X(f"{field}:Q", scale=scale, axis=axis, title="acknowledged commits lost in one crash")
        for field in ("lost", "low")
    )
    y = _rows(names, narrow, ", ")
    modes = dict.fromkeys(loss.mode for loss in losses)
    predicted = data([_band(label, loss) for label, loss in named if loss.predicted_lost])
    marks = data(
        [
            {"row": label, "mode": loss.mode, "lost": point.lost, "lane": lane(index)}
            for label, loss in named
            for index, point in enumerate(loss.each)
        ]
    ).mark_point(size=36, strokeWidth=1.4, opacity=0.85, filled=False)
    gone = data(
        [{"row": label, "lost": point.phantoms} for label, loss in named for point in loss.each if point.phantoms]
    ).mark_point(shape="triangle-down", size=60, filled=True, opacity=0.9, color=palette.SERIES[5])
    layers = [
        predicted.mark_bar(size=34, color=palette.BAND).encode(x=low, x2="high:Q", y=y),
        marks.encode(
            x=x,
            y=y,
            yOffset=alt.YOffset("lane:Q", scale=alt.Scale(domain=[-1.5, 1.5])),
            color=by_name(alt.Color, "mode", {mode: LOOKS[mode].colour for mode in modes}, None),
            shape=by_name(alt.Shape, "mode", {mode: LOOKS[mode].shape for mode in modes}, None),
        ),
        gone.encode(x=x, y=y),
        predicted.mark_tick(size=34, thickness=2.5, color=palette.INK).encode(x=x, y=y),
    ]
    if not narrow:
        cells = [(label, lost_cell(loss.lost_per_crash, loss.crashes)) for label, loss in named]
        figures: Rows = [{"row": label, "text": f"{cell.text} {cell.below}".strip()} for label, cell in cells]
        text = data(figures).mark_text(align="left", fontSize=12, color=palette.INK)
        layers.append(text.encode(x=alt.value(width - MARGIN + 10), y=y, text="text:N"))
    return layer(*layers, width=width - (0 if narrow else MARGIN), height=ROW * len(losses))


def _rows(names: list[str], narrow: bool, separator: str) -> alt.Y:
    """Axis of rows. On a phone a label is split at its separators."""
    text = f"split(datum.label, '{separator}')" if narrow else "datum.label"
    limit = 130 if narrow else 230
    axis = alt.Axis(labelLimit=limit, ticks=False, domain=False, labelPadding=8, labelExpr=text)
    return alt.Y("row:N", sort=names, title=None, axis=axis)


def _band(label: str, loss: CrashLoss) -> dict[str, str | float]:
    found = loss.predicted_lost
    assert found is not None, "only of losses that are predicted"
    low, high = (found.value if end is None else end for end in (found.low, found.high))
    return {"row": label, "lost": found.value, "low": max(low, 0.0), "high": high}


def _largest(loss: CrashLoss) -> float:
    predicted = (loss.predicted_lost.high or loss.predicted_lost.value) if loss.predicted_lost else 0.0
    return max([loss.most_lost, predicted, *(point.phantoms for point in loss.each)])


def lane(index: int) -> float:
    """Offset of a lane: 0, then alternating above and below."""
    step = (index % LANES + 1) // 2 * 2 / (LANES - 1)
    return step if index % 2 else -step


# ---------------------------------------------------------------- the last moments

KEPT, LOST, WAITING, TAKEOVER = "acknowledged, kept", "acknowledged, lost", "clients wait", "replica takes over"
STATES = {KEPT: palette.PARTS[1], LOST: palette.SERIES[5], WAITING: palette.MUTED, TAKEOVER: palette.PARTS[0]}


def typical_crashes(losses: Sequence[CrashLoss]) -> list[Typical]:
    """Under the fault that loses most, the crash with the median loss of each mode. Empty: nothing was lost."""
    worst = max(losses, key=lambda loss: loss.lost_per_crash.value, default=None)
    chosen = [loss for loss in losses if worst is not None and loss.fault == worst.fault and loss.each]
    found = [
        (label, loss, sorted(loss.each, key=lambda point: point.lost)[len(loss.each) // 2])
        for label, loss in zip(mode_labels(chosen), chosen, strict=True)
    ]
    return found if any(point.lost for _, _, point in found) else []


def timeline(drawn: Sequence[Typical], width: int) -> Drawable | None:
    """One crash of each mode under the same fault: commits acknowledged to clients, and their outcome."""
    if not drawn:
        return None
    narrow = width < PHONE
    first = min(point.first_lost_ms for _, _, point in drawn if point.first_lost_ms is not None)
    end = max(point.dead_ms + point.promotion_ms for _, _, point in drawn)
    begin = min(first * 1.15, first - (end - first) * 0.15)
    bars = [row for label, _, point in drawn for row in _phases(label, point, begin)]
    for bar in bars:
        fits = len(bar["text"]) * 6.5 < (bar["to"] - bar["from"]) * width / (end - begin)
        bar["text"] = bar["text"] if fits and not narrow else ""
    scale = alt.Scale(domain=[begin, end * 1.02], nice=False)
    x = alt.X("from:Q", scale=scale, axis=alt.Axis(tickCount=6, format=",d", grid=False), title="ms from the fault on")
    y = _rows([label for label, _, _ in drawn], narrow, " ")
    key = legend(2 if narrow else 4, 200, symbolType="square", offset=24)
    shown = {state: colour for state, colour in STATES.items() if any(bar["state"] == state for bar in bars)}
    dead_ms = drawn[0][2].dead_ms
    marks: Rows = [{"from": 0.0, "text": "fault"}]
    marks += [{"from": dead_ms, "text": "primary dead"}] if dead_ms > (end - begin) * 0.05 else []
    label = data(marks).mark_text(color=palette.INK, fontSize=11, dy=-6, y=0, baseline="bottom")
    layers = [
        *states(bars, x, y, by_name(alt.Color, "state", shown, key), 20),
        data(marks).mark_rule(color=palette.INK, strokeWidth=1.5, strokeDash=[4, 3]).encode(x=x),
        label.encode(x=x, text="text:N"),
    ]
    return layer(*layers, width=width, height=34 * len(drawn))


def _phases(row: str, point: CrashPoint, begin: float) -> Rows:
    """Phases after the fault: an asynchronous primary continues to acknowledge; in other modes clients wait."""
    dead = max(point.dead_ms, 0.0)
    first = point.first_lost_ms
    phases = [(KEPT, begin, min(first or 0.0, 0.0), "")]
    if first is not None:
        phases.append((LOST, first, dead, f"{point.lost:,} lost"))
    elif dead > 0:
        phases.append((WAITING, 0.0, dead, f"{point.unknown:,} clients wait"))
    phases.append((TAKEOVER, dead, dead + point.promotion_ms, f"{point.promotion_ms:.0f} ms"))
    return [
        {"row": row, "state": state, "from": low, "to": high, "text": text}
        for state, low, high, text in phases
        if high > low
    ]


LOSSES = "What a crash loses"


class Crash(Experiment):
    """The experiment on crashes. Its findings are part of those of replication."""

    name = "crash"

    def applies(self, summary: Summary) -> bool:
        found = summary.found(ReplicationFindings)
        return found is not None and found.crash is not None

    def document(self, summary: Summary) -> Document:
        findings = summary.the(ReplicationFindings)
        assert findings.crash is not None, "only then it applies"
        main: list[Block] = [dots(findings.crash), *trade_tables(findings)[:1]]
        blocks = [*sections(findings.crash, summary.verdict), *verdicts(findings)]
        return frame.document(summary, main, blocks, records(findings.crash))


def sections(crash: CrashFindings, verdict: str) -> list[Block]:
    """All sections except the chart of all losses."""
    losses = [loss for loss in crash.losses if loss.crashes]
    if not losses:
        return []
    more = tuple(sentence for sentence in crash.sentences if sentence not in verdict)
    found: list[Block] = [Details(LOSSES, (Bullets(more), loss_table(losses)), open=True)]
    if drawn := typical_crashes(losses):
        found.append(Details("One crash, moment by moment", (_moments(drawn),), open=True))
    return [*found, Details("Why trust these losses?", (Bullets(tuple(evidence(losses))),), open=True)]


_MEMBER: Fields[CrashLoss] = {
    Column("commits/s", "meanwhile", optional=True): lambda loss: _estimate(loss.meanwhile),
    Column("whole again", "after s", optional=True): lambda loss: _estimate(loss.back_s),
}
"""Columns for faults of a member that is not the primary."""
_JOIN: Fields[CrashLoss] = {
    Column("fetched by", optional=True): lambda loss: (
        figures.UNKNOWN if loss.join is None else " or ".join(loss.join.how)
    ),
    Column("MB", "[95 % interval]", optional=True): lambda loss: (
        figures.UNKNOWN if loss.join is None else megabytes(loss.join.received_bytes)
    ),
    Column("link busy", "%", optional=True): lambda loss: (
        figures.UNKNOWN if loss.join is None else f"{loss.join.link_busy.value * 100:.0f}"
    ),
}
"""Columns for a node that joins."""


def loss_table(losses: Sequence[CrashLoss]) -> Table:
    """A row for each mode and fault, over all its crashes."""
    names = dict(zip((loss.arm for loss in losses), mode_labels(losses), strict=True))
    kinds: dict[bool, Fields[CrashLoss]] = {
        True: {
            "s without\na commit": lambda loss: _estimate(loss.stall_s),
            **(_MEMBER if any(loss.meanwhile for loss in losses) else {}),
            **(_JOIN if any(loss.join for loss in losses) else {}),
            "by a node\ncut off": lambda loss: figures.UNKNOWN if loss.by_itself is None else f"{loss.by_itself:,}",
        },
        False: {"predicted": predicted},
    }
    fields: Fields[CrashLoss] = {
        "mode": lambda loss: names[loss.arm],
        Column("fault", left=True): lambda loss: fault_name(loss.fault),
        Column("commits", "per s", optional=True): lambda loss: figures.number(loss.commits_per_s.value),
        "lost per\ncrash": lambda loss: lost_cell(loss.lost_per_crash, loss.crashes),
        **kinds[any(loss.stall_s for loss in losses)],
        "applied,\nnot acknowledged": lambda loss: f"{loss.done_untold:,}",
        "seen,\nthen gone": lambda loss: f"{loss.phantoms:,}",
    }
    return table_of(LOSSES, losses, fields, loss_notes(losses), stack=True)


def _estimate(found: Estimate | None) -> Cell:
    return Cell(figures.number(found.value if found else None), limits(found))


def predicted(loss: CrashLoss) -> str:
    """Predicted loss: `4,791`; `≲ 70` where only the order of magnitude of the maximum is known; `0` where nothing may be lost; a dash
    without a prediction."""
    found = loss.predicted_lost
    if found is None:
        return "0" if loss.mode in LOSSLESS else figures.UNKNOWN
    return f"{'' if FAULTS[loss.fault].cut_off else '≲ '}{count(found.value)}"


def loss_notes(losses: Sequence[CrashLoss]) -> tuple[str, ...]:
    faults = dict.fromkeys(loss.fault for loss in losses)
    notes = [f"{capital(fault_name(fault))}: {FAULTS[fault].text}." for fault in faults if FAULTS[fault].text]
    crashes = sorted({loss.crashes for loss in losses})
    times = plural(crashes[0], "crash") if len(crashes) == 1 else f"{crashes[0]} to {crashes[-1]} crashes"
    notes.append(
        f"{times} per row. Applied, not acknowledged (on the survivor, but the client got no answer) and seen, then gone (others read "
        "what the crash undid) are totals over all of them."
    )
    if any(loss.stall_s for loss in losses):
        notes.append(
            "s without a commit: the longest time in which no client of the nodes that went on was told of one, with the 95 % "
            "interval of the mean. By a node cut off: all writes that it acknowledged by itself."
        )
    if any(loss.meanwhile for loss in losses):
        notes.append("Meanwhile: the rate while a member was cut off, slow or joining, relative to the rate before.")
    if late := sum(loss.not_back for loss in losses):
        notes.append(f"Whole again: without {plural(late, 'trial')} in which the member was not whole within a minute.")
    if any(loss.join for loss in losses):
        notes.append(
            "MB: to the node that joined, over all its links, from the start of its server until it was whole, by the kernel's count; "
            "the load's writes are included. Link busy: the share of that time in which its donor's link was sending."
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
        for label, loss in zip(labels(losses), losses, strict=True)
    )
    return Chart(
        "losses",
        "Acknowledged commits lost, a dot for each crash, by mode and fault",
        "Each mark is one crash; the axis is linear from 0 to 1 and logarithmic beyond. Vertical line and grey band: predicted, with "
        f"its interval.{gone}",
        partial(_draw_dots, losses),
        Table("", single("mode, fault", "acknowledged in all", "lost in all", "lost, crash by crash"), rows),
    )


def _moments(drawn: Sequence[Typical]) -> Chart:
    fields: Fields[Typical] = {
        "mode": lambda row: mode_name(row[1].mode),
        "trial": lambda row: str(row[2].trial),
        "lost": lambda row: f"{row[2].lost:,}",
        "first lost, ms": lambda row: figures.number(row[2].first_lost_ms),
        "primary dead, ms": lambda row: figures.number(row[2].dead_ms),
        "takeover, ms": lambda row: figures.number(row[2].promotion_ms),
        "clients without an answer": lambda row: f"{row[2].unknown:,}",
    }
    return Chart(
        "moments",
        "The last moments of one crash of each mode, from the fault on",
        f"For each mode the crash with the median loss ({fault_name(drawn[0][1].fault)}). Acknowledgements after the bar turns red "
        "were known only to clients and the primary. The takeover starts when the primary is dead.",
        partial(timeline, drawn),
        table_of("", drawn, fields),
    )


# ---------------------------------------------------------------- evidence


def evidence(losses: Sequence[CrashLoss]) -> list[str]:
    return [line for line in (_machine_death(losses), _zero(losses), _contrast(losses), _logs(losses)) if line]


def _machine_death(losses: Sequence[CrashLoss]) -> str:
    cut = [loss for loss in losses if FAULTS[loss.fault].machine]
    if not cut:
        return "The link to the replica was never cut first, so the failure of a machine was not measured."
    modes = {loss.mode: [each for each in cut if each.mode == loss.mode] for loss in cut}
    found = [
        f"{mode_name(mode)} {' and '.join(map(before_the_fault, mine))} in {plural(sum(loss.crashes for loss in mine), 'crash')}"
        for mode, mine in sorted(modes.items())
    ]
    return (
        f"A failure of the primary's machine would have lost what was acknowledged before the cut took effect: {'; '.join(found)}. "
        "Two figures: until the cut was begun, and until it was complete."
    )


def _zero(losses: Sequence[CrashLoss]) -> str:
    """What a zero excludes, for one row and for all semi-synchronous crashes together."""
    safe = [loss for loss in losses if not loss.lost]
    if not safe:
        return ""
    most = max(loss.crashes for loss in safe)
    text = f"{plural(most, 'crash')} without a loss rule out that more than {percent_up(may_lose(most))} % of crashes lose any (95 %)"
    kept = [loss for loss in safe if loss.mode in LOSSLESS]
    crashes, commits = sum(loss.crashes for loss in kept), sum(loss.acknowledged for loss in kept)
    if len(kept) > 1:
        what = "cluster" if all(loss.mode in CLUSTERS for loss in kept) else "semi-sync"
        text += f"; all {crashes} {what} crashes together rule out more than {percent_up(may_lose(crashes))} % ({commits:,} commits)"
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
        f"up. Void, and excluded from all figures: {plural(void, 'crash')}."
    )


# ---------------------------------------------------------------- records

_COLUMNS = """mode fault threads replica_rtt_ns commits_per_s crashes void_crashes acknowledged lost lost_per_crash share_that_may_lose
crashes_with_loss most_lost predicted_lost done_untold seen_early phantoms promotion_ms stall_s by_itself
meanwhile back_s"""


def records(crash: CrashFindings) -> dict[str, Record]:
    each = {loss.arm: {"lost_each": " ".join(str(point.lost) for point in loss.each)} for loss in crash.losses}
    return {loss.arm: columns(loss, _COLUMNS) | _joined(loss) | each[loss.arm] for loss in crash.losses}


def _joined(loss: CrashLoss) -> Record:
    if loss.join is None:
        return {}
    fetched = {"join_how": " or ".join(loss.join.how), "join_link_busy": loss.join.link_busy.value}
    return fetched | limits_of("join_bytes", loss.join.received_bytes)
