"""The report of a fallback: how long commits stalled, how long they were unprotected, and one trial as it went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from howfar.analysis.summary import Summary
from howfar.experiments.experiment import Experiment
from howfar.experiments.fallback import charts
from howfar.experiments.fallback.analysis import FallbackSeries, FallbackStory
from howfar.experiments.replication import frame
from howfar.experiments.replication.arms import mode_name, plural
from howfar.experiments.replication.frame import Record, columns, with_limits
from howfar.experiments.replication.trade import ReplicationFindings
from howfar.report import figures
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
    plain,
    single,
)
from howfar.stats.estimate import Estimate

LOWER_BOUND = "≥: a lower bound. Commits waited for the replica again only when the load had ended, or not at all."


class Fallback(Experiment):
    """Its findings are part of those of replication."""

    name = "fallback"

    def applies(self, summary: Summary) -> bool:
        found = summary.found(ReplicationFindings)
        return found is not None and bool(found.fallback)

    def document(self, summary: Summary) -> Document:
        return document(summary)


def document(summary: Summary) -> Document:
    findings = summary.found(ReplicationFindings)
    assert findings is not None, "only then it applies"
    stories = findings.fallback
    main = [*_chart(stories, 0), fallback_table(stories)]
    return frame.document(summary, main, sections(stories, leading=True), records(stories))


def sections(stories: Sequence[FallbackStory], leading: bool = False) -> list[Block]:
    """The table, each trial that is drawn, logs and evidence. `leading`: without what the first screen has."""
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
        ("timeout of the server", lambda story: f"{story.timeout_ms / 1e3:g} s"),
        ("no commit acknowledged for", lambda story: f"{figures.number(story.stall_ms.value / 1e3)} s"),
        ("then asynchronous for", lambda story: asynchronous_for(story, story.degraded_ms)),
        ("after the link's return", lambda story: asynchronous_for(story, story.after_return_ms)),
        ("replica caught up after", caught_up),
        ("it lacked at most", lambda story: figures.number(story.most_behind)),
        ("commits acknowledged alone", unprotected),
        ("before it had caught up", lambda story: with_limits(story.unprotected_alone)),
        ("share of all commits", lambda story: share(story.share_unprotected)),
    )
    rows = tuple(plain(fact, *(text(story) for story in stories)) for fact, text in facts)
    heads = [
        Column(each, f"{story.threads} connections") for each, story in zip(story_names(stories), stories, strict=True)
    ]
    trials = sorted({story.trials for story in stories})
    note = (
        f"Means over {plural(trials[-1], 'trial')} for each mode; 95 % intervals in brackets, where there are enough."
    )
    bound = [LOWER_BOUND] if any(to_the_end(story) for story in stories) else []
    return Table("What a fallback hides", (Column("", left=True), *heads), rows, (note, *bound), main=True)


def share(value: float) -> str:
    return f"{value * 100:.1f} %"


def to_the_end(story: FallbackStory) -> bool:
    """A trial was asynchronous for as long as there was a load: only a lower bound of that time is known."""
    series = story.series
    if story.censored or story.held_off:
        return True
    if series is None or series.fell_s is None:
        return False
    return series.back_s is None or series.back_s >= (len(series.commits_per_s) - 1) * series.slice_s


def asynchronous_for(story: FallbackStory, ms: Estimate | None) -> str:
    """`6.40 s`, `≥ 25.1 s` where it did not end under load, `never`."""
    if ms is None:
        return "never"
    return f"{'≥ ' if to_the_end(story) else ''}{figures.number(ms.value / 1e3)} s"


def unprotected(story: FallbackStory) -> str:
    """`198,226`, `≥ 198,226` where it did not end under load."""
    return f"{'≥ ' if to_the_end(story) else ''}{with_limits(story.unprotected)}"


def caught_up(story: FallbackStory) -> str:
    """After the link's return."""
    if story.degraded_ms is None:
        return figures.UNKNOWN
    return "not seen" if story.caught_up_ms is None else f"{figures.number(story.caught_up_ms.value / 1e3)} s"


def story_names(stories: Sequence[FallbackStory]) -> list[str]:
    """The mode, where that identifies them; else the arm's name."""
    modes = [mode_name(story.mode) for story in stories]
    return modes if len(set(modes)) == len(modes) else [story.arm for story in stories]


def _chart(stories: Sequence[FallbackStory], index: int) -> list[Block]:
    """Of the trial that is drawn. Empty: it has no commits."""
    series = stories[index].series
    if series is None or not series.commits_per_s:
        return []
    rows = tuple(
        plain(each["row"], each["state"], f"{each['from']:.2f}", f"{each['to']:.2f}") for each in charts.phases(series)
    )
    return [
        Chart(
            f"fallback{index}",
            "Commits/s while the replica leaves and returns, with the states of link and primary",
            f"Trial {series.trial}: {_events(stories[index], series)}. Below: transactions that the replica lacks; a gap: unknown.",
            partial(charts.timeline, series),
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
        return [Text(f"The primary ({mode_name(story.mode)}) wrote nothing about it into its log.")]
    return [
        Text(f"All that the primary ({mode_name(story.mode)}) wrote about it into its log:"),
        Bullets(story.log_lines),
    ]


def _evidence(stories: Sequence[FallbackStory]) -> list[str]:
    trials = ", ".join(f"{story.trials} {label}" for story, label in zip(stories, story_names(stories), strict=True))
    times = [story.series.at_s for story in stories if story.series]
    gaps = sorted(later - earlier for each in times for earlier, later in pairwise(each))
    looks = f" Two looks at the primary are {figures.number(gaps[len(gaps) // 2])} s apart (median)." if gaps else ""
    return [f"Trials: {trials}. Commits are counted from the clients' logs, states by querying the primary.{looks}"]


# ---------------------------------------------------------------- records

_COLUMNS = """mode threads trials timeout_ms stall_ms degraded_ms after_return_ms censored caught_up_ms unprotected unprotected_alone
most_behind share_unprotected"""


def records(stories: Sequence[FallbackStory]) -> dict[str, Record]:
    return {story.arm: columns(story, _COLUMNS, censored="censored_trials") for story in stories}
