"""A finished load: its percentiles with their bounds, and its verdict. Pure.

A request without an answer has taken at least its age. The engine counts it with that age, so percentiles of `transaction` are
lower bounds; the upper bound sorts every unanswered request after all answered ones.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from hdrh.histogram import HdrHistogram

from howfar.engine.messages import (
    CpuUse,
    Finished,
    Histogram,
    Interval,
    LoadJob,
    Measuring,
    Ready,
    Receipt,
)
from howfar.load.verdict import Verdict, judge

APART = 1.01
"""Bounds further apart than this are not shown as one number."""


@dataclass(frozen=True)
class Distribution:
    """Counts by value, values ascending; `max_ns` is exact."""

    values: tuple[int, ...]
    cumulative: tuple[int, ...]
    max_ns: int

    @property
    def count(self) -> int:
        return self.cumulative[-1] if self.cumulative else 0

    def at(self, share: float) -> int | None:
        """The value that `share` (0..1) of all lie at or below; None when empty."""
        if not self.count:
            return None
        return self.of_rank(max(math.ceil(share * self.count - 1e-9), 1))

    def of_rank(self, rank: int) -> int:
        """The value of the rank-th smallest, from 1."""
        return min(self.values[bisect_left(self.cumulative, rank)], self.max_ns)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(value, count) of each bucket in use."""
        counts = (up_to - before for before, up_to in pairwise((0, *self.cumulative)))
        return tuple(zip(self.values, counts, strict=True))


def distribution(pairs: Sequence[tuple[int, int]], max_ns: int) -> Distribution:
    """From (value, count), values ascending."""
    used = [(value, count) for value, count in pairs if count > 0]
    return Distribution(tuple(value for value, _ in used), tuple(accumulate(count for _, count in used)), max_ns)


def decode(histogram: Histogram) -> Distribution:
    """The engine's histogram. Each bucket stands for its highest value."""
    if not histogram.count:
        return Distribution((), (), histogram.max_ns)
    decoded = HdrHistogram.decode(histogram.data)
    pairs = [
        (int(decoded.get_highest_equivalent_value(decoded.get_value_from_index(index))), int(count))
        for index, count in enumerate(decoded.counts)
        if count
    ]
    return distribution(pairs, histogram.max_ns)


def without(whole: Distribution, part: Distribution) -> Distribution:
    """`whole` less `part`, bucket by bucket: the answered requests."""
    taken = dict(part.pairs())
    return distribution([(value, max(count - taken.get(value, 0), 0)) for value, count in whole.pairs()], whole.max_ns)


@dataclass(frozen=True)
class Bound:
    """A percentile: at least `low_ns`, at most `high_ns`; None: nothing is known above."""

    low_ns: int
    high_ns: int | None

    @property
    def exact(self) -> bool:
        return self.high_ns is not None and self.high_ns <= self.low_ns * APART


def bound(all_requests: Distribution, answered: Distribution, share: float) -> Bound | None:
    """The percentile `share` (0..1) of all requests; None when there was none."""
    low = all_requests.at(share)
    if low is None:
        return None
    rank = max(math.ceil(share * all_requests.count - 1e-9), 1)
    high = answered.of_rank(rank) if rank <= answered.count else None
    return Bound(low, None if high is None else max(high, low))


SHARES: tuple[tuple[str, float], ...] = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999))


@dataclass(frozen=True)
class Latency:
    """One histogram, readable at any percentile."""

    kind: str
    count: int
    min_ns: int
    mean_ns: float
    max_ns: int
    all_requests: Distribution
    answered: Distribution

    def at(self, share: float) -> Bound | None:
        if share >= 1:
            return Bound(self.max_ns, self.max_ns if self.complete else None) if self.count else None
        return bound(self.all_requests, self.answered, share)

    @property
    def complete(self) -> bool:
        """Every request was answered."""
        return self.answered.count == self.all_requests.count


