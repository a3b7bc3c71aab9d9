"""The report on fallbacks: how long commits stalled, how long they were unprotected, and the timeline of one trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, pairwise

from howfar.analysis.answer import sentences
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment
from howfar.experiments.replication import frame
from howfar.experiments.replication.arms import mode_name
from howfar.experiments.replication.charts import phase_layers, symlog_channel
from howfar.experiments.replication.fallback.analysis import FallbackSeries, FallbackStory
from howfar.experiments.replication.fallback.texts import TEXTS
from howfar.experiments.replication.frame import Record, with_interval
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.findings import Finding, Quantity, capital, fill, note
from howfar.report import figures, palette
from howfar.report.charts import PHONE, Drawable, Rows, VegaLite, by_style, data, layer, vconcat
from howfar.report.document import (
    Block,
    Bullets,
    Chart,
    Column,
    Details,
    Document,
    Heading,
    Table,
    Text,
    plain_cells,
    plain_columns,
)
from howfar.report.drawing import alt
from howfar.report.sections import csv_columns
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import estimate_text

ACKNOWLEDGED, WAITING, ASYNCHRONOUS = "semi-synchronous", "no acknowledgements", "asynchronous, silently"
LINK_UP, LINK_CUT, LINK_UP_AGAIN = "up", "cut", "up again"
COLOURS = {
    ACKNOWLEDGED: palette.PARTS[1],
    WAITING: palette.MUTED,
    ASYNCHRONOUS: palette.SERIES[5],
    LINK_UP: palette.PARTS[0],
    LINK_CUT: palette.EXTRA_PARTS[0],
    LINK_UP_AGAIN: palette.PARTS[0],
}
EXTRA_WIDTH = 140
"""Additional width in pixels: no other chart is in this row."""

LINEAR_BELOW = 10
"""Value below which an axis is linear, so that zero can be shown."""


def draw_timeline(series: FallbackSeries, width: int) -> Drawable:
    """Chart of one trial: panels for commits, states and, if known, the replica's lag, over one time axis."""
    width = width + EXTRA_WIDTH if width >= PHONE else width
    scale = alt.Scale(domain=[0, end_s(series)], nice=False)
    panels = [_commits_panel(series, width, scale), _states_panel(series, width, scale)]
    if any(behind is not None for behind in series.behind):
        panels.append(_lag_panel(series, width, scale))
    return vconcat(*panels, spacing=8, resolve={"scale": {"color": "independent"}})


def _axis_extent(width: int) -> VegaLite:
    """Properties of a vertical axis that align the panels."""
    extent = 72 if width >= PHONE else 58
    return {"minExtent": extent, "maxExtent": extent}


