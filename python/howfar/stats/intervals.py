"""Confidence intervals of ratios, paired by block, and the rule that decides whether a difference is resolved.

The unit of evidence is the block: each arm once, close in time. Seconds within a trial are not independent samples: on a busy
machine, intervals from them declare a difference in a quarter of A/A pairs. Ratios are judged by their logarithms, so that 2 and 1/2
are equally far from 1. Start at `judge_ratio`. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np

from howfar.stats.distributions import sign_test_depth, student_quantile
from howfar.stats.estimate import Estimate


class Resolution(StrEnum):
    """What the interval of a ratio shows, compared with the noise floor."""

    SLOWER = "slower"
    FASTER = "faster"
    NOT_RESOLVED = "not resolved"
    """The interval includes 1, or the effect is smaller than the noise floor. It never means "no difference"."""
    BASELINE = "baseline"

    @property
    def is_difference(self) -> bool:
        return self in (Resolution.SLOWER, Resolution.FASTER)


CONFIDENCE_LEVEL = 0.95
"""Confidence of every interval in this program."""

MIN_BLOCKS = 4
"""Minimum number of blocks for an interval: Student's limits of two or three values depend entirely on the assumption of
normal errors (the quantile for two is 12.7), and two blocks that agree by chance look like certainty."""

MIN_RANK_BLOCKS = 6
"""Minimum number of blocks for signed-rank limits: with fewer, even the full range covers only 1 - 2/2^n, less than 95 %."""

MAX_BLOCKS = 100_000
"""Number of blocks beyond which `blocks_needed` returns None."""


@dataclass(frozen=True)
class RatioJudgement:
    """The judged ratio of two arms: the estimate that is reported, and both estimates that it is chosen from."""

    reported: Estimate
    """The t estimate, or the rank estimate if the two disagree."""
    mean: Estimate
    """exp(mean of log ratios), Student's t limits (n >= 4)."""
    rank: Estimate
    """exp(Hodges-Lehmann), exact signed-rank limits (n >= 6)."""
    sd_log: float | None
    """Standard deviation of the blocks' log ratios, which decides how many blocks are needed."""

    @property
    def is_contaminated(self) -> bool:
        """Whether the two estimates disagree."""
        return self.reported.method == "rank"

    @property
    def blocks(self) -> int:
        return self.reported.n or 0


@lru_cache(maxsize=256)
def t_quantile(degrees: int, level: float = CONFIDENCE_LEVEL) -> float:
    """Two-sided quantile of Student's t: `t_quantile(7)` is 2.365."""
    return student_quantile(degrees, level)


