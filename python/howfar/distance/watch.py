"""Results of repeated requests to a server on a schedule, and the live screen. No I/O.

The latency of a request counts from the time at which it was due, so a request that a slow one delays is slow, too.
"""

from __future__ import annotations

import bisect
import math
import textwrap
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from howfar.distance.record import OutageKind
from howfar.distance.screen import format_time

MIN_INTERVAL_NS = 10_000_000
"""Shortest interval: at most 100 requests per second."""
_MAX_KEPT_EVENTS = 5
_MAX_RECENT_REQUESTS = 600
_BARS = " ▁▂▃▄▅▆▇█"
_SLOW_FACTOR = 3.0
_MIN_SLOW_SAMPLES = 20
"""A request is slow if it takes more than `_SLOW_FACTOR` times the median of at least `_MIN_SLOW_SAMPLES` requests."""


LEGEND = "lost: no answer, or no connection; skipped: due before the last answer"


@dataclass(frozen=True)
class Moment:
    """A time of day, and the same instant on the monotonic clock, with which durations are measured."""

    at: datetime
    ns: int

    def before(self, ns: int) -> Moment:
        """The moment `ns` nanoseconds earlier."""
        return Moment(self.at - timedelta(microseconds=ns / 1000), self.ns - ns)


@dataclass(frozen=True)
class SlowRequest:
    """A request that took much longer than the median."""

    began: Moment
    latency_ns: int

    def format_line(self, _now_ns: int, clock: str) -> str:
        return f"{self.began.at:{clock}}  slow: {format_time(self.latency_ns)}"


@dataclass
class Outage:
    """A period in which every request was lost: it begins when the first of them was due, and ends when the server answers."""

    began: Moment
    why: str
    """Why the first request was lost."""
    lost: int = 0
    kind: OutageKind = "errors"
    ended: Moment | None = None

    def duration_ns(self, now_ns: int) -> int:
        return (now_ns if self.ended is None else self.ended.ns) - self.began.ns

    def format_line(self, now_ns: int, clock: str) -> str:
        until = "now" if self.ended is None else f"{self.ended.at:%H:%M:%S}"
        return f"{self.began.at:{clock}} to {until}  {self.describe(now_ns)}, {self.lost:,} lost: {self.why}"

    def describe(self, now_ns: int) -> str:
        return f"{self.kind} for {format_time(self.duration_ns(now_ns))}"


@dataclass
class WatchResults:
    """The results of a watch, in memory that does not grow with the duration of the watch."""

    title: str
    interval_ns: int
    counts: Counter[int] = field(default_factory=Counter)
    """Latencies by value, rounded to three significant digits."""
    recent: deque[int | None] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT_REQUESTS))
    """The latest latencies, in order; None for a lost request."""
    total_ns: int = 0
    min_ns: int | None = None
    max_ns: int = 0
    lost: int = 0
    """Requests that were answered with an error or not at all, or were due while there was no connection."""
    skipped: int = 0
    """Requests that were not sent because the previous one was still unanswered when they were due."""
    outage: Outage | None = None
    """The present outage, if any."""
    outage_count: int = 0
    """Number of outages that have ended."""
    outages: deque[Outage] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT_EVENTS))
    """The latest outages that have ended."""
    slow: deque[SlowRequest] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT_EVENTS))

    @property
    def count(self) -> int:
        """Number of answered requests."""
        return self.counts.total()

    @property
    def due(self) -> int:
        """Number of requests that were due so far."""
        return self.count + self.lost + self.skipped

    def record_answer(self, latency_ns: int, when: Moment) -> None:
        """Record an answer that came `latency_ns` after its request was due."""
        self.record_recovery(when)
        if self.count >= _MIN_SLOW_SAMPLES and latency_ns > _SLOW_FACTOR * (self.quantile_ns(0.5) or latency_ns):
            self.slow.append(SlowRequest(when, latency_ns))
        self.counts[round_to_three_digits(latency_ns)] += 1
        self.recent.append(latency_ns)
        self.total_ns += latency_ns
        self.min_ns = latency_ns if self.min_ns is None else min(self.min_ns, latency_ns)
        self.max_ns = max(self.max_ns, latency_ns)

    def record_loss(self, why: str, due: Moment) -> None:
        """Record a lost request: it was due at `due`, and got no answer or an error, or could not be sent."""
        if self.outage is None:
            self.outage = Outage(due, why)
        self.outage.lost += 1
        self.lost += 1
        self.recent.append(None)

    def record_unreachable(self) -> None:
        """Record that the connection was lost with a request, or could not be reopened."""
        assert self.outage is not None, "a request was lost with the connection"
        self.outage.kind = "unreachable"

    def record_recovery(self, when: Moment) -> None:
        """Record that the server answers, which ends the present outage, if any."""
        if self.outage is not None:
            self.outage.ended = when
            self.outages.append(self.outage)
            self.outage_count += 1
            self.outage = None

    def events(self, now_ns: int, clock: str, max_lines: int) -> list[str]:
        """Format the latest outages and slow requests in chronological order, at most `max_lines`; outages have priority."""
        all_outages: list[Outage | SlowRequest] = [*self.outages, *([] if self.outage is None else [self.outage])]
        shown_events = all_outages[-max_lines:]
        shown_events += list(self.slow)[len(self.slow) - min(max_lines - len(shown_events), len(self.slow)) :]
        return [event.format_line(now_ns, clock) for event in sorted(shown_events, key=lambda event: event.began.ns)]

    def quantile_ns(self, share: float) -> int | None:
        """Return a percentile; None unless at least three samples lie beyond it."""
        if self.count * min(share, 1 - share) < 3 * (1 - 1e-9):
            return None
        remaining = math.ceil(share * self.count)
        for value in sorted(self.counts):
            remaining -= self.counts[value]
            if remaining <= 0:
                return value
        raise AssertionError("the counts add up to `count`")

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count if self.count else math.nan


