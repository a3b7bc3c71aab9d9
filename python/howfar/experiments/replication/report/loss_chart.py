"""Charts of what a crash loses: a dot a crash, and the last moments of one. What is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from howfar.analysis.summary import Summary
from howfar.experiments.crash.analysis import CrashLoss, CrashPoint
from howfar.experiments.replication.report import words
from howfar.experiments.replication.report.cost_chart import LOOKS, symlog_ticks
from howfar.report import palette
from howfar.report.charts import PHONE, Drawable, values

ROW = 40
LANES = 7
"""Dots lie side by side as far as this many; equal ones beyond lie on each other, and the figure beside says how many."""

BESIDE = 150
"""Pixels for the figures at the right; a phone has them in the table only."""


def losses_of(summary: Summary) -> tuple[CrashLoss, ...]:
    crash = summary.replication.crash if summary.replication else None
    return tuple(loss for loss in crash.losses if loss.crashes) if crash else ()


def labels(losses: Sequence[CrashLoss]) -> list[str]:
    """Short where a mode and what broke tell them apart; else the arms' names."""
    short = [f"{words.short(loss.mode)}, {words.fault_words(loss.fault)}" for loss in losses]
    return short if len(set(short)) == len(short) else [loss.arm for loss in losses]


def dots(summary: Summary, width: int) -> Drawable | None:
    """Acknowledged commits lost, a dot a crash; a bar where the model says; triangles are rows seen by others and gone."""
    losses = losses_of(summary)
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
    lane = alt.YOffset("lane:Q", scale=alt.Scale(domain=[-1.5, 1.5]))
    modes = list(dict.fromkeys(words.mode_words(loss.mode) for loss in losses))
    by_words = {words.mode_words(mode): look for mode, look in LOOKS.items()}
    colour = alt.Color(
        "mode:N", scale=alt.Scale(domain=modes, range=[by_words[mode][0] for mode in modes]), legend=None
    )
    shape = alt.Shape("mode:N", scale=alt.Scale(domain=modes, range=[by_words[mode][1] for mode in modes]), legend=None)
    band, tick = _predicted(named, along, y)
    layers: list[Any] = [*band]
    data = alt.Chart(values([row for name, loss in named for row in _rows(name, loss)]))
    mark = data.mark_point(size=36, strokeWidth=1.4, opacity=0.85, filled=False)
    layers.append(mark.encode(x=along("lost"), y=y, yOffset=lane, color=colour, shape=shape))
    gone = [{"row": name, "lost": point.phantoms} for name, loss in named for point in loss.each if point.phantoms]
    if gone:
        mark = alt.Chart(values(gone)).mark_point(
            shape="triangle-down", size=60, filled=True, opacity=0.9, color=palette.SERIES[5]
        )
        layers.append(mark.encode(x=along("lost"), y=y))
    layers += tick
    if not narrow:
        said = [{"row": name, "text": words.lost(loss.lost_per_crash, loss.crashes)} for name, loss in named]
        at = alt.value(width - BESIDE + 10)
        text = alt.Chart(values(said)).mark_text(align="left", fontSize=12, color=palette.INK)
        layers.append(text.encode(x=at, y=y, text="text:N"))
    return alt.layer(*layers).properties(width=width - (0 if narrow else BESIDE), height=ROW * len(losses))


def _largest(loss: CrashLoss) -> float:
    foreseen = (loss.predicted_lost.high or loss.predicted_lost.value) if loss.predicted_lost else 0.0
    return max([loss.most_lost, foreseen, *(point.phantoms for point in loss.each)])


def _ticks(most: float, narrow: bool) -> list[float]:
    ticks = [0.0, *([1.0] if most < 1000 or not narrow else []), *symlog_ticks(max(most, 10))[1:]]
    return sorted(set(ticks))


def _rows(row: str, loss: CrashLoss) -> list[dict[str, Any]]:
    """In lanes, so that crashes that lost the same are seen as several."""
    mode = words.mode_words(loss.mode)
    return [
        {"row": row, "mode": mode, "lost": point.lost, "lane": lane(index)} for index, point in enumerate(loss.each)
    ]


def lane(place: int) -> float:
    """0, then by turns above and below."""
    step = (place % LANES + 1) // 2 * 2 / (LANES - 1)
    return step if place % 2 else -step


