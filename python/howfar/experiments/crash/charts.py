"""Charts of what a crash loses: a dot for each crash, and the last moments of one. None: nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from howfar.experiments.crash.analysis import FAULT_NAMES, CrashLoss, CrashPoint
from howfar.experiments.replication.arms import mode_name
from howfar.experiments.replication.charts import LOOKS, SHORT, by, symlog_ticks
from howfar.experiments.replication.frame import lost_cell
from howfar.report import palette
from howfar.report.charts import PHONE, Drawable, layer, values

Typical = tuple[str, CrashLoss, CrashPoint]
"""The label of a mode, its crashes, and the one with the median loss."""

ROW = 40
LANES = 7
"""Dots lie side by side up to this many; the figure beside has the number."""

MARGIN = 150
"""Pixels for the figures on the right; a phone has them in the table only."""


def mode_labels(losses: Sequence[CrashLoss]) -> list[str]:
    """The mode, where that and the fault identify a row; else the arm's name."""
    pairs = {(loss.mode, loss.fault) for loss in losses}
    return [mode_name(loss.mode) if len(pairs) == len(losses) else loss.arm for loss in losses]


def labels(losses: Sequence[CrashLoss]) -> list[str]:
    """Mode and fault, where they identify a row; else the arm's name."""
    short = [f"{SHORT.get(loss.mode, loss.mode)}, {FAULT_NAMES.get(loss.fault, loss.fault)}" for loss in losses]
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
    axis = alt.Axis(values=_ticks(most, narrow), format=",d", labelFlush=False)

    def along(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=scale, axis=axis, title="acknowledged commits lost in one crash")

    y = alt.Y(
        "row:N",
        sort=names,
        title=None,
        axis=alt.Axis(
            labelLimit=130 if narrow else 230,
            ticks=False,
            domain=False,
            labelPadding=8,
            labelExpr="split(datum.label, ', ')" if narrow else "datum.label",
        ),
    )
    band, tick = _predicted(named, along, y)
    layers = [*band, _marks(named, along, y), *_gone(named, along, y), *tick]
    if not narrow:
        cells = [(label, lost_cell(loss.lost_per_crash, loss.crashes)) for label, loss in named]
        figures = [{"row": label, "text": f"{cell.text} {cell.below}".strip()} for label, cell in cells]
        text = alt.Chart(values(figures)).mark_text(align="left", fontSize=12, color=palette.INK)
        layers.append(text.encode(x=alt.value(width - MARGIN + 10), y=y, text="text:N"))
    return layer(*layers, width=width - (0 if narrow else MARGIN), height=ROW * len(losses))


def _marks(named: Sequence[tuple[str, CrashLoss]], along: Callable[[str], alt.X], y: alt.Y) -> Any:
    """In lanes, so that crashes with equal losses are seen as several."""
    modes = list(dict.fromkeys(loss.mode for _, loss in named))
    colours, shapes = [LOOKS[mode][0] for mode in modes], [LOOKS[mode][1] for mode in modes]
    rows = [
        {"row": label, "mode": loss.mode, "lost": point.lost, "lane": lane(index)}
        for label, loss in named
        for index, point in enumerate(loss.each)
    ]
    mark = alt.Chart(values(rows)).mark_point(size=36, strokeWidth=1.4, opacity=0.85, filled=False)
    return mark.encode(
        x=along("lost"),
        y=y,
        yOffset=alt.YOffset("lane:Q", scale=alt.Scale(domain=[-1.5, 1.5])),
        color=by(alt.Color, "mode", modes, colours),
        shape=by(alt.Shape, "mode", modes, shapes),
    )


def _gone(named: Sequence[tuple[str, CrashLoss]], along: Callable[[str], alt.X], y: alt.Y) -> list[Any]:
    rows = [{"row": label, "lost": point.phantoms} for label, loss in named for point in loss.each if point.phantoms]
    if not rows:
        return []
    mark = alt.Chart(values(rows)).mark_point(
        shape="triangle-down", size=60, filled=True, opacity=0.9, color=palette.SERIES[5]
    )
    return [mark.encode(x=along("lost"), y=y)]


def _largest(loss: CrashLoss) -> float:
    predicted = (loss.predicted_lost.high or loss.predicted_lost.value) if loss.predicted_lost else 0.0
    return max([loss.most_lost, predicted, *(point.phantoms for point in loss.each)])


