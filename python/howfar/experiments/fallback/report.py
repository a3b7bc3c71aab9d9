"""The report of a fallback: how long commits stalled, how long they were unprotected, and the course of one trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from howfar.analysis.summary import Summary
from howfar.experiments.experiment import Experiment
from howfar.experiments.fallback.analysis import FallbackSeries, FallbackStory
from howfar.experiments.replication import frame
from howfar.experiments.replication.arms import mode_name, plural
from howfar.experiments.replication.charts import states, symlog
from howfar.experiments.replication.frame import Record, with_limits
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.report import figures, palette
from howfar.report.charts import PHONE, Drawable, Rows, by_name, data, layer, vconcat
from howfar.report.document import Block, Bullets, Chart, Column, Details, Document, Heading, Table, Text, plain, single
from howfar.report.drawing import alt
from howfar.report.sections import columns
from howfar.stats.estimate import Estimate

ACKNOWLEDGED, WAITING, ALONE = "semi-synchronous", "no acknowledgements", "asynchronous, silently"
CARRIES, CUT, BACK = "up", "cut", "up again"
COLOURS = {
    ACKNOWLEDGED: palette.PARTS[1],
    WAITING: palette.MUTED,
    ALONE: palette.SERIES[5],
    CARRIES: palette.PARTS[0],
    CUT: palette.MORE[0],
    BACK: palette.PARTS[0],
}
EXTRA = 140
"""Additional width: this chart stands alone in its row."""

CONSTANT = 10
"""Below this rate the axis is linear, so that zero can be shown."""


def timeline(series: FallbackSeries, width: int) -> Drawable:
    """Three panels over one time axis."""
    width = width + EXTRA if width >= PHONE else width
    scale = alt.Scale(domain=[0, end_s(series)], nice=False)
    panels = [_commits(series, width, scale), _bands(series, width, scale)]
    if any(behind is not None for behind in series.behind):
        panels.append(_behind(series, width, scale))
    return vconcat(*panels, spacing=8, resolve={"scale": {"color": "independent"}})


def _extent(width: int) -> dict[str, Any]:
    """Properties that align the panels."""
    extent = 72 if width >= PHONE else 58
    return {"minExtent": extent, "maxExtent": extent}


def _commits(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    rows = [{"at": index * series.slice_s, "tps": rate} for index, rate in enumerate(series.commits_per_s)]
    most = max(series.commits_per_s)
    x = alt.X("at:Q", scale=scale, axis=alt.Axis(labels=False, ticks=False, grid=False), title=None)
    y = symlog(alt.Y, "tps", "commits/s", most, CONSTANT, most * 1.4, **_extent(width))
    line = data(rows).mark_line(interpolate="step-after", strokeWidth=1.6, color=palette.SERIES[0])
    layers = [line.encode(x=x, y=y)]
    if series.fell_s is not None:
        alone: dict[str, Any] = {
            "at": series.fell_s,
            "to": series.back_s if series.back_s is not None else end_s(series),
        }
        alone["text"] = f"{series.unprotected:,} commits not acknowledged by a replica" if width >= PHONE else ""
        text = data([alone]).mark_text(align="left", dx=8, fontSize=13, color=palette.INK)
        layers.insert(0, data([alone]).mark_rect(color=palette.BAND).encode(x=x, x2="to:Q"))
        layers.insert(1, text.encode(x=x, y=alt.value(100), text="text:N"))
    return layer(*layers, width=width, height=190)


def end_s(series: FallbackSeries) -> float:
    """End of the trial, which may have had no commits."""
    return max(len(series.commits_per_s) * series.slice_s, *series.at_s[-1:], 0.0)


def phases(series: FallbackSeries) -> Rows:
    """States of the link and of the primary, each from one moment to the next."""
    end = end_s(series)
    answered = series.fell_s if series.fell_s is not None else min(series.left_s + series.stall_s, end)
    back = (series.back_s if series.back_s is not None else end) if series.fell_s is not None else answered
    found = [
        ("link", CARRIES, 0.0, series.left_s),
        ("link", CUT, series.left_s, series.returned_s),
        ("link", BACK, series.returned_s, end),
        ("primary", ACKNOWLEDGED, 0.0, series.left_s),
        ("primary", WAITING, series.left_s, answered),
        ("primary", ALONE, answered, back),
        ("primary", ACKNOWLEDGED, back, end),
    ]
    return [
        {"row": row, "state": state, "from": low, "to": min(high, end)}
        for row, state, low, high in found
        if min(high, end) > low
    ]


def _bands(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    pixels = width / end_s(series)
    rows = [row | {"text": short_enough(row["state"], (row["to"] - row["from"]) * pixels)} for row in phases(series)]
    quiet = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    x = alt.X("from:Q", scale=scale, axis=quiet, title=None)
    labels = alt.Axis(ticks=False, domain=False, labelPadding=6, **_extent(width))
    y = alt.Y("row:N", sort=["link", "primary"], title=None, axis=labels)
    shown = {row["state"]: COLOURS[row["state"]] for row in rows}
    return layer(*states(rows, x, y, by_name(alt.Color, "state", shown, None), 20), width=width, height=52)


SHORTER = {ACKNOWLEDGED: "semi-sync", WAITING: "stalled", ALONE: "asynchronous", BACK: "again"}


def short_enough(state: str, pixels: float) -> str:
    """The state, or a shorter name for it, or nothing, as there is room."""
    return next((text for text in (state, SHORTER.get(state, state)) if len(text) * 6.2 + 4 < pixels), "")


def _behind(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    """Panel of the replica's lag, with gaps where it could not be queried."""
    rows = [{"at": at, "behind": behind} for at, behind in zip(series.at_s, series.behind, strict=True)]
    most = max(behind for behind in series.behind if behind is not None)
    ticks = alt.Axis(grid=False, tickCount=8, format="d")
    line = data(rows).mark_line(interpolate="step-after", strokeWidth=1.4, color=palette.SERIES[3])
    return line.encode(
        x=alt.X("at:Q", scale=scale, axis=ticks, title="seconds of the trial"),
        y=symlog(alt.Y, "behind", "replica lacks", most, CONSTANT, most * 1.3 + 1, **_extent(width)),
    ).properties(width=width, height=80)


