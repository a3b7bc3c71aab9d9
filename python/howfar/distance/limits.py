"""Limits for scripts and monitoring: `--fail-if 'p95>2ms'`. Pure.

A limit is crossed only if the whole 95 % interval of the figure is beyond it; with an interval on both sides it is undecided.
"""

from __future__ import annotations

import difflib
import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from howfar.distance.record import Distance, Latencies, Limit, interval
from howfar.errors import QuantityError, UsageError
from howfar.units import parse_duration_ns

_EXPRESSION: Final = re.compile(r"\s*([A-Za-z0-9_]+)\s*(>=|<=|>|<)\s*(\S.*?)\s*")
_Z: Final = 1.96
Figure = tuple[float | None, tuple[float, float] | None]
"""A value and its 95 % interval; None: not measured, or without one."""


@dataclass(frozen=True)
class LimitExpression:
    """A parsed limit: the metric, on which side of the threshold it fails, and the threshold."""

    text: str
    metric: str
    above: bool
    threshold_ns: float


def parse_limit(text: str) -> LimitExpression:
    """Raises UsageError for a metric that is not known, before anything is connected to."""
    found = _EXPRESSION.fullmatch(text)
    example = "Write for example p95>2ms, connect>50ms or page60>100ms."
    if found is None:
        raise UsageError(f"--fail-if: {text!r} is not METRIC>TIME", example)
    metric, sign, value = found.group(1).lower(), found.group(2), found.group(3)
    if metric not in METRICS:
        near = difflib.get_close_matches(metric, METRICS, 1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(f"--fail-if: {metric!r} is no metric", f"{meant}Known: {', '.join(METRICS)}.")
    try:
        threshold = parse_duration_ns(value)
    except QuantityError as error:
        raise UsageError(f"--fail-if: {error.message}", example) from error
    return LimitExpression(text=text.strip(), metric=metric, above=sign.startswith(">"), threshold_ns=threshold)


def judge(limit: LimitExpression, distance: Distance) -> Limit:
    """What the measurement says about a limit."""
    value, bounds = METRICS[limit.metric](distance)
    verdict: Literal["crossed", "kept", "undecided"]
    if value is None:
        verdict = "undecided"
    else:
        low, high = bounds if bounds is not None else (value, value)
        beyond = [edge > limit.threshold_ns if limit.above else edge < limit.threshold_ns for edge in (low, high)]
        verdict = "crossed" if all(beyond) else "undecided" if any(beyond) else "kept"
    return Limit(expression=limit.text, value_ns=value, interval_ns=bounds, verdict=verdict)


def _percentile(share: float) -> Callable[[Distance], Figure]:
    def read(distance: Distance) -> Figure:
        request = distance.request
        if request is None:
            return None, None
        value = {0.5: request.p50_ns, 0.95: request.p95_ns, 0.99: request.p99_ns}[share]
        bounds = interval(sorted(request.samples_ns), share)
        return (value, bounds) if value is not None and bounds is not None else (None, None)

    return read


def _mean(request: Latencies) -> tuple[float, float]:
    """Standard error of the mean, times 1.96; of one sample, everything."""
    if request.count < 2:
        return -math.inf, math.inf
    half = _Z * statistics.stdev(request.samples_ns) / math.sqrt(request.count)
    return request.mean_ns - half, request.mean_ns + half


def _mean_figure(distance: Distance) -> Figure:
    request = distance.request
    return (None, None) if request is None else (request.mean_ns, _mean(request))


def _page(requests: int) -> Callable[[Distance], Figure]:
    def read(distance: Distance) -> Figure:
        if distance.request is None:
            return None, None
        low, high = _mean(distance.request)
        return distance.request.mean_ns * requests, (low * requests, high * requests)

    return read


def _plain(read: Callable[[Distance], float | None]) -> Callable[[Distance], Figure]:
    return lambda distance: (read(distance), None)


METRICS: Final[Mapping[str, Callable[[Distance], Figure]]] = {
    "min": _plain(lambda one: None if one.request is None else one.request.min_ns),
    "p50": _percentile(0.5),
    "p95": _percentile(0.95),
    "p99": _percentile(0.99),
    "mean": _mean_figure,
    "network": _plain(lambda one: one.network_ns),
    "connect": _plain(lambda one: None if one.connection is None else one.connection.took_ns),
    "name": _plain(lambda one: None if one.name is None else one.name.took_ns),
    "page10": _page(10),
    "page60": _page(60),
    "page200": _page(200),
}
"""Metrics by name: how each is read, with its interval where it has one."""
