"""Repeats measurements that other programs on this machine disturbed, and skips tests whose measurements stay disturbed.

howfar itself must report that a trial was disturbed; the test is then skipped with its message. Every other reason of a void trial,
and every wrong value, is an error."""

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

T = TypeVar("T")
DISTURBANCE_SIGNS = (
    "late on the emulated link by",
    "longer on average",
    "unloaded RTT was",
    "before the run",
    "pages from files",
)
"""Fragments of the reasons for which a busy machine voids a trial."""
EMPTY_WINDOW = "no transaction ended in the measured window"
"""A busy machine also causes this in windows of 0.2 s, but so does a server that does not answer. Only for tests of other things."""
ATTEMPTS = 8
_MAX_PAUSE_S = 5.0
BUSY_CPUS = 0.3
"""A machine is busy if programs outside a trial use more CPUs than this; on a quiet machine they use a few hundredths."""


def is_disturbed(reason: str | None) -> bool:
    """Whether a busy machine explains each of the reasons of a void trial, which are joined by semicolons."""
    return bool(reason) and all(any(sign in each for sign in DISTURBANCE_SIGNS) for each in str(reason).split("; "))


def unexcused(reasons: Iterable[str]) -> list[str]:
    """The reasons that a busy machine does not explain."""
    return [reason for reason in reasons if not is_disturbed(reason)]


@dataclass
class RetryBudget:
    """Time for repeated attempts of all trials of a scenario; once it is used up, each trial is made only once."""

    left_s: float = 120.0


def run_undisturbed(make_trial: Callable[[int], Trial], budget: RetryBudget) -> Trial:
    """Make a trial up to ATTEMPTS times; returns the first undisturbed one, else the last."""
    for attempt in range(ATTEMPTS):
        began = time.monotonic()
        trial = make_trial(attempt)
        budget.left_s -= (time.monotonic() - began) if attempt else 0.0
        if not is_disturbed(trial.void_reason) or budget.left_s <= 0:
            break
    return trial


class OtherProgramsCpu:
    """The CPUs that other programs use within this context, in which all processes of a measurement end; `cpus` is set on leaving."""

    cpus = 0.0

    def __enter__(self) -> OtherProgramsCpu:
        self._watch, self._began, self._before_s = LoadWatch(), time.monotonic(), _children_cpu_s()
        return self

    def __exit__(self, *error: object) -> None:
        used_s, took_s = _children_cpu_s() - self._before_s, time.monotonic() - self._began
        self.cpus = _others(self._watch.finish(), used_s / took_s)


def _children_cpu_s() -> float:
    """CPU time of all child processes that this process has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_until_agreed(
    measure: Callable[[], T],
    find_disagreement: Callable[[T], str | None],
    first: T | None = None,
    attempts: int = ATTEMPTS,
) -> T:
    """Measure until there is no disagreement, and return that measurement; `first`, if given, is the first one. Pauses between
    attempts grow, because disturbances last for seconds."""
    disagreements, cpus = [], []
    for attempt in range(attempts):
        with OtherProgramsCpu() as others:
            measured = first if first is not None and not attempt else measure()
        disagreement = find_disagreement(measured)
        if disagreement is None:
            break
        disagreements.append(disagreement)
        if attempt or first is None:
            cpus.append(others.cpus)
        time.sleep(min(attempt**2 / 4, _MAX_PAUSE_S))
    else:
        fail_or_skip(disagreements, cpus)
    return measured


def fail_or_skip(disagreements: Sequence[str], cpus: Sequence[float]) -> NoReturn:
    """Fail because every attempt disagreed, or skip the test if other programs used many CPUs in every attempt."""
    message = f"each of {len(disagreements)} attempts disagrees: {'; '.join(disagreements)}"
    if min(cpus) > BUSY_CPUS:
        pytest.skip(f"OTHERS HAD {min(cpus):.2f} CPUs OF THIS MACHINE AND MORE, {message}")
    pytest.fail(message)


def skip_if_disturbed(*reasons: str | None) -> None:
    """Skip if the machine was disturbed; the reason is shown in the last lines of a test run."""
    for reason in reasons:
        if is_disturbed(reason):
            pytest.skip(f"THIS MACHINE WAS DISTURBED, each time: {reason}")


def other_programs_cpus(trial: Trial) -> float:
    """CPUs that programs outside the trial used in its window, and that the hypervisor gave to other machines."""
    if trial.load is None or trial.measured is None:
        return 0.0
    return _others(trial.load, sum(cpu.cpu_ns for cpu in trial.measured.cpu) / trial.measured.elapsed_ns)


def _others(load: MachineLoad, used_cpus: float) -> float:
    stolen = (load.steal_share or 0.0) * (os.cpu_count() or 1)
    return max((load.busy_cpus or 0.0) - used_cpus, 0.0) + stolen


@contextmanager
def skip_if_busy(*trials: Trial) -> Iterator[None]:
    """A context whose failed assertions skip the test if other programs used many CPUs in one of the trials."""
    try:
        yield
    except AssertionError as error:
        cpus = max(map(other_programs_cpus, trials))
        if cpus <= BUSY_CPUS:
            raise
        pytest.skip(f"OTHERS HAD {cpus:.2f} CPUs OF THIS MACHINE: {error}")
