"""Parses and judges limits for scripts and monitoring: `--fail-if 'p95>2ms'`. No I/O.

A limit is crossed only if the complete 95 % interval of the figure is above it, and passed only if no part of the interval is;
otherwise it is undecided. Figures without an interval (min, network, connect, name) are compared directly.
"""

from __future__ import annotations

import difflib
import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from howfar.distance.record import Bounds, Distance, Latencies, Limit, min_count, percentile_interval
from howfar.errors import QuantityError, UsageError
from howfar.units import parse_duration_ns

_EXPRESSION: Final = re.compile(r"\s*([A-Za-z0-9_]+)\s*(>=|<=|>|<)\s*(\S.*?)\s*")
_NORMAL_QUANTILE_95: Final = 1.96
_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
Figure = tuple[float | None, Bounds | None]
"""A value and its 95 % interval; None if not measured, or without an interval."""


@dataclass(frozen=True)
class LimitExpression:
    """A parsed limit: the metric, and the threshold above which it fails."""

    text: str
    metric: str
    threshold_ns: float

    @property
    def min_count(self) -> int:
        """Minimum number of requests with which the limit can be passed."""
        return min_count(_SHARES[self.metric]) if self.metric in _SHARES else 1


def parse_limit(text: str) -> LimitExpression:
    """Parse a limit, before any connection is made. Raises UsageError, for example for an unknown metric."""
    match = _EXPRESSION.fullmatch(text)
    example = "Write for example p95>2ms, connect>50ms or page60>100ms."
    if match is None:
        raise UsageError(f"--fail-if: {text!r} is not METRIC>TIME", example)
    metric, operator, value = match.group(1).lower(), match.group(2), match.group(3)
    if metric not in METRICS:
        close_matches = difflib.get_close_matches(metric, METRICS, 1)
        suggestion = f"Did you mean {close_matches[0]}? " if close_matches else ""
        raise UsageError(f"--fail-if: there is no metric {metric!r}", f"{suggestion}Known: {', '.join(METRICS)}.")
    try:
        threshold = parse_duration_ns(value)
    except QuantityError as error:
        raise UsageError(f"--fail-if: {error.message}", example) from error
    if operator.startswith("<"):
        raise UsageError(
            f"--fail-if: {text.strip()} would fail for a near server, because --fail-if states when to fail",
            f"Write {metric}>{value} to fail if {metric} is above {value}.",
        )
    return LimitExpression(text=text.strip(), metric=metric, threshold_ns=threshold)


def judge(limit: LimitExpression, distance: Distance) -> Limit:
    """Judge a limit by a measurement."""
    value, bounds = METRICS[limit.metric](distance)
    verdict: Literal["crossed", "passed", "undecided"] = "undecided"
    if value is not None:
        low, high = bounds if bounds is not None else (value, value)
        if low is not None and low > limit.threshold_ns:
            verdict = "crossed"
        elif high is not None and high <= limit.threshold_ns:
            verdict = "passed"
    return Limit(expression=limit.text, value_ns=value, interval_ns=bounds, verdict=verdict)


def _percentile_figure(name: str) -> Callable[[Distance], Figure]:
    share = _SHARES[name]

    def read(distance: Distance) -> Figure:
        request = distance.request
        if request is None:
            return None, None
        value: int | None = getattr(request, f"{name}_ns")
        return (None, None) if value is None else (value, percentile_interval(sorted(request.samples_ns), share))

    return read


def _mean_interval(request: Latencies) -> tuple[float, float] | tuple[None, None]:
    """Return the interval of the mean: 1.96 standard errors on each side; (None, None) for a single sample."""
    if request.count < 2:
        return None, None
    margin = _NORMAL_QUANTILE_95 * statistics.stdev(request.samples_ns) / math.sqrt(request.count)
    return request.mean_ns - margin, request.mean_ns + margin


def _mean_figure(distance: Distance) -> Figure:
    request = distance.request
    return (None, None) if request is None else (request.mean_ns, _mean_interval(request))


def _page_figure(requests: int) -> Callable[[Distance], Figure]:
    def read(distance: Distance) -> Figure:
        if distance.request is None:
            return None, None
        bounds = tuple(None if bound is None else bound * requests for bound in _mean_interval(distance.request))
        return distance.request.mean_ns * requests, (bounds[0], bounds[1])

    return read


def _without_interval(read: Callable[[Distance], float | None]) -> Callable[[Distance], Figure]:
    return lambda distance: (read(distance), None)


METRICS: Final[Mapping[str, Callable[[Distance], Figure]]] = {
    "min": _without_interval(lambda distance: None if distance.request is None else distance.request.min_ns),
    **{name: _percentile_figure(name) for name in _SHARES},
    "mean": _mean_figure,
    "network": _without_interval(lambda distance: distance.network_ns),
    "connect": _without_interval(
        lambda distance: (
            distance.connection.took_ns if distance.connection is not None and distance.connection.count else None
        )
    ),
    "name": _without_interval(lambda distance: None if distance.name is None else distance.name.took_ns),
    "page10": _page_figure(10),
    "page60": _page_figure(60),
    "page200": _page_figure(200),
}
"""For each metric, the function that reads its value and interval from a distance."""
