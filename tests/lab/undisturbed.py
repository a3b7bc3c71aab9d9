"""What others do to this machine is said, not failed: a trial that the instrument itself calls disturbed is made again, and skipped
with the instrument's own sentence where it never came out.

Only these sentences are excused: whatever else makes a trial void, and every wrong value, is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from howfar.results.records import Trial

DISTURBED = ("was late by", "RTT at rest was", "pages from files")
"""What a machine that is too busy makes the instrument say."""
ATTEMPTS, BUDGET_S = 8, 90.0
MANY_OTHERS = 0.3
"""CPUs in the hands of programs that are no part of a trial; on a quiet machine a few hundredths."""


def disturbed(reason: str | None) -> bool:
    """Whether this machine alone explains that a trial is void: each of the sentences that were joined."""
    return bool(reason) and all(any(words in each for words in DISTURBED) for each in str(reason).split("; "))


def lasting(reasons: Iterable[str]) -> list[str]:
    """Without those that this machine explains."""
    return [reason for reason in reasons if not disturbed(reason)]


def undisturbed(make_trial: Callable[[int], Trial]) -> Trial:
    """The first of several attempts that was not disturbed, else the last."""
    began = time.monotonic()
    for attempt in range(ATTEMPTS):
        trial = make_trial(attempt)
        if not disturbed(trial.void_reason) or time.monotonic() - began > BUDGET_S:
            break
    return trial


def skip_if_disturbed(*reasons: str | None) -> None:
    """Loudly: the sentence is in the last lines of a run of the tests."""
    for reason in reasons:
        if disturbed(reason):
            pytest.skip(f"THIS MACHINE WAS DISTURBED, each time: {reason}")


def others_cpus(trial: Trial) -> float:
    """CPUs that programs which are no part of the trial kept busy in its window, or that its hypervisor gave to others."""
    if trial.load is None or trial.measured is None:
        return 0.0
    used = sum(cpu.cpu_ns for cpu in trial.measured.cpu) / trial.measured.elapsed_ns
    return max((trial.load.busy_cpus or 0.0) - used, 0.0) + (trial.load.steal_share or 0.0)


@contextmanager
def beside_others(*trials: Trial) -> Iterator[None]:
    """For bounds that hold where nobody else computes: what is beyond them elsewhere is skipped, with how much the others had."""
    try:
        yield
    except AssertionError as error:
        had = max(map(others_cpus, trials))
        if had <= MANY_OTHERS:
            raise
        pytest.skip(f"OTHERS HAD {had:.2f} CPUs OF THIS MACHINE: {error}")