LOWER_BOUND = "≥: a lower bound. Commits waited for the replica again only when the load had ended, or not at all."


class Fallback(Experiment):
    """The experiment on fallbacks. Its findings are part of those of replication."""

    name = "fallback"

    def applies(self, summary: Summary) -> bool:
        found = summary.found(ReplicationFindings)
        return found is not None and bool(found.fallback)

    def document(self, summary: Summary) -> Document:
        stories = summary.the(ReplicationFindings).fallback
        main = [*_chart(stories, 0), fallback_table(stories)]
        return frame.document(summary, main, sections(stories, leading=True), records(stories))


def sections(stories: Sequence[FallbackStory], leading: bool = False) -> list[Block]:
    """The table, each trial that is drawn, logs and evidence. `leading`: without the blocks that the first screen has."""
    if not stories:
        return []
    blocks: list[Block] = [] if leading else [fallback_table(stories)]
    for index, label in enumerate(story_names(stories)):
        drawn = [] if leading and not index else _chart(stories, index)
        blocks += [*([Heading(label)] if len(stories) > 1 else []), *drawn, *_log(stories[index])]
    return [Details("When a replica leaves and returns", (*blocks, Bullets(tuple(_evidence(stories)))), open=True)]


def fallback_table(stories: Sequence[FallbackStory]) -> Table:
    """A column for each mode: there are few, with many figures each."""
    facts: tuple[tuple[str, Callable[[FallbackStory], str]], ...] = (
        (
            "timeout of the server",
            lambda story: "none" if story.timeout_ms is None else f"{story.timeout_ms / 1e3:g} s",
        ),
        ("no commit acknowledged for", lambda story: f"{figures.number(story.stall_ms.value / 1e3)} s"),
        ("then asynchronous for", lambda story: asynchronous_for(story, story.degraded_ms)),
        ("after the link's return", lambda story: asynchronous_for(story, story.after_return_ms)),
        ("replica caught up after", caught_up),
        ("it lacked at most", lambda story: figures.number(story.most_behind)),
        ("commits acknowledged alone", unprotected),
        ("before it had caught up", lambda story: with_limits(story.unprotected_alone)),
        ("share of all commits", lambda story: figures.percent(story.share_unprotected)),
    )
    rows = tuple(plain(fact, *(text(story) for story in stories)) for fact, text in facts)
    heads = [
        Column(each, f"{story.threads} connections") for each, story in zip(story_names(stories), stories, strict=True)
    ]
    trials = sorted({story.trials for story in stories})
    note = f"Means over {plural(trials[-1], 'trial')} for each mode; 95 % intervals in brackets, where there are enough trials."
    bound = [LOWER_BOUND] if any(to_the_end(story) for story in stories) else []
    return Table("What a fallback hides", (Column("", left=True), *heads), rows, (note, *bound), main=True)