def _commits_panel(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    rows = [{"at": index * series.slice_s, "tps": rate} for index, rate in enumerate(series.commits_per_s)]
    max_rate = max(series.commits_per_s)
    x = alt.X("at:Q", scale=scale, axis=alt.Axis(labels=False, ticks=False, grid=False), title=None)
    y = symlog_channel(alt.Y, "tps", "commits/s", max_rate, LINEAR_BELOW, max_rate * 1.4, **_axis_extent(width))
    line = data(rows).mark_line(interpolate="step-after", strokeWidth=1.6, color=palette.SERIES[0])
    layers = [line.encode(x=x, y=y)]
    if series.fell_s is not None:
        label = fill(TEXTS["unprotected"], unprotected=series.unprotected) if width >= PHONE else ""
        phase_end_s = series.back_s if series.back_s is not None else end_s(series)
        phase: Rows = [{"at": series.fell_s, "to": phase_end_s, "text": label}]
        text = data(phase).mark_text(align="left", dx=8, fontSize=13, color=palette.INK)
        layers.insert(0, data(phase).mark_rect(color=palette.BAND).encode(x=x, x2="to:Q"))
        layers.insert(1, text.encode(x=x, y=alt.value(-8), text="text:N"))
    return layer(*layers, width=width, height=190)


def end_s(series: FallbackSeries) -> float:
    """End of the trial, which may have had no commits."""
    return max(len(series.commits_per_s) * series.slice_s, *series.at_s[-1:], 0.0)


def phase_rows(series: FallbackSeries) -> Rows:
    """The states of the link and of the primary over time, a row for each phase."""
    trial_end_s = end_s(series)
    stall_end_s = series.fell_s if series.fell_s is not None else min(series.left_s + series.stall_s, trial_end_s)
    asynchronous_end_s = (
        (series.back_s if series.back_s is not None else trial_end_s) if series.fell_s is not None else stall_end_s
    )
    phases = [
        ("link", LINK_UP, 0.0, series.left_s),
        ("link", LINK_CUT, series.left_s, series.returned_s),
        ("link", LINK_UP_AGAIN, series.returned_s, trial_end_s),
        ("primary", ACKNOWLEDGED, 0.0, series.left_s),
        ("primary", WAITING, series.left_s, stall_end_s),
        ("primary", ASYNCHRONOUS, stall_end_s, asynchronous_end_s),
        ("primary", ACKNOWLEDGED, asynchronous_end_s, trial_end_s),
    ]
    return [
        {"row": row, "state": state, "from": start, "to": min(end, trial_end_s)}
        for row, state, start, end in phases
        if min(end, trial_end_s) > start
    ]


def _states_panel(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    pixels_per_s = width / end_s(series)
    rows = [
        row | {"text": fitting_name(row["state"], (row["to"] - row["from"]) * pixels_per_s)}
        for row in phase_rows(series)
    ]
    no_axis = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    x = alt.X("from:Q", scale=scale, axis=no_axis, title=None)
    labels = alt.Axis(ticks=False, domain=False, labelPadding=6, **_axis_extent(width))
    y = alt.Y("row:N", sort=["link", "primary"], title=None, axis=labels)
    shown_colours = {row["state"]: COLOURS[row["state"]] for row in rows}
    return layer(
        *phase_layers(rows, x, y, by_style(alt.Color, "state", shown_colours, None), 20), width=width, height=52
    )


SHORT_NAMES = {ACKNOWLEDGED: "semi-sync", WAITING: "stalled", ASYNCHRONOUS: "asynchronous", LINK_UP_AGAIN: "again"}


def fitting_name(state: str, pixels: float) -> str:
    """The longest that fits: the state, a shorter name for it, or nothing."""
    return next((text for text in (state, SHORT_NAMES.get(state, state)) if len(text) * 6.2 + 4 < pixels), "")


def _lag_panel(series: FallbackSeries, width: int, scale: alt.Scale) -> Drawable:
    """Panel of the replica's lag, with gaps where it could not be queried."""
    rows = [{"at": at, "behind": behind} for at, behind in zip(series.at_s, series.behind, strict=True)]
    max_behind = max(behind for behind in series.behind if behind is not None)
    ticks = alt.Axis(grid=False, tickCount=8, format="d")
    line = data(rows).mark_line(interpolate="step-after", strokeWidth=1.4, color=palette.SERIES[3])
    return line.encode(
        x=alt.X("at:Q", scale=scale, axis=ticks, title="seconds of the trial"),
        y=symlog_channel(
            alt.Y, "behind", "replica lacks", max_behind, LINEAR_BELOW, max_behind * 1.3 + 1, **_axis_extent(width)
        ),
    ).properties(width=width, height=80)


class Fallback(Experiment):
    """The experiment on fallbacks. Its findings are part of those of replication."""

    name = "fallback"
    texts = TEXTS
    is_about_ratios = False

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        """A finding for each mode; empty in a run that also has crashes, which is about these."""
        found = findings["replication"]
        if not isinstance(found, ReplicationFindings) or found.crash is not None:
            return ()
        return conclude(found.fallback)

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        found = findings["replication"]
        return explain(found.fallback) if isinstance(found, ReplicationFindings) else ()

    def applies(self, summary: Summary) -> bool:
        findings = summary.find_findings(ReplicationFindings)
        return findings is not None and bool(findings.fallback)

    def document(self, summary: Summary) -> Document:
        stories = summary.require_findings(ReplicationFindings).fallback
        main = [*_trial_chart(stories, 0), fallback_table(stories)]
        return frame.document(summary, main, sections(stories, leading=True), records(stories))


def conclude(stories: Sequence[FallbackStory]) -> tuple[Finding, ...]:
    """What the primary did in each mode."""
    return tuple(
        Finding(
            id="fell-back" if story.degraded_ms else "went-on" if story.goes_on else "waited",
            subject=label,
            metric=Quantity.UNPROTECTED,
            estimate=story.unprotected,
            parameters={
                "stall_s": story.stall_ms.value / 1e3,
                "censored": int(story.lasts_to_end_of_load),
                "stated": story.stated_unprotected,
                "replicas": story.replicas,
            },
        )
        for story, label in zip(stories, story_labels(stories), strict=True)
    )


def sections(stories: Sequence[FallbackStory], leading: bool = False) -> list[Block]:
    """The table, the charts of trials, logs and evidence. `leading`: without the blocks that are on the first screen."""
    if not stories:
        return []
    blocks: list[Block] = [] if leading else [fallback_table(stories)]
    for index, label in enumerate(story_labels(stories)):
        chart = [] if leading and not index else _trial_chart(stories, index)
        blocks += [*([Heading(label)] if len(stories) > 1 else []), *chart, *_log_blocks(stories[index])]
    return [Details("When a replica leaves and returns", (*blocks, Bullets(_evidence_lines(stories))), open=True)]


def fallback_table(stories: Sequence[FallbackStory]) -> Table:
    """The main table: a row for each figure and a column for each mode, because there are few modes with many figures."""
    figures_by_name: tuple[tuple[str, Callable[[FallbackStory], str]], ...] = (
        (
            "timeout of the primary",
            lambda story: "none" if story.timeout_ms is None else f"{story.timeout_ms / 1e3:g} s",
        ),
        ("replica away for", lambda story: _seconds(story.away_ms)),
        ("no commit acknowledged for", lambda story: _seconds(story.stall_ms)),
        ("then asynchronous for", lambda story: asynchronous_time_text(story, story.degraded_ms)),
        ("asynchronous after link's return", lambda story: asynchronous_time_text(story, story.after_return_ms)),
        (
            "replica caught up after",
            lambda story: _seconds(story.caught_up_ms, "not seen" if story.degraded_ms else figures.UNKNOWN),
        ),
        ("commits replica lacked at most", lambda story: figures.whole_number(story.most_behind)),
        ("commits acknowledged alone", lambda story: f"{with_interval(story.unprotected)}{_or_more(story)}"),
        ("alone until replica caught up", lambda story: with_interval(story.unprotected_alone)),
        ("share of all commits", lambda story: figures.percent(story.share_unprotected)),
    )
    rows = tuple(plain_cells(fact, *(text(story) for story in stories)) for fact, text in figures_by_name)
    heads = [
        Column(label, f"{story.threads} connections")
        for label, story in zip(story_labels(stories), stories, strict=True)
    ]
    return Table("What a fallback hides", (Column("", left_aligned=True), *heads), rows, _notes(stories), main=True)


def _notes(stories: Sequence[FallbackStory]) -> tuple[str, ...]:
    figures_shown = [(story.stall_ms, story.unprotected, story.unprotected_alone) for story in stories]
    has_intervals = any(each is not None and each.low is not None for each in chain.from_iterable(figures_shown))
    means = {"trials": max(story.trials for story in stories), "several": len(stories) > 1, "intervals": has_intervals}
    notes = [Finding(id="means", parameters=means)]
    for story, label in zip(stories, story_labels(stories), strict=True):
        if story.held_off:
            counts = {"held_off": story.held_off, "trials": story.trials}
            notes.append(Finding(id="held-off", subject=label, parameters=counts))
        if story.waits_for_ever and not story.degraded_ms:
            notes.append(Finding(id="no-timeout", subject=label))
    notes += [Finding(id="lower-bound")] if any(story.lasts_to_end_of_load for story in stories) else []
    return sentences(notes, TEXTS)


def _seconds(ms: Estimate | float | None, unknown: str = figures.UNKNOWN) -> str:
    """`10.0 s`, `10.0 [9.98, 10.1] s`."""
    if ms is None:
        return unknown
    estimate = ms if isinstance(ms, Estimate) else Estimate(value=ms, low=None, high=None)
    return f"{estimate_text(estimate, lambda value: figures.number(max(0.0, value) / 1e3))} s"


def _or_more(story: FallbackStory) -> str:
    return " or more" if story.lasts_to_end_of_load else ""


def asynchronous_time_text(story: FallbackStory, ms: Estimate | None) -> str:
    """Length of the asynchronous phase: `6.40 s`; `25.1 s or more` if it did not end under load; `never`."""
    return "never" if ms is None else f"{_seconds(ms)}{_or_more(story)}"


def story_labels(stories: Sequence[FallbackStory]) -> list[str]:
    """Labels of fallbacks: the mode if it is unique, else the arm's name."""
    modes = [mode_name(story.mode) for story in stories]
    return modes if len(set(modes)) == len(modes) else [story.arm for story in stories]


def _trial_chart(stories: Sequence[FallbackStory], index: int) -> list[Block]:
    """The chart of the trial that represents a mode. Empty: it has no commits."""
    series = stories[index].series
    if series is None or not series.commits_per_s:
        return []
    rows = tuple(
        plain_cells(phase["row"], phase["state"], f"{phase['from']:.2f}", f"{phase['to']:.2f}")
        for phase in phase_rows(series)
    )
    title = fill(
        TEXTS["stood-still" if series.fell_s is None else "alone-in-trial"],
        stall_s=series.stall_s,
        unprotected=series.unprotected,
    )
    return [
        Chart(
            f"fallback{index}",
            capital(title),
            note(TEXTS["trial-caption"], number=series.trial, events="; ".join(_events(stories[index], series))),
            partial(draw_timeline, series),
            Table("", plain_columns("part", "state", "from, s", "to, s"), rows),
        )
    ]


def explain(stories: Sequence[FallbackStory]) -> tuple[Finding, ...]:
    """Why the primary of the answer, in the first mode, acknowledged alone, waited or went on. Empty: not known."""
    story = stories[0] if stories else None
    if story is None:
        return ()
    if story.degraded_ms and story.timeout_ms is not None:
        return (Finding(id="timed-out", parameters={"timeout_s": story.timeout_ms / 1e3}),)
    if story.goes_on and story.replicas > 1:
        return (Finding(id="others", parameters={"replicas": story.replicas}),)
    return (Finding(id="waits"),) if story.waits_for_ever and not story.degraded_ms else ()


def _events(story: FallbackStory, series: FallbackSeries) -> list[str]:
    fell = series.fell_s is not None
    names = {
        "link-cut": True,
        "fell": fell,
        "link-back": True,
        "reconnected": series.reconnected_s is not None,
        "never-back": fell and series.back_s is None,
        "back-after-load": fell and series.back_s is not None and story.lasts_to_end_of_load,
        "back": fell and series.back_s is not None and not story.lasts_to_end_of_load,
        "lag-panel": True,
    }
    return [fill(TEXTS[name], **series.model_dump(exclude={"at_s"})) for name, happened in names.items() if happened]


def _log_blocks(story: FallbackStory) -> list[Block]:
    text = note(TEXTS["log" if story.log_lines else "silent-log"], subject=mode_name(story.mode))
    return [Text(text), *([Bullets(story.log_lines)] if story.log_lines else [])]


def _evidence_lines(stories: Sequence[FallbackStory]) -> tuple[str, ...]:
    trials = ", ".join(f"{story.trials} {label}" for story, label in zip(stories, story_labels(stories), strict=True))
    findings = [Finding(id="sources", parameters={"trials": trials})]
    query_times_s = [story.series.at_s for story in stories if story.series]
    if gaps_s := [later - earlier for times_s in query_times_s for earlier, later in pairwise(times_s)]:
        findings.append(Finding(id="queries", parameters={"apart_s": sorted(gaps_s)[len(gaps_s) // 2]}))
    return sentences(findings, TEXTS)


# ---------------------------------------------------------------- records

_COLUMNS = """mode threads trials timeout_ms stall_ms degraded_ms after_return_ms censored caught_up_ms unprotected unprotected_alone
most_behind share_unprotected"""


def records(stories: Sequence[FallbackStory]) -> dict[str, Record]:
    return {story.arm: csv_columns(story, _COLUMNS, censored="censored_trials") for story in stories}