def _predicted(named: Sequence[tuple[str, CrashLoss]], along: Any, y: alt.Y) -> tuple[list[Any], list[Any]]:
    """A band below the marks, and a line over them."""
    rows = [
        {
            "row": name,
            "lost": found.value,
            "low": max(found.value if found.low is None else found.low, 0.0),
            "high": found.value if found.high is None else found.high,
        }
        for name, loss in named
        if (found := loss.predicted_lost)
    ]
    if not rows:
        return [], []
    data = alt.Chart(values(rows))
    band = data.mark_bar(size=34, color=palette.BAND).encode(x=along("low"), x2="high:Q", y=y)
    return [band], [data.mark_tick(size=34, thickness=2.5, color=palette.INK).encode(x=along("lost"), y=y)]


def moments(summary: Summary) -> list[CrashLoss]:
    """Whose last moments are drawn: the modes under the fault by which most was lost."""
    losses = losses_of(summary)
    worst = max(losses, key=lambda loss: loss.lost_per_crash.value, default=None)
    return [loss for loss in losses if worst is not None and loss.fault == worst.fault]


def middle(loss: CrashLoss) -> CrashPoint | None:
    """The crash whose loss is the median."""
    ranked = sorted(loss.each, key=lambda point: point.lost)
    return ranked[len(ranked) // 2] if ranked else None


KEPT, LOST, WAITING, TAKEOVER = "acknowledged, kept", "acknowledged, lost", "clients wait", "replica takes over"
STATES = {KEPT: palette.PARTS[1], LOST: palette.SERIES[5], WAITING: palette.MUTED, TAKEOVER: palette.PARTS[0]}


def timeline(summary: Summary, width: int) -> Drawable | None:
    """Of each mode one crash under the same fault: what clients were told, and what became of it."""
    chosen = moments(summary)
    every = list(zip(words.loss_names(chosen), chosen, strict=True))
    drawn = [(name, loss, point) for name, loss in every if (point := middle(loss)) is not None]
    if not drawn or not any(point.lost for _, _, point in drawn):
        return None
    narrow = width < PHONE
    begin = min(point.first_lost_ms for _, _, point in drawn if point.first_lost_ms is not None)
    end = max(point.dead_ms + point.promotion_ms for _, _, point in drawn)
    begin = min(begin * 1.15, begin - (end - begin) * 0.15)
    bars = [row for name, _, point in drawn for row in _phases(name, point, begin)]
    names = [name for name, _, _ in drawn]
    scale = alt.Scale(domain=[begin, end * 1.02], nice=False)
    x = alt.X("from:Q", scale=scale, axis=alt.Axis(tickCount=6, format=",d", grid=False), title="ms from the fault on")
    said = "split(datum.label, ' ')" if narrow else "datum.label"
    axis = alt.Axis(ticks=False, domain=False, labelPadding=8, labelLimit=230, labelExpr=said)
    y = alt.Y("row:N", sort=names, title=None, axis=axis)
    states = [state for state in STATES if any(bar["state"] == state for bar in bars)]
    legend = alt.Legend(
        orient="top", title=None, columns=2 if narrow else 4, symbolType="square", labelLimit=200, offset=24
    )
    colour = alt.Color(
        "state:N", scale=alt.Scale(domain=states, range=[STATES[state] for state in states]), legend=legend
    )
    layers: list[Any] = [alt.Chart(values(bars)).mark_bar(size=20).encode(x=x, x2="to:Q", y=y, color=colour)]
    dead = drawn[0][2].dead_ms
    marks = [{"from": 0.0, "text": "fault"}] + (
        [{"from": dead, "text": "primary dead"}] if dead > (end - begin) * 0.05 else []
    )
    rule = alt.Chart(values(marks))
    layers.append(rule.mark_rule(color=palette.INK, strokeWidth=1.5, strokeDash=[4, 3]).encode(x=x))
    layers.append(
        rule.mark_text(color=palette.INK, fontSize=11, dy=-6, y=0, baseline="bottom").encode(x=x, text="text:N")
    )
    if not narrow:
        named = [bar | {"middle": (bar["from"] + bar["to"]) / 2} for bar in bars if _fits(bar, width / (end - begin))]
        text = alt.Chart(values(named)).mark_text(color=palette.ON_BAR, fontSize=11)
        layers.append(text.encode(x=alt.X("middle:Q", scale=scale), y=y, text="text:N"))
    return alt.layer(*layers).properties(width=width, height=34 * len(drawn))


def _phases(row: str, point: CrashPoint, begin: float) -> list[dict[str, Any]]:
    """From the fault on a primary goes on telling clients, as asynchronous ones do, or has nothing to tell them."""
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


def _fits(bar: dict[str, Any], pixels_a_ms: float) -> bool:
    return bool(bar["text"]) and len(bar["text"]) * 6.5 < (bar["to"] - bar["from"]) * pixels_a_ms