@dataclass(frozen=True)
class Result:
    """A finished load: the request, the session obtained, and the figures."""

    job: LoadJob
    ready: Ready
    measuring: Measuring
    intervals: tuple[Interval, ...]
    finished: Finished
    mismatches: tuple[str, ...]
    """Where requested and obtained session differ; any makes the result void."""
    verdict: Verdict
    transaction: Latency
    service: Latency | None
    """Open loop only; in a closed loop it equals `transaction`."""
    lateness: Latency | None
    """Open loop only: how much later than due a request was sent although a connection was free."""
    statements: tuple[Latency, ...]
    stages: tuple[Latency, ...]
    connect: Latency | None
    in_flight: Latency | None
    """Ages of the transactions in flight when the window ended; in a closed loop no other histogram has them."""

    @property
    def receipt(self) -> Receipt:
        return self.ready.receipt

    @property
    def seconds(self) -> float:
        return self.finished.elapsed_ns / 1e9

    @property
    def open_loop(self) -> bool:
        return self.job.arrivals is not None

    @property
    def ended(self) -> Latency:
        """Of answered transactions, from the first byte sent."""
        return self.transaction if self.service is None else self.service

    @property
    def shown(self) -> tuple[Latency, ...]:
        """Every latency of the machine-readable outputs, in order."""
        named = (self.transaction, self.service, self.lateness, *self.statements, *self.stages, self.connect)
        return tuple(latency for latency in named if latency is not None)

    @property
    def errors(self) -> int:
        return sum(count for code, count in self.finished.errors.items() if code != "disconnect")

    @property
    def client(self) -> CpuUse | None:
        return next((use for use in self.finished.cpu if use.role == "client"), None)

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds > 0 else 0.0


def result_of(
    job: LoadJob,
    ready: Ready,
    measuring: Measuring,
    intervals: tuple[Interval, ...],
    finished: Finished,
    mismatches: tuple[str, ...] = (),
) -> Result:
    """Decode and judge."""
    named = {histogram.kind: _latency(histogram) for histogram in finished.histograms}
    transaction = named.pop("transaction", None) or _empty("transaction")
    if "unanswered" in named:
        unanswered = named.pop("unanswered").all_requests
        transaction = replace(transaction, answered=without(transaction.all_requests, unanswered))
    of_all = {kind: named.pop(kind, None) for kind in ("service", "lateness", "connect", "in_flight")}
    service, in_flight, arrivals = of_all["service"], of_all["in_flight"], job.arrivals
    return Result(
        job=job,
        ready=ready,
        measuring=measuring,
        intervals=intervals,
        finished=finished,
        mismatches=mismatches,
        verdict=judge(
            finished,
            intervals,
            mismatches,
            connections=job.connections,
            lateness_p99_ns=_p(of_all["lateness"], 0.99),
            service_p50_ns=_p(service, 0.5),
            burst=arrivals.burst if arrivals is not None and arrivals.shape == "bursts" else 1,
            answered_p99_ns=_p(transaction if arrivals is None else service, 0.99),
            under_way_max_ns=in_flight.max_ns if in_flight is not None and in_flight.count else None,
        ),
        transaction=transaction,
        statements=tuple(latency for kind, latency in named.items() if not kind.startswith("stage.")),
        stages=tuple(latency for kind, latency in named.items() if kind.startswith("stage.")),
        **of_all,
    )


def _p(latency: Latency | None, share: float) -> int | None:
    at = latency.at(share) if latency is not None else None
    return None if at is None else at.low_ns


def _latency(histogram: Histogram) -> Latency:
    whole = decode(histogram)
    return Latency(
        histogram.kind, histogram.count, histogram.min_ns, histogram.mean_ns, histogram.max_ns, whole, answered=whole
    )


def _empty(kind: str) -> Latency:
    nothing = Distribution((), (), 0)
    return Latency(kind, 0, 0, 0.0, 0, nothing, nothing)
