"""Repeats trials that other programs on this machine disturbed, and skips tests whose trials stay disturbed.

The instrument itself must report a trial as disturbed; the test is then skipped with the instrument's own sentence. Only these
sentences are excused: whatever else makes a trial void, and every wrong value, is an error.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import pytest

from howfar.lab.environment import LoadWatch
from howfar.store.records import MachineLoad, Trial

Seen = TypeVar("Seen")
DISTURBED = ("was late by", "longer on average", "RTT at rest was", "before the run", "pages from files")
"""Parts of the sentences that the instrument reports on a machine that is too busy."""
EMPTY_WINDOW = "not one transaction ended in the measured window"
"""A busy machine also causes this in windows of 0.2 s, but so does a server that does not answer: for tests of something else only."""
ATTEMPTS = 8
_MAX_PAUSE_S = 5.0
MANY_OTHERS = 0.3
"""CPUs used by programs outside a trial, above which a machine counts as busy; on a quiet machine a few hundredths."""


def disturbed(reason: str | None) -> bool:
    """Whether a busy machine alone explains that a trial is void: it must explain each of the joined sentences."""
    return bool(reason) and all(any(sign in each for sign in DISTURBED) for each in str(reason).split("; "))


def lasting(reasons: Iterable[str]) -> list[str]:
    """The reasons that a busy machine does not explain."""
    return [reason for reason in reasons if not disturbed(reason)]


@dataclass
class Patience:
    """Time for repeated attempts, shared by all trials of a scenario: once it is used up, each trial is made only once."""

    left_s: float = 120.0


def undisturbed(make_trial: Callable[[int], Trial], patience: Patience) -> Trial:
    """Make a trial up to ATTEMPTS times; returns the first undisturbed one, else the last."""
    for attempt in range(ATTEMPTS):
        began = time.monotonic()
        trial = make_trial(attempt)
        patience.left_s -= (time.monotonic() - began) if attempt else 0.0
        if not disturbed(trial.void_reason) or patience.left_s <= 0:
            break
    return trial


class Others:
    """CPUs that other programs use during a measurement whose processes end within this context; `cpus` is set on leaving."""

    cpus = 0.0

    def __enter__(self) -> Others:
        self._watch, self._began, self._before_s = LoadWatch(), time.monotonic(), _of_children_s()
        return self

    def __exit__(self, *error: object) -> None:
        used_s, took_s = _of_children_s() - self._before_s, time.monotonic() - self._began
        self.cpus = _others(self._watch.finish(), used_s / took_s)


def _of_children_s() -> float:
    """CPU time of all child processes that this process has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def agree(
    measure: Callable[[], Seen],
    judged: Callable[[Seen], str | None],
    first: Seen | None = None,
    attempts: int = ATTEMPTS,
) -> Seen:
    """Measure until `judged` finds no disagreement, and return that measurement; `first`, if given, is judged first. Pauses between
    attempts grow, because disturbances last for seconds."""
    wrong, had = [], []
    for attempt in range(attempts):
        with Others() as others:
            seen = first if first is not None and not attempt else measure()
        found = judged(seen)
        if found is None:
            break
        wrong.append(found)
        if attempt or first is None:
            had.append(others.cpus)
        time.sleep(min(attempt**2 / 4, _MAX_PAUSE_S))
    else:
        disagrees(wrong, had)
    return seen


def disagrees(wrong: Sequence[str], had: Sequence[float]) -> NoReturn:
    """Fail because every attempt disagreed, or skip if other programs used CPUs in every attempt."""
    message = f"each of {len(wrong)} attempts disagrees: {'; '.join(wrong)}"
    if min(had) > MANY_OTHERS:
        pytest.skip(f"OTHERS HAD {min(had):.2f} CPUs OF THIS MACHINE AND MORE, {message}")
    pytest.fail(message)


def skip_if_disturbed(*reasons: str | None) -> None:
    """Skip if the machine was disturbed; the reason is shown in the last lines of a test run."""
    for reason in reasons:
        if disturbed(reason):
            pytest.skip(f"THIS MACHINE WAS DISTURBED, each time: {reason}")


def others_cpus(trial: Trial) -> float:
    """CPUs that programs outside the trial kept busy in its window, or that the hypervisor gave to other machines."""
    if trial.load is None or trial.measured is None:
        return 0.0
    return _others(trial.load, sum(cpu.cpu_ns for cpu in trial.measured.cpu) / trial.measured.elapsed_ns)


def _others(load: MachineLoad, used_cpus: float) -> float:
    stolen = (load.steal_share or 0.0) * (os.cpu_count() or 1)
    return max((load.busy_cpus or 0.0) - used_cpus, 0.0) + stolen


@contextmanager
def skip_if_crowded(*trials: Trial) -> Iterator[None]:
    """For bounds that hold on a quiet machine: on a busy one a violation is skipped, with the CPUs that other programs used."""
    try:
        yield
    except AssertionError as error:
        had = max(map(others_cpus, trials))
        if had <= MANY_OTHERS:
            raise
        pytest.skip(f"OTHERS HAD {had:.2f} CPUs OF THIS MACHINE: {error}")