def mean_interval(values: Sequence[float], level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Arithmetic mean with its t interval, in the unit of `values` (at least one); with fewer than `MIN_BLOCKS` values, the
    estimate has these values instead."""
    sample = np.asarray(values, dtype=np.float64)
    assert sample.size >= 1, "a mean needs a value"
    mean = float(sample.mean())
    if sample.size < MIN_BLOCKS:
        points = tuple(float(value) for value in sample)
        return Estimate(value=mean, low=None, high=None, n=len(points), method="mean", points=points)
    half_width = t_quantile(sample.size - 1, level) * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    return Estimate(value=mean, low=mean - half_width, high=mean + half_width, n=int(sample.size), method="mean")


def mean_of_counts(values: Sequence[float]) -> Estimate:
    """The mean of values that are never negative, such as counts or durations."""
    estimate = mean_interval(values)
    return estimate if estimate.low is None else estimate.model_copy(update={"low": max(0.0, estimate.low)})


def median_interval(values: Sequence[float], level: float = CONFIDENCE_LEVEL) -> Estimate:
    """The median, with values of the sample as its limits: they are valid for any distribution and within the sample's range. Fewer
    than 6 values give no interval."""
    sample = np.sort(np.asarray(values, dtype=np.float64))
    assert sample.size >= 1, "a median needs a value"
    depth = sign_test_depth(int(sample.size), level)
    low, high = (None, None) if depth is None else (float(sample[depth]), float(sample[-1 - depth]))
    return Estimate(value=float(np.median(sample)), low=low, high=high, n=int(sample.size))


@lru_cache(maxsize=256)
def signed_rank_depth(n: int, level: float = CONFIDENCE_LEVEL) -> int | None:
    """Number of Walsh averages to leave out at each end for signed-rank limits of at least `level`. None if n is too small.

    The null distribution of the signed-rank sum is counted exactly: the number of subsets of {1..n} with each sum.
    `signed_rank_depth(8)` is 3: the limits are the 4th smallest and 4th largest averages, coverage 96.1 %.
    """
    # The counts of all sums, each at most 2^n, are the digits of one integer; half of them suffice, as they are symmetric.
    digit_bytes, sum_count = n // 8 + 1, n * (n + 1) // 4 + 1
    mask = (1 << 8 * digit_bytes * sum_count) - 1
    counts = 1
    for rank in range(1, n + 1):
        counts += counts << 8 * digit_bytes * rank & mask
    digits = counts.to_bytes(digit_bytes * sum_count, "little")
    tail, depth = 0, None
    for total in range(sum_count):
        tail += int.from_bytes(digits[total * digit_bytes : (total + 1) * digit_bytes], "little")
        if 2 * tail / 2**n > 1 - level:
            break
        depth = total
    return depth


def hodges_lehmann(values: Sequence[float], level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Median of the pairwise (Walsh) averages, with exact signed-rank limits where n allows them."""
    sample = np.asarray(values, dtype=np.float64)
    assert sample.size >= 1, "an estimate needs a value"
    first, second = np.triu_indices(sample.size)
    walsh = np.sort((sample[first] + sample[second]) / 2)
    depth = signed_rank_depth(int(sample.size), level) if sample.size >= MIN_RANK_BLOCKS else None
    median = float(walsh[(walsh.size - 1) // 2] + walsh[walsh.size // 2]) / 2
    if depth is None:
        return Estimate(value=median, low=None, high=None, n=int(sample.size), method="rank")
    low, high = float(walsh[depth]), float(walsh[-1 - depth])
    return Estimate(value=median, low=low, high=high, n=int(sample.size), method="rank")


_ROUNDING = 1e-12
"""Rounding error allowed in a logarithm, so that an interval includes a value that equals its limit."""


def _is_outside(value: float, interval: Estimate) -> bool:
    if interval.low is None or interval.high is None:
        return False
    return not interval.low - _ROUNDING <= value <= interval.high + _ROUNDING


def exponential(estimate: Estimate) -> Estimate:
    """The exponential of an estimate of logarithms."""
    low = None if estimate.low is None else math.exp(estimate.low)
    high = None if estimate.high is None else math.exp(estimate.high)
    points = tuple(math.exp(point) for point in estimate.points)
    return estimate.model_copy(update={"value": math.exp(estimate.value), "low": low, "high": high, "points": points})


def judge_ratio(block_ratios: Sequence[float]) -> RatioJudgement:
    """Judge the ratio of one arm to another from one ratio per block, each > 0.

    The t estimate is reported unless it disagrees with the rank estimate (either estimate outside the other's interval, or only
    one interval includes 1). Then the blocks are called contaminated and the rank estimate is reported: a few disturbed blocks
    change a mean, but hardly a median. So from 6 blocks on, the exact rank test alone decides whether a difference is declared.
    That happens in at most 5 % of A/A experiments, whatever the noise (3.9 % at 8 blocks).
    """
    return _judge_ratio_cached(tuple(block_ratios))


@lru_cache(maxsize=4096)
def _judge_ratio_cached(block_ratios: tuple[float, ...]) -> RatioJudgement:
    """Cached, because the stop rule judges all arms after every trial, although only one of them has a new ratio."""
    logs = [math.log(ratio) for ratio in block_ratios]
    mean, rank = mean_interval(logs), hodges_lehmann(logs)
    is_contaminated = rank.low is not None and (
        _is_outside(mean.value, rank)
        or _is_outside(rank.value, mean)
        or _is_outside(0.0, mean) != _is_outside(0.0, rank)
    )
    sd = float(np.std(logs, ddof=1)) if len(logs) > 1 else None
    return RatioJudgement(
        reported=exponential(rank if is_contaminated else mean),
        mean=exponential(mean),
        rank=exponential(rank),
        sd_log=sd,
    )


def half_width(ratio: Estimate) -> float | None:
    """Half the width of a ratio's interval, as a share: 0.02 is "within 2 %". None without an interval.

    It is computed from logarithms as exp(half) - 1, so that it can be compared with a target in percent.
    """
    if ratio.low is None or ratio.high is None:
        return None
    return math.expm1((math.log(ratio.high) - math.log(ratio.low)) / 2)


NARROW_WIDTH = 0.02
"""Width of an interval below which two decimals would show hardly more than one number."""


def interval_text(estimate: Estimate) -> str:
    """A value with its interval, `0.78 [0.76, 0.80]`. Three decimals if two would hide the interval, leave one digit, or show a
    limit as 0.

    With too few blocks for an interval, their values in ascending order: `0.78 (0.75, 0.81)`.
    """
    low, high = estimate.low, estimate.high
    if len(estimate.points) > 1:
        low, high = min(estimate.points), max(estimate.points)
    is_narrow = low is not None and high is not None and high - low < NARROW_WIDTH and estimate.value < 1.1
    digits = 3 if is_narrow or estimate.value < 0.1 or (low is not None and low < 0.01) else 2
    if low is None or high is None:
        return f"{estimate.value:.{digits}f} (no interval)"
    if estimate.low is None:
        points = ", ".join(f"{point:.{digits}f}" for point in sorted(estimate.points))
        return f"{estimate.value:.{digits}f} ({points})"
    return f"{estimate.value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def limits_text(estimate: Estimate, format_value: Callable[[float], str]) -> str:
    """The limits as text, `[0.1, 0.3]`; empty without an interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{format_value(estimate.low)}, {format_value(estimate.high)}]"


def estimate_text(estimate: Estimate, format_value: Callable[[float], str], if_missing: str = "") -> str:
    """An estimate as text, `0.2 [0.1, 0.3]`. `if_missing`: text in place of a missing interval."""
    return f"{format_value(estimate.value)} {limits_text(estimate, format_value) or if_missing}".rstrip()


def share_text(share: float) -> str:
    """A share as text, `1.7 %`; above 100 % only `> 100 %`, because more digits would suggest a precision that does not exist."""
    return "> 100 %" if share > 1 else f"{share * 100:.1f} %"


_MIN_FLOOR_AS_FACTOR = 0.25
"""Noise floor from which it is shown as a factor. 64 % is a factor of 1.64 up or down; half the speed, "-50 %", exceeds it."""


def noise_floor_text(floor: float) -> str:
    """A noise floor as text, `1.7 %` or `a factor of 1.64`."""
    return share_text(floor) if floor < _MIN_FLOOR_AS_FACTOR else f"a factor of {1 + floor:.3g}"


def half_width_text(width: float) -> str:
    """The result of `half_width` as text: `±1.7 %`, `> ±100 %`."""
    return "> ±100 %" if width > 1 else f"±{width * 100:.1f} %"


def excludes_one(ratio: Estimate) -> bool:
    """Whether the interval exists and does not include 1."""
    return _is_outside(1.0, ratio)


def excludes_zero(difference: Estimate) -> bool:
    """Whether the interval exists and does not include 0."""
    return _is_outside(0.0, difference)


def are_disjoint(left: Estimate, right: Estimate) -> bool | None:
    """Whether two intervals have no value in common. None if either does not exist."""
    if left.low is None or left.high is None or right.low is None or right.high is None:
        return None
    return left.high < right.low or right.high < left.low


def noise_floor(aa_ratio: Estimate) -> float | None:
    """Size of the smallest effect that a run can distinguish from noise, as a share. None without an interval.

    It is the limit of the A/A arm's ratio that is farther from 1, so that it includes an offset between two equal arms.
    """
    if aa_ratio.low is None or aa_ratio.high is None:
        return None
    return math.expm1(max(abs(math.log(aa_ratio.low)), abs(math.log(aa_ratio.high))))


MAX_FALSE_CLAIMS = 1 - CONFIDENCE_LEVEL
"""Maximum probability of one or more false claims in a run without any true difference, whatever the number of its claims."""


@dataclass(frozen=True)
class Threshold:
    """The threshold that a ratio must exceed before it is called different from 1."""

    floor: float | None
    """The noise floor. None if unknown; then nothing is resolved."""
    comparisons: int = 1
    """Number of comparisons in the run. A difference is claimed only if its interval at 1 - MAX_FALSE_CLAIMS / comparisons also
    excludes 1 (Bonferroni; Dunn 1961)."""

    def resolve(self, ratio: Estimate | None) -> Resolution:
        """Classify a ratio. Nothing is resolved without an interval."""
        if ratio is None or ratio.low is None or ratio.high is None or self.floor is None:
            return Resolution.NOT_RESOLVED
        if not excludes_one(simultaneous(ratio, self.comparisons)) or abs(math.log(ratio.value)) < math.log1p(
            self.floor
        ):
            return Resolution.NOT_RESOLVED
        return Resolution.FASTER if ratio.value > 1 else Resolution.SLOWER


def simultaneous(ratio: Estimate, comparisons: int) -> Estimate:
    """The interval of a ratio at 1 - MAX_FALSE_CLAIMS / comparisons. It is widened in proportion to Student's quantile, also for
    signed ranks, whose exact limits do not exist at such a level for few blocks."""
    if ratio.low is None or ratio.high is None or ratio.n is None or comparisons <= 1:
        return ratio
    widening = t_quantile(ratio.n - 1, 1 - MAX_FALSE_CLAIMS / comparisons) / t_quantile(ratio.n - 1)
    low, high = (ratio.value * (limit / ratio.value) ** widening for limit in (ratio.low, ratio.high))
    return ratio.model_copy(update={"low": low, "high": high})


def blocks_needed(sd_log: float, target: float, level: float = CONFIDENCE_LEVEL) -> int | None:
    """Number of blocks until the t interval's half-width is `target` (0.02: 2 %) at this scatter; at least 6. None if more than
    `MAX_BLOCKS`."""
    assert target > 0, "a target width is positive"
    log_target = math.log1p(target)

    def is_reached(n: int) -> bool:
        return t_quantile(n - 1, level) * sd_log / math.sqrt(n) <= log_target

    low, high = MIN_RANK_BLOCKS, MIN_RANK_BLOCKS
    while not is_reached(high):
        low, high = high, high * 2
        if high > MAX_BLOCKS:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_reached(middle) else (middle + 1, high)
    return high


def welch_ratio(log_a: Sequence[float], log_b: Sequence[float]) -> Estimate:
    """exp(mean a - mean b) of logarithms from two separate runs, with Welch's t interval; for values that cannot be paired."""
    a, b = np.asarray(log_a, dtype=np.float64), np.asarray(log_b, dtype=np.float64)
    difference = float(a.mean() - b.mean())
    estimate = Estimate(value=difference, low=None, high=None, n=int(min(a.size, b.size)), method="Welch")
    if min(a.size, b.size) < MIN_BLOCKS:
        return exponential(estimate)
    variance_a, variance_b = float(a.var(ddof=1)) / a.size, float(b.var(ddof=1)) / b.size
    variance, half_width = variance_a + variance_b, 0.0
    if variance > 0:
        degrees = variance**2 / (variance_a**2 / (a.size - 1) + variance_b**2 / (b.size - 1))
        half_width = student_quantile(degrees, CONFIDENCE_LEVEL) * math.sqrt(variance)
    return exponential(estimate.model_copy(update={"low": difference - half_width, "high": difference + half_width}))