def round_to_three_digits(value: int) -> int:
    """Round a positive number to three significant digits."""
    if value < 1000:
        return value
    step: int = 10 ** (len(str(value)) - 3)
    return (value + step // 2) // step * step


def format_figures(results: WatchResults) -> str:
    """Format minimum, percentiles and maximum, `min 0.38 ms  p50 0.42 ms  …`, without percentiles that need more requests."""
    all_figures = [
        ("min", results.min_ns),
        *((f"p{int(share * 100)}", results.quantile_ns(share)) for share in (0.5, 0.95, 0.99)),
    ]
    known_figures = [(name, ns) for name, ns in all_figures if ns is not None]
    if not known_figures:
        return "no answer yet"
    return "  ".join(f"{name} {format_time(ns)}" for name, ns in [*known_figures, ("max", results.max_ns)])


def render_screen(results: WatchResults, pending_ns: int | None, now_ns: int, width: int, height: int) -> str:
    """Render the live screen: the present state, percentiles, a histogram, outages and slow requests. `pending_ns`: age of the
    unanswered request, if any."""
    latest_ns = results.recent[-1] if results.recent else None
    present_state = "-" if latest_ns is None else format_time(latest_ns)
    if results.outage is not None:
        present_state = results.outage.describe(now_ns)
    elif pending_ns is not None and pending_ns > max(2 * (latest_ns or 0), 100_000_000):
        present_state = f"waiting for {format_time(pending_ns)}"
    lines = [
        *textwrap.wrap(results.title, width, max_lines=1),
        "",
        *_join_if_fits(width, f"now    {present_state:<24}", format_counts(results)),
        f"all    {format_figures(results)}",
        *textwrap.wrap(LEGEND, width, initial_indent=_INDENT, subsequent_indent=_INDENT),
        "",
        *draw_histogram(results, width, max(height - 13, 3)),
        "",
        f"last   {draw_sparkline(results, width - 7)}",
        *results.events(now_ns, "%H:%M:%S", max(height - 20, 2)),
    ]
    lines = [line[:width] for line in lines[: height - 2]]
    return "\n".join([*lines, f"every {format_time(results.interval_ns)}; Ctrl-C ends and prints the summary"[:width]])


_INDENT = " " * 7


def _join_if_fits(width: int, first: str, second: str) -> list[str]:
    """Return two texts on one line, or on two lines if `width` is too small."""
    line = f"{first} {second}"
    return [line] if len(line) <= width else [first.rstrip(), f"{_INDENT}{second}"]


def format_counts(results: WatchResults) -> str:
    return f"{results.count:,} answered, {results.lost:,} lost, {results.skipped:,} skipped"


def draw_histogram(results: WatchResults, width: int, rows: int) -> list[str]:
    """Draw a histogram of latencies, in bins whose width grows by a constant factor, from the smallest to the largest latency."""
    if not results.counts:
        return []
    min_ns, max_ns = min(results.counts), max(results.counts)
    rows = min(rows, 8)
    factor = (max(max_ns, min_ns + 1) / max(min_ns, 1)) ** (1 / rows)
    edges = [max(min_ns, 1) * factor**row for row in range(1, rows)]
    bins = [0] * rows
    for value, count in results.counts.items():
        bins[bisect.bisect_left(edges, value)] += count
    max_count = max(bins)
    bar_width = max(width - 30, 10)
    edge_labels = [format_time(edge) for edge in [*edges, max_ns]]
    label_width = max(map(len, edge_labels))
    return [
        f"<= {edge_label:>{label_width}}  {count:>7,}  {'█' * math.ceil(bar_width * count / max_count)}"
        for edge_label, count in zip(edge_labels, bins, strict=True)
    ]


def draw_sparkline(results: WatchResults, width: int) -> str:
    """Draw the latest latencies as bars; a lost request is a cross."""
    latest = list(results.recent)[-max(width, 1) :]
    longest = max((latency for latency in latest if latency is not None), default=1)
    return "".join("x" if latency is None else _BARS[max(round(8 * latency / longest), 1)] for latency in latest)


def summary_lines(results: WatchResults, now_ns: int) -> Iterator[str]:
    """Yield the lines of the summary, which remain on the screen at the end."""
    yield results.title
    yield f"{results.due:,} requests: {format_counts(results)}."
    if results.lost or results.skipped:
        yield f"({LEGEND})"
    if results.count:
        yield f"{format_figures(results)}  mean {format_time(results.mean_ns)}"
    yield from results.events(now_ns, "%Y-%m-%d %H:%M:%S", 2 * _MAX_KEPT_EVENTS)


def log_line(results: WatchResults, now: Moment) -> str:
    """Format a line for a log: the time of day, the present outage, and the figures so far."""
    outage = f"{results.outage.describe(now.ns)}  " if results.outage is not None else ""
    return f"{now.at:%H:%M:%S}  {outage}{format_counts(results)}  {format_figures(results)}"
