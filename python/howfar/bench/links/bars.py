"""The bars of the link, that is the limits that its figures must meet, and whether a measurement meets them. No I/O.

A bar is judged by the median of the runs; whether the best run meets it is also reported, but does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from howfar.stats.estimate import Described

GOODPUT_WITHIN: Final = 0.005
GOODPUT_RTT_MAX_MS: Final = 10.0
LONG_FAT_SHARE: Final = 0.97
LONG_FAT: Final = (85.0, 10.0)
"""The one link with a longer RTT that has a goodput bar: ms and Gb/s."""
LONG_FAT_AFTER_NS: Final = 5_000_000_000
"""Warm-up before the window of the long link, instead of the usual one."""
CPU_MAX: Final = 0.08
CPU_RATE_GBIT: Final = 10.0
UNLIMITED_GBIT: Final = {"packet": 12.0}
REDIS_SHARE: Final = 0.80
CHANCE: Final = 0.01
"""Probability that a correct link lies outside the interval of a random figure."""


class Verdict(Described):
    """One bar. `median` and `best` are in its unit; `median` is the worst run for drops, and all runs together for loss and jitter."""

    bar: str
    limit: str
    median: float
    best: float
    met: bool
    """Whether the median meets the bar."""
    met_at_best: bool


def _judge(bar: str, limit: str, value: float, best: float, is_met: Callable[[float], bool]) -> Verdict:
    return Verdict(bar=bar, limit=limit, median=value, best=best, met=is_met(value), met_at_best=is_met(best))


def _check_maximum(bar: str, limit: str, maximum: float, values: Sequence[float]) -> Verdict:
    return _judge(bar, limit, median(values), min(values), lambda value: value <= maximum)


def _check_minimum(bar: str, limit: str, minimum: float, values: Sequence[float]) -> Verdict:
    return _judge(bar, limit, median(values), max(values), lambda value: value >= minimum)


def judge_link(
    rtt_ms: float,
    rate_gbit: float | None,
    *,
    rest_rtt_ms: float,
    rtt_p50_ms: Sequence[float],
    rtt_p99_ms: Sequence[float],
    goodput_share: Sequence[float],
    cpu_core_per_gbit: Sequence[float],
    drops: Sequence[int],
    privileged: bool,
) -> tuple[Verdict, ...]:
    """The bars for such a link, each with the figures of its runs. `rest_rtt_ms`: the expected time of a ping."""
    error_us, share = (10.0, 0.01) if privileged else (20.0, 0.02)
    excess_us = 50.0 if privileged else 250.0
    verdicts = [
        _check_maximum(
            "RTT p50 error, µs",
            f"at most max({error_us:.0f} µs, {share:.0%})",
            max(error_us, share * rtt_ms * 1e3),
            [abs(p50 - rest_rtt_ms) * 1e3 for p50 in rtt_p50_ms],
        ),
        _check_maximum(
            "RTT p99 excess, µs",
            f"at most {excess_us:.0f} µs",
            excess_us,
            [max(p99 - rest_rtt_ms, 0.0) * 1e3 for p99 in rtt_p99_ms],
        ),
    ]
    if rate_gbit is not None and goodput_share and rtt_ms <= GOODPUT_RTT_MAX_MS:
        deviations = [abs(share_of_rate - 1) * 100 for share_of_rate in goodput_share]
        verdicts.append(
            _check_maximum("goodput off, %", f"within {GOODPUT_WITHIN:.1%}", GOODPUT_WITHIN * 100, deviations)
        )
    if (rtt_ms, rate_gbit) == LONG_FAT and goodput_share:
        percentages = [share_of_rate * 100 for share_of_rate in goodput_share]
        verdicts.append(
            _check_minimum("goodput, %", f"at least {LONG_FAT_SHARE:.0%} after 5 s", LONG_FAT_SHARE * 100, percentages)
        )
    if rate_gbit == CPU_RATE_GBIT and cpu_core_per_gbit:
        verdicts.append(_check_maximum("CPU, core per Gb/s", f"at most {CPU_MAX}", CPU_MAX, cpu_core_per_gbit))
    return (*verdicts, *judge_drops(drops))


def judge_drops(drops: Sequence[int]) -> tuple[Verdict, ...]:
    """The bar for drops: one drop in one run is one too many, so the worst run counts. Without counts nothing is judged."""
    if not drops:
        return ()
    return (_judge("unmodelled drops", "0", float(max(drops)), float(min(drops)), lambda worst: worst == 0),)


def judge_unlimited(backend: str, gbit: Sequence[float]) -> tuple[Verdict, ...]:
    """The bar for one stream over an unshaped link."""
    minimum = UNLIMITED_GBIT.get(backend)
    if minimum is None:
        return ()
    return (_check_minimum("unlimited, one stream, Gb/s", f"at least {minimum:.0f} Gb/s", minimum, gbit),)


def judge_redis(share: Sequence[float]) -> tuple[Verdict, ...]:
    """The bar for small requests over many connections, relative to a bare cable in the same run."""
    percentages = [value * 100 for value in share]
    return (_check_minimum("redis GET, % of bare veth", f"at least {REDIS_SHARE:.0%}", REDIS_SHARE * 100, percentages),)


def judge_hogs(lateness_us: Sequence[float], privileged: bool) -> tuple[Verdict, ...]:
    """The bar for lateness while other programs occupy every CPU."""
    maximum = 25.0 if privileged else 200.0
    return (_check_maximum("lateness p99.9 beside CPU hogs, µs", f"at most {maximum:.0f} µs", maximum, lateness_us),)


def judge_loss(lost: Sequence[int], sent_counts: Sequence[int], expected: float) -> tuple[Verdict, ...]:
    """The bar for loss, over all runs together: each has its own seed, so their draws are independent."""
    from scipy.stats import binom  # slow to import, and needed only at the end

    def judge_counts(count: int, sent: int) -> tuple[float, float, bool]:
        low, high = binom.interval(1 - CHANCE, sent, expected)
        return float(low) / sent * 100, float(high) / sent * 100, bool(low <= count <= high)

    if not sent_counts or min(sent_counts) < 1:
        return ()
    low, high, met = judge_counts(sum(lost), sum(sent_counts))
    best_lost, best_sent = min(zip(lost, sent_counts, strict=True), key=lambda run: abs(run[0] / run[1] - expected))
    return (
        Verdict(
            bar="loss, %",
            limit=f"{low:.2f} to {high:.2f} (99 % interval of {expected:.0%})",
            median=sum(lost) / sum(sent_counts) * 100,
            best=best_lost / best_sent * 100,
            met=met,
            met_at_best=judge_counts(best_lost, best_sent)[2],
        ),
    )


def judge_jitter(deviations_ms: Sequence[float], sent_counts: Sequence[int], expected_ms: float) -> tuple[Verdict, ...]:
    """The bar for jitter: the standard deviation of all runs together, each about its own mean."""
    from scipy.stats import chi2

    def limits(degrees: int) -> tuple[float, float]:
        low, high = chi2.interval(1 - CHANCE, degrees)
        return expected_ms * (float(low) / degrees) ** 0.5, expected_ms * (float(high) / degrees) ** 0.5

    if not sent_counts or min(sent_counts) < 2:
        return ()
    degrees = sum(sent_counts) - len(sent_counts)
    pooled_deviation = (
        sum(deviation**2 * (count - 1) for deviation, count in zip(deviations_ms, sent_counts, strict=True)) / degrees
    ) ** 0.5
    best, best_count = min(zip(deviations_ms, sent_counts, strict=True), key=lambda run: abs(run[0] - expected_ms))
    (low, high), (best_low, best_high) = limits(degrees), limits(best_count - 1)
    return (
        Verdict(
            bar="jitter, ms",
            limit=f"{low:.3f} to {high:.3f} (99 % interval of {expected_ms:g})",
            median=pooled_deviation,
            best=best,
            met=low <= pooled_deviation <= high,
            met_at_best=best_low <= best <= best_high,
        ),
    )