def to_the_end(story: FallbackStory) -> bool:
    """Whether a trial was asynchronous for as long as there was a load, so that only a lower bound of that time is known."""
    series = story.series
    if story.censored or story.held_off:
        return True
    if series is None or series.fell_s is None:
        return False
    return series.back_s is None or series.back_s >= (len(series.commits_per_s) - 1) * series.slice_s


def asynchronous_for(story: FallbackStory, ms: Estimate | None) -> str:
    """Length of the asynchronous phase: `6.40 s`, `≥ 25.1 s` where it did not end under load, `never`."""
    if ms is None:
        return "never"
    return f"{'≥ ' if to_the_end(story) else ''}{figures.number(ms.value / 1e3)} s"


def unprotected(story: FallbackStory) -> str:
    """Unprotected commits: `198,226`, `≥ 198,226` where the phase did not end under load."""
    return f"{'≥ ' if to_the_end(story) else ''}{with_limits(story.unprotected)}"


def caught_up(story: FallbackStory) -> str:
    """Time after the link's return until the replica had caught up."""
    if story.degraded_ms is None:
        return figures.UNKNOWN
    return "not seen" if story.caught_up_ms is None else f"{figures.number(story.caught_up_ms.value / 1e3)} s"


def story_names(stories: Sequence[FallbackStory]) -> list[str]:
    """Names of stories: the mode, where that identifies them; else the arm's name."""
    modes = [mode_name(story.mode) for story in stories]
    return modes if len(set(modes)) == len(modes) else [story.arm for story in stories]


def _chart(stories: Sequence[FallbackStory], index: int) -> list[Block]:
    """Chart of the trial that is drawn. Empty: it has no commits."""
    series = stories[index].series
    if series is None or not series.commits_per_s:
        return []
    rows = tuple(
        plain(each["row"], each["state"], f"{each['from']:.2f}", f"{each['to']:.2f}") for each in phases(series)
    )
    return [
        Chart(
            f"fallback{index}",
            "Commits/s while the replica leaves and returns, with the states of link and primary",
            f"Trial {series.trial}: {_events(stories[index], series)}. Below: transactions that the replica lacks; a gap: unknown.",
            partial(timeline, series),
            Table("", single("part", "state", "from, s", "to, s"), rows),
        )
    ]


def _events(story: FallbackStory, series: FallbackSeries) -> str:
    events = [f"at {series.left_s:.1f} s the link is cut"]
    if series.fell_s is not None:
        events.append(f"from {series.fell_s:.1f} s the primary acknowledges without its replica")
    events.append(f"at {series.returned_s:.1f} s the link returns")
    if series.reconnected_s is not None:
        events.append(f"at {series.reconnected_s:.1f} s the replica is connected")
    if series.fell_s is not None and series.back_s is None:
        events.append("no commit waits for it until the end of the trial")
    elif series.fell_s is not None and to_the_end(story):
        events.append(f"only at {series.back_s:.1f} s, when the load has ended, would commits wait for it again")
    elif series.fell_s is not None:
        events.append(f"at {series.back_s:.1f} s commits wait for it again")
    return "; ".join(events)


def _log(story: FallbackStory) -> list[Block]:
    if not story.log_lines:
        return [Text(f"The primary ({mode_name(story.mode)}) wrote nothing about it to its log.")]
    return [
        Text(f"All that the primary ({mode_name(story.mode)}) wrote about it to its log:"),
        Bullets(story.log_lines),
    ]


def _evidence(stories: Sequence[FallbackStory]) -> list[str]:
    trials = ", ".join(f"{story.trials} {label}" for story, label in zip(stories, story_names(stories), strict=True))
    times = [story.series.at_s for story in stories if story.series]
    gaps = sorted(later - earlier for each in times for earlier, later in pairwise(each))
    looks = (
        f" Queries of the primary's state are {figures.number(gaps[len(gaps) // 2])} s apart (median)." if gaps else ""
    )
    return [f"Trials: {trials}. Commits are counted from the clients' logs, states by querying the primary.{looks}"]


# ---------------------------------------------------------------- records

_COLUMNS = """mode threads trials timeout_ms stall_ms degraded_ms after_return_ms censored caught_up_ms unprotected unprotected_alone
most_behind share_unprotected"""


def records(stories: Sequence[FallbackStory]) -> dict[str, Record]:
    return {story.arm: columns(story, _COLUMNS, censored="censored_trials") for story in stories}
