"""What every report needs of a finished load, reckoned once. Pure: job, receipt and result in, a frozen value out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from howfar.engine.messages import CpuUse, Finished, Histogram, Interval, LoadJob, Measuring, Ready, Receipt
from howfar.load.distribution import Bound, Distribution, bound, decode, without
from howfar.load.verdict import Verdict, judge

SHARES: tuple[tuple[str, float], ...] = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999))
_OF_ALL = ("transaction", "service", "unanswered", "lateness", "connect", "in_flight")
"""Histograms that are of no statement; those of stages begin with `stage.`."""


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
    """A load that ended: what was asked, what was obtained, what came of it."""

    job: LoadJob
    ready: Ready
    measuring: Measuring
    intervals: tuple[Interval, ...]
    finished: Finished
    mismatches: tuple[str, ...]
    """Where asked and obtained differ; any makes the result void."""
    verdict: Verdict
    transaction: Latency
    service: Latency | None
    """Open loop only; in a closed loop the two are the same."""
    lateness: Latency | None
    """Open loop only: how much later than due, with a connection free, a request was sent."""
    statements: tuple[Latency, ...]
    stages: tuple[Latency, ...]
    connect: Latency | None
    in_flight: Latency | None
    """Ages of the transactions under way when the window ended; no latencies, and in a closed loop in nothing else."""

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
        """From the first byte sent: of what was answered."""
        return self.transaction if self.service is None else self.service

    @property
    def shown(self) -> tuple[Latency, ...]:
        """Every latency that outputs for programs have, in one order."""
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
    by_kind = {histogram.kind: histogram for histogram in finished.histograms}
    unanswered = decode(by_kind["unanswered"]) if "unanswered" in by_kind else None
    named = {
        kind: _latency(histogram) for kind, histogram in by_kind.items() if kind not in ("transaction", "unanswered")
    }
    transaction = _latency(by_kind.get("transaction") or _empty("transaction"), unanswered)
    lateness = named.get("lateness")
    service = named.get("service")
    in_flight = named.get("in_flight")
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
            lateness_p99_ns=_p(lateness, 0.99),
            service_p50_ns=_p(service, 0.5),
            burst=job.arrivals.burst if job.arrivals is not None and job.arrivals.shape == "bursts" else 1,
            answered_p99_ns=_p(service if job.arrivals is not None else transaction, 0.99),
            under_way_max_ns=in_flight.max_ns if in_flight is not None and in_flight.count else None,
        ),
        transaction=transaction,
        service=service,
        lateness=lateness,
        statements=tuple(
            latency for kind, latency in named.items() if kind not in _OF_ALL and not kind.startswith("stage.")
        ),
        stages=tuple(latency for kind, latency in named.items() if kind.startswith("stage.")),
        connect=named.get("connect"),
        in_flight=in_flight,
    )


def _p(latency: Latency | None, share: float) -> int | None:
    at = latency.at(share) if latency is not None else None
    return None if at is None else at.low_ns


def _latency(histogram: Histogram, unanswered: Distribution | None = None) -> Latency:
    whole = decode(histogram)
    return Latency(
        kind=histogram.kind,
        count=histogram.count,
        min_ns=histogram.min_ns,
        mean_ns=histogram.mean_ns,
        max_ns=histogram.max_ns,
        all_requests=whole,
        answered=whole if unanswered is None else without(whole, unanswered),
    )


def _empty(kind: str) -> Histogram:
    zeros: dict[str, Any] = dict.fromkeys(("count", "min_ns", "mean_ns", "p50_ns", "p95_ns", "p99_ns", "max_ns"), 0)
    return Histogram(kind=kind, data="", **zeros)