def _ticks(most: float, narrow: bool) -> list[float]:
    ticks = [0.0, *([1.0] if most < 1000 or not narrow else []), *symlog_ticks(max(most, 10))[1:]]
    return sorted(set(ticks))


def lane(index: int) -> float:
    """0, then alternating above and below."""
    step = (index % LANES + 1) // 2 * 2 / (LANES - 1)
    return step if index % 2 else -step


def _predicted(
    named: Sequence[tuple[str, CrashLoss]], along: Callable[[str], alt.X], y: alt.Y
) -> tuple[list[Any], list[Any]]:
    """A band below the marks, and a line over them."""
    rows = [
        {
            "row": label,
            "lost": found.value,
            "low": max(found.value if found.low is None else found.low, 0.0),
            "high": found.value if found.high is None else found.high,
        }
        for label, loss in named
        if (found := loss.predicted_lost)
    ]
    if not rows:
        return [], []
    data = alt.Chart(values(rows))
    band = data.mark_bar(size=34, color=palette.BAND).encode(x=along("low"), x2="high:Q", y=y)
    return [band], [data.mark_tick(size=34, thickness=2.5, color=palette.INK).encode(x=along("lost"), y=y)]


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
    begin = min(point.first_lost_ms for _, _, point in drawn if point.first_lost_ms is not None)
    end = max(point.dead_ms + point.promotion_ms for _, _, point in drawn)
    begin = min(begin * 1.15, begin - (end - begin) * 0.15)
    bars = [row for label, _, point in drawn for row in _phases(label, point, begin)]
    scale = alt.Scale(domain=[begin, end * 1.02], nice=False)
    x = alt.X("from:Q", scale=scale, axis=alt.Axis(tickCount=6, format=",d", grid=False), title="ms from the fault on")
    text = "split(datum.label, ' ')" if narrow else "datum.label"
    axis = alt.Axis(ticks=False, domain=False, labelPadding=8, labelLimit=230, labelExpr=text)
    y = alt.Y("row:N", sort=[label for label, _, _ in drawn], title=None, axis=axis)
    states = [state for state in STATES if any(bar["state"] == state for bar in bars)]
    legend = alt.Legend(
        orient="top", title=None, columns=2 if narrow else 4, symbolType="square", labelLimit=200, offset=24
    )
    colour = by(alt.Color, "state", states, [STATES[state] for state in states], legend)
    layers: list[Any] = [alt.Chart(values(bars)).mark_bar(size=20).encode(x=x, x2="to:Q", y=y, color=colour)]
    layers += _moment_rules(drawn[0][2].dead_ms, end - begin, x)
    if not narrow:
        named = [bar | {"middle": (bar["from"] + bar["to"]) / 2} for bar in bars if _fits(bar, width / (end - begin))]
        marks = alt.Chart(values(named)).mark_text(color=palette.ON_BAR, fontSize=11)
        layers.append(marks.encode(x=alt.X("middle:Q", scale=scale), y=y, text="text:N"))
    return layer(*layers, width=width, height=34 * len(drawn))


def _moment_rules(dead_ms: float, length: float, x: alt.X) -> list[Any]:
    marks: list[dict[str, Any]] = [{"from": 0.0, "text": "fault"}]
    marks += [{"from": dead_ms, "text": "primary dead"}] if dead_ms > length * 0.05 else []
    rule = alt.Chart(values(marks))
    return [
        rule.mark_rule(color=palette.INK, strokeWidth=1.5, strokeDash=[4, 3]).encode(x=x),
        rule.mark_text(color=palette.INK, fontSize=11, dy=-6, y=0, baseline="bottom").encode(x=x, text="text:N"),
    ]


def _phases(row: str, point: CrashPoint, begin: float) -> list[dict[str, Any]]:
    """After the fault an asynchronous primary goes on acknowledging; with others clients wait."""
    dead = max(point.dead_ms, 0.0)
    first = point.first_lost_ms
    phases = [(KEPT, begin, min(first, 0.0) if first is not None else 0.0, "")]
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


def _fits(bar: dict[str, Any], pixels_per_ms: float) -> bool:
    return bool(bar["text"]) and len(bar["text"]) * 6.5 < (bar["to"] - bar["from"]) * pixels_per_ms
