"""Search for the highest rate that meets a goal such as `p99<5ms`: which rate to try next, and when to stop. No I/O.

The rate doubles until a trial fails (or halves until one succeeds), then the gap is bisected on a logarithmic scale; the best
rate is tried a second and a third time, because one success may be luck. `MAX_TRIALS` bounds every search.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from howfar.errors import QuantityError, UsageError
from howfar.load.result import Result, format_latency
from howfar.load.verdict import Stamp
from howfar.units import format_duration_ns, parse_duration_ns

MAX_TRIALS = 24
GROWTH = 2.0
MAX_GAP_RATIO = 1.05
"""Ratio of failed to successful rate at which bisection stops."""
CONFIRMATIONS = 2
MAX_DESCENT = 64.0
"""If the first rate fails, the search goes down to at most this factor below it."""
_DOUBTS = (Stamp.DISTURBED, Stamp.CLIENT_LIMITED, Stamp.LATE)
"""Stamps that are named with the reasons of a trial that failed, because they may have caused these."""
_GOAL = re.compile(r"\s*(p[0-9]{1,2}(?:\.[0-9]{1,3})?|max)\s*<\s*(.+?)\s*")


@dataclass(frozen=True)
class Goal:
    """A percentile of response time that must stay below a limit."""

    share: float
    """The percentile as a share; 1 means the maximum."""
    limit_ns: int

    def __str__(self) -> str:
        name = "max" if self.share >= 1 else f"p{self.share * 100:g}"
        return f"{name} < {format_duration_ns(self.limit_ns)}"


def parse_goal(text: str) -> Goal:
    """The goal in a text. Raises UsageError."""
    match = _GOAL.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--search {text!r} is not a goal",
            "Give a percentile and a limit, such as 'p99<5ms' (quoted for the shell).",
        )
    name, limit = match.groups()
    share = 1.0 if name == "max" else round(float(name[1:]) / 100, 8)
    try:
        limit_ns = parse_duration_ns(limit)
    except QuantityError as error:
        raise UsageError(f"--search {text!r}: {error.message}", error.advice) from error
    if not 0 < share <= 1 or limit_ns == 0:
        raise UsageError(f"--search {text!r} can never be met", "Example: 'p99<5ms'.")
    return Goal(share, limit_ns)


@dataclass(frozen=True)
class RateTrial:
    """The trial of one rate. `observed_ns`: the percentile, or a lower bound of it if `censored`; `why_not`: why the goal was missed,
    empty on success."""

    rate: float
    observed_ns: int | None
    censored: bool
    why_not: str

    @property
    def met_goal(self) -> bool:
        return not self.why_not


@dataclass(frozen=True)
class SearchResult:
    """Result of a search. `found`: the highest rate that succeeded, with a failure above it. `at_least`: no rate failed up to the
    highest allowed. `below`: even the lowest rate failed. `unclear`: trials ran out, or the best failed when repeated."""

    kind: Literal["found", "at_least", "below", "unclear"]
    rate: float | None
    failed_at: float | None
    trials: int
    repeats: int
    """How many trials at `rate` succeeded."""


def judge_trial(result: Result, goal: Goal, rate: float) -> RateTrial:
    """Judge whether a trial meets the goal, by the percentile's upper bound, so that unanswered requests count against it."""
    bound = result.transaction.percentile(goal.share)
    if bound is None:
        return RateTrial(rate, None, False, "nothing was answered")
    reasons = [str(stamp) for stamp in (Stamp.FAILING, Stamp.OVERLOADED) if result.verdict.has_stamp(stamp)]
    if bound.high_ns is None or bound.high_ns >= goal.limit_ns:
        reasons.append(f"{'' if bound.exact else '≥ '}{format_latency(bound.low_ns)}")
        if bound.low_ns < goal.limit_ns:
            unanswered = result.transaction.all_requests.count - result.transaction.answered.count
            reasons.append(f"{unanswered} unanswered requests leave it open (a longer --time helps)")
    if reasons:
        reasons += [str(stamp) for stamp in _DOUBTS if result.verdict.has_stamp(stamp)]
    return RateTrial(rate, bound.low_ns, not bound.exact, ", ".join(reasons))


def next_rate(trials: Sequence[RateTrial], low: float, high: float | None) -> float | None:
    """The next rate to try; None if the search is over."""
    if len(trials) >= MAX_TRIALS:
        return None
    if not trials:
        return low
    best = _best_rate(trials)
    lowest_failure = _lowest_failure(trials)
    if best is None:
        assert lowest_failure is not None, "a trial that did not meet the goal failed"
        return lowest_failure / GROWTH if lowest_failure / GROWTH >= max(low / MAX_DESCENT, 1) else None
    if lowest_failure is None:
        if high is not None and best >= high:
            return _rate_to_repeat(trials, best)
        return min(best * GROWTH, high) if high is not None else best * GROWTH
    if lowest_failure / best > MAX_GAP_RATIO:
        return math.sqrt(best * lowest_failure)
    return _rate_to_repeat(trials, best)


def _rate_to_repeat(trials: Sequence[RateTrial], best: float) -> float | None:
    return best if _successes(trials, best) <= CONFIRMATIONS else None


def _successes(trials: Sequence[RateTrial], rate: float) -> int:
    return sum(trial.met_goal for trial in trials if trial.rate == rate)


def _lowest_failure(trials: Sequence[RateTrial]) -> float | None:
    return min((trial.rate for trial in trials if not trial.met_goal), default=None)


def _best_rate(trials: Sequence[RateTrial]) -> float | None:
    """The highest rate that succeeded below all rates that failed."""
    lowest_failure = _lowest_failure(trials)
    return max(
        (trial.rate for trial in trials if trial.met_goal and (lowest_failure is None or trial.rate < lowest_failure)),
        default=None,
    )


def summarize_search(trials: Sequence[RateTrial]) -> SearchResult:
    """The result of a search's trials, of which there is at least one."""
    best, lowest_failure = _best_rate(trials), _lowest_failure(trials)
    if best is None:
        assert lowest_failure is not None, "a search has at least one trial"
        return SearchResult("below", None, lowest_failure, len(trials), 0)
    repeats = _successes(trials, best)
    if lowest_failure is None:
        return SearchResult("at_least", best, None, len(trials), repeats)
    is_confirmed = lowest_failure / best <= MAX_GAP_RATIO and repeats > CONFIRMATIONS
    return SearchResult("found" if is_confirmed else "unclear", best, lowest_failure, len(trials), repeats)
