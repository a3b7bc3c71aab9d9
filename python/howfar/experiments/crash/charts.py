"""Charts of what a crash loses: a dot for each crash, and the last moments of one. None: nothing to draw."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from howfar.experiments.crash.analysis import FAULTS, CrashLoss, CrashPoint
from howfar.experiments.replication.arms import mode_name
from howfar.experiments.replication.charts import COLOURS, SHAPES, SHORT, states, symlog_ticks
from howfar.experiments.replication.frame import lost_cell
from howfar.report import palette
from howfar.report.charts import PHONE, Drawable, Rows, by_name, data, layer, legend

Typical = tuple[str, CrashLoss, CrashPoint]
"""The label of a mode, its crashes, and the one with the median loss."""

ROW = 40
LANES = 7
"""Dots lie side by side up to this many; the figure to their right has the number."""
MARGIN = 150
"""Pixels for the figures on the right; a phone has them in the table only."""


def mode_labels(losses: Sequence[CrashLoss]) -> list[str]:
    """The mode, where that and the fault identify a row; else the arm's name."""
    pairs = {(loss.mode, loss.fault) for loss in losses}
    return [mode_name(loss.mode) if len(pairs) == len(losses) else loss.arm for loss in losses]


def labels(losses: Sequence[CrashLoss]) -> list[str]:
    """Mode and fault, where they identify a row; else the arm's name."""
    short = [f"{SHORT.get(loss.mode, loss.mode)}, {FAULTS[loss.fault].name}" for loss in losses]
    return short if len(set(short)) == len(short) else [loss.arm for loss in losses]


def dots(losses: Sequence[CrashLoss], width: int) -> Drawable | None:
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
            color=by_name(alt.Color, "mode", {mode: COLOURS[mode] for mode in modes}, None),
            shape=by_name(alt.Shape, "mode", {mode: SHAPES[mode] for mode in modes}, None),
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
    """On a phone a label is split at its separators."""
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
    """0, then alternating above and below."""
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
    """One crash of each mode under the same fault: what was acknowledged to clients, and what became of it."""
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
    """After the fault an asynchronous primary goes on acknowledging; with others clients wait."""
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
