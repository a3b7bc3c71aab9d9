"""The highest rate that meets a goal such as `p99<5ms`: which rate to try next, and when to stop. Pure.

The rate doubles until a trial fails (or halves until one succeeds), then the gap is bisected on a logarithmic scale; the best
is tried a second and a third time, because one success may be luck. `MOST_TRIALS` bounds every search.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from howfar.errors import QuantityError, UsageError
from howfar.load.report_human import time
from howfar.load.result import Result
from howfar.load.verdict import Stamp
from howfar.units import format_duration_ns, parse_duration_ns

MOST_TRIALS = 24
GROWTH = 2.0
NARROW = 1.05
"""Ratio of failed to successful rate at which bisection stops."""
CONFIRMATIONS = 2
DESCENT = 64.0
"""If the first rate fails, the search goes down to at most this factor below it."""
_GOAL = re.compile(r"\s*(p[0-9]{1,2}(?:\.[0-9]{1,3})?|max)\s*<\s*(.+?)\s*")


@dataclass(frozen=True)
class Goal:
    """A percentile of response time that must stay below a limit."""

    share: float
    """The percentile as a share; 1: the maximum."""
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
class Trial:
    """The trial of one rate. `observed_ns`: the percentile, a lower bound when `censored`; `why_not` is empty on success."""

    rate: float
    observed_ns: int | None
    censored: bool
    why_not: str

    @property
    def held(self) -> bool:
        return not self.why_not


@dataclass(frozen=True)
class Answer:
    """Result of a search. `found`: the highest rate that succeeded, with a failure above it. `at_least`: nothing failed up to the
    highest allowed. `below`: even the lowest failed. `unclear`: trials ran out, or the best failed when repeated."""

    kind: Literal["found", "at_least", "below", "unclear"]
    rate: float | None
    failed_at: float | None
    trials: int
    repeats: int
    """How many trials at `rate` succeeded."""


def judged(result: Result, goal: Goal, rate: float) -> Trial:
    """Whether a trial meets the goal: by the upper bound, so that unanswered requests count against it."""
    at = result.transaction.at(goal.share)
    if at is None:
        return Trial(rate, None, False, "nothing was answered")
    reasons = [str(stamp) for stamp in (Stamp.FAILING, Stamp.OVERLOADED) if result.verdict.has(stamp)]
    if at.high_ns is None or at.high_ns >= goal.limit_ns:
        reasons.append(f"{'' if at.exact else '≥ '}{time(at.low_ns)}")
        if at.low_ns < goal.limit_ns:
            missing = result.transaction.all_requests.count - result.transaction.answered.count
            reasons.append(f"{missing} unanswered requests leave it open (a longer --time helps)")
    if reasons:
        reasons += [str(stamp) for stamp in (Stamp.CLIENT_LIMITED, Stamp.LATE) if result.verdict.has(stamp)]
    return Trial(rate, at.low_ns, not at.exact, ", ".join(reasons))


def next_rate(trials: Sequence[Trial], low: float, high: float | None) -> float | None:
    """The next rate to try; None if the search is over."""
    if len(trials) >= MOST_TRIALS:
        return None
    if not trials:
        return low
    best = _best(trials)
    failed = _lowest_failure(trials)
    if best is None:
        assert failed is not None, "a trial held or failed"
        return failed / GROWTH if failed / GROWTH >= max(low / DESCENT, 1) else None
    if failed is None:
        if high is not None and best >= high:
            return _again(trials, best)
        return min(best * GROWTH, high) if high is not None else best * GROWTH
    if failed / best > NARROW:
        return math.sqrt(best * failed)
    return _again(trials, best)


def _again(trials: Sequence[Trial], best: float) -> float | None:
    return best if _held(trials, best) <= CONFIRMATIONS else None


def _held(trials: Sequence[Trial], rate: float) -> int:
    return sum(trial.held for trial in trials if trial.rate == rate)


def _lowest_failure(trials: Sequence[Trial]) -> float | None:
    return min((trial.rate for trial in trials if not trial.held), default=None)


def _best(trials: Sequence[Trial]) -> float | None:
    """The highest success below every failure."""
    failed = _lowest_failure(trials)
    return max((trial.rate for trial in trials if trial.held and (failed is None or trial.rate < failed)), default=None)


def answer(trials: Sequence[Trial]) -> Answer:
    """The answer from the trials so far."""
    best, failed = _best(trials), _lowest_failure(trials)
    if best is None:
        kind: Literal["below", "unclear"] = "below" if failed is not None else "unclear"
        return Answer(kind, None, failed, len(trials), 0)
    repeats = _held(trials, best)
    if failed is None:
        return Answer("at_least", best, None, len(trials), repeats)
    sure = failed / best <= NARROW and repeats > CONFIRMATIONS
    return Answer("found" if sure else "unclear", best, failed, len(trials), repeats)


def sentence(goal: Goal, found: Answer) -> str:
    """The answer as one sentence, which states if it is only a bound."""
    tried = f"{found.trials} trials"
    if found.kind == "below":
        return f"below {found.failed_at:.4g} transactions/s: no rate met {goal} ({tried})"
    if found.kind == "at_least":
        return (
            f"at least {found.rate:.4g} transactions/s meet {goal}: nothing failed up to that rate ({tried}); "
            "raise --search-high to try more"
        )
    if found.kind == "found":
        return (
            f"{found.rate:.4g} transactions/s is the highest rate that met {goal}: {found.repeats} of {found.repeats} times, "
            f"while {found.failed_at:.4g} failed ({tried})"
        )
    if found.rate is None:
        return f"no trial finished ({tried})"
    return f"between {found.rate:.4g} and {found.failed_at or math.inf:.4g} transactions/s; undecided after {tried}"
