"""A server that is asked again and again, on a schedule: what came of each request, and the live screen of it. Pure.

Latency counts from the moment at which a request was due: a request that waits for a slow one before it is slow, too.
"""

from __future__ import annotations

import bisect
import math
import textwrap
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from howfar.distance.screen import shown

LEAST_INTERVAL_NS = 10_000_000
"""At most 100 requests a second."""
_KEPT_EVENTS = 5
_RECENT = 600
_BARS = " ▁▂▃▄▅▆▇█"
_SLOW_FACTOR = 3.0
_SLOW_LEAST = 20
"""Samples before a request can be called slow: three times the median."""


@dataclass(frozen=True)
class Event:
    """A request that was lost, or slow, and when."""

    at: datetime
    says: str


@dataclass
class Watched:
    """Everything that a watch has seen; its memory does not grow with its length."""

    title: str
    interval_ns: int
    counts: Counter[int] = field(default_factory=Counter)
    """Latencies by value, rounded to three significant digits."""
    recent: deque[int | None] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """The latest latencies, in their order; None: lost."""
    total_ns: int = 0
    min_ns: int | None = None
    max_ns: int = 0
    lost: int = 0
    skipped: int = 0
    """Requests that were due while one before them was under way, or while there was no connection, and were not sent."""
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_KEPT_EVENTS))

    @property
    def count(self) -> int:
        return self.counts.total()

    def answered(self, latency_ns: int, at: datetime) -> None:
        """A request was answered so long after it was due."""
        if self.count >= _SLOW_LEAST and latency_ns > _SLOW_FACTOR * (self.quantile_ns(0.5) or latency_ns):
            self.events.append(Event(at, f"slow: {shown(latency_ns)}"))
        self.counts[rounded(latency_ns)] += 1
        self.recent.append(latency_ns)
        self.total_ns += latency_ns
        self.min_ns = latency_ns if self.min_ns is None else min(self.min_ns, latency_ns)
        self.max_ns = max(self.max_ns, latency_ns)

    def was_lost(self, why: str, at: datetime) -> None:
        """A request, or a connection, got no answer."""
        self.lost += 1
        self.recent.append(None)
        self.events.append(Event(at, f"lost: {why}"))

    def not_reconnected(self, why: str, at: datetime) -> None:
        """The connection could not be opened again; no request was sent."""
        self.events.append(Event(at, f"no connection: {why}"))

    def quantile_ns(self, share: float) -> int | None:
        """A percentile, where at least three samples lie beyond it."""
        if self.count * min(share, 1 - share) < 3 * (1 - 1e-9):
            return None
        left = math.ceil(share * self.count)
        for value in sorted(self.counts):
            left -= self.counts[value]
            if left <= 0:
                return value
        raise AssertionError("the counts add up")

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count if self.count else math.nan


def rounded(value: int) -> int:
    """A positive number with three significant digits."""
    if value < 1000:
        return value
    step: int = 10 ** (len(str(value)) - 3)
    return (value + step // 2) // step * step


def figures(watched: Watched) -> str:
    """`min 0.38  p50 0.42  p95 0.51 ms`, as far as the number of requests supports it."""
    known = [("min", watched.min_ns), *((f"p{int(q * 100)}", watched.quantile_ns(q)) for q in (0.5, 0.95, 0.99))]
    named = [(name, ns) for name, ns in known if ns is not None]
    if not named:
        return "no answer yet"
    return "  ".join(f"{name} {shown(ns)}" for name, ns in [*named, ("max", watched.max_ns)])


def frame(watched: Watched, pending_ns: int | None, width: int, height: int) -> str:
    """The live screen: now, percentiles, a histogram, lost and slow requests. `pending_ns`: age of the request under way."""
    latest = watched.recent[-1] if watched.recent else None
    now = "-" if latest is None else shown(latest)
    if pending_ns is not None and pending_ns > max(2 * (latest or 0), 100_000_000):
        now = f"waiting for {shown(pending_ns)}"
    lines = [
        *textwrap.wrap(watched.title, width, max_lines=1),
        "",
        f"now    {now:<24} {watched.count:,} answered, {watched.lost:,} lost, {watched.skipped:,} skipped",
        f"all    {figures(watched)}",
        "",
        *histogram(watched, width, max(height - 12, 3)),
        "",
        f"last   {sparkline(watched, width - 7)}",
        *[f"{event.at:%H:%M:%S}  {event.says}" for event in watched.events][-max(height - 20, 2) :],
    ]
    lines = [line[:width] for line in lines[: height - 2]]
    return "\n".join([*lines, f"every {shown(watched.interval_ns)}; Ctrl-C ends and prints the summary"[:width]])


def histogram(watched: Watched, width: int, rows: int) -> list[str]:
    """Latencies in bins that grow by a constant factor, from the smallest to the largest."""
    if not watched.counts:
        return []
    low, high = min(watched.counts), max(watched.counts)
    rows = min(rows, 8)
    factor = (max(high, low + 1) / max(low, 1)) ** (1 / rows)
    edges = [max(low, 1) * factor**row for row in range(1, rows)]
    bins = [0] * rows
    for value, count in watched.counts.items():
        bins[bisect.bisect_left(edges, value)] += count
    most = max(bins)
    room = max(width - 30, 10)
    names = [shown(edge) for edge in [*edges, high]]
    size = max(map(len, names))
    return [
        f"<= {name:>{size}}  {count:>7,}  {'█' * math.ceil(room * count / most)}"
        for name, count in zip(names, bins, strict=True)
    ]


def sparkline(watched: Watched, width: int) -> str:
    """The latest latencies as bars; a lost one is a cross."""
    latest = list(watched.recent)[-max(width, 1) :]
    most = max((one for one in latest if one is not None), default=1)
    return "".join("x" if one is None else _BARS[max(round(8 * one / most), 1)] for one in latest)


def summary(watched: Watched) -> Iterator[str]:
    """What remains on the screen."""
    yield watched.title
    yield f"{watched.count:,} requests answered, {watched.lost:,} lost, {watched.skipped:,} skipped."
    if watched.count:
        yield f"{figures(watched)}  mean {shown(watched.mean_ns)}"
    for event in watched.events:
        yield f"{event.at:%Y-%m-%d %H:%M:%S}  {event.says}"


def window_line(watched: Watched, at: datetime) -> str:
    """One line for a log: the time of day, and the figures so far."""
    return f"{at:%H:%M:%S}  {watched.count:,} answered, {watched.lost:,} lost  {figures(watched)}"
