"""What others do to this machine is said, not failed: a trial that the instrument itself calls disturbed is made again, and skipped
with the instrument's own sentence where it never came out.

Only these sentences are excused: whatever else makes a trial void, and every wrong value, is an error.
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
DISTURBED = ("was late by", "longer on average", "RTT at rest was", "pages from files")
"""What a machine that is too busy makes the instrument say."""
EMPTY_WINDOW = "not one transaction ended in the measured window"
"""It says so too of windows of a fifth of a second; but then so would a server that does not answer: for tests that look at others."""
ATTEMPTS = 8
_PAUSE_MOST_S = 5.0
MANY_OTHERS = 0.3
"""CPUs in the hands of programs that are no part of a trial; on a quiet machine a few hundredths."""


def disturbed(reason: str | None) -> bool:
    """Whether this machine alone explains that a trial is void: each of the sentences that were joined."""
    return bool(reason) and all(any(sign in each for sign in DISTURBED) for each in str(reason).split("; "))


def lasting(reasons: Iterable[str]) -> list[str]:
    """Without those that this machine explains."""
    return [reason for reason in reasons if not disturbed(reason)]


@dataclass
class Patience:
    """For what is made again, of all trials of a scenario together: where a machine lets none through, each is made once."""

    left_s: float = 120.0


def undisturbed(make_trial: Callable[[int], Trial], patience: Patience) -> Trial:
    """The first of several attempts that was not disturbed, else the last."""
    for attempt in range(ATTEMPTS):
        began = time.monotonic()
        trial = make_trial(attempt)
        patience.left_s -= (time.monotonic() - began) if attempt else 0.0
        if not disturbed(trial.void_reason) or patience.left_s <= 0:
            break
    return trial


class Others:
    """What they have of this machine while something is measured that ends within: `cpus`, when it has ended."""

    cpus = 0.0

    def __enter__(self) -> Others:
        self._watch, self._began, self._before_s = LoadWatch(), time.monotonic(), _of_children_s()
        return self

    def __exit__(self, *error: object) -> None:
        used_s, took_s = _of_children_s() - self._before_s, time.monotonic() - self._began
        self.cpus = _others(self._watch.finish(), used_s / took_s)


def _of_children_s() -> float:
    """CPU time of all that this process started and saw the end of."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def agree(
    measure: Callable[[], Seen],
    judged: Callable[[Seen], str | None],
    first: Seen | None = None,
    attempts: int = ATTEMPTS,
) -> Seen:
    """The measurement of which `judged` says that nothing disagrees: the `first`, if there is one, or another. They follow each other
    more and more slowly, because others stay for seconds."""
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
        time.sleep(min(attempt**2 / 4, _PAUSE_MOST_S))
    else:
        disagrees(wrong, had)
    return seen


def disagrees(wrong: Sequence[str], had: Sequence[float]) -> NoReturn:
    """Each time something was wrong: an error, unless others had CPUs each time."""
    message = f"each of {len(wrong)} attempts disagrees: {'; '.join(wrong)}"
    if min(had) > MANY_OTHERS:
        pytest.skip(f"OTHERS HAD {min(had):.2f} CPUs OF THIS MACHINE AND MORE, {message}")
    pytest.fail(message)


def skip_if_disturbed(*reasons: str | None) -> None:
    """Loudly: the sentence is in the last lines of a run of the tests."""
    for reason in reasons:
        if disturbed(reason):
            pytest.skip(f"THIS MACHINE WAS DISTURBED, each time: {reason}")


def others_cpus(trial: Trial) -> float:
    """CPUs that programs which are no part of the trial kept busy in its window, or that its hypervisor gave to others."""
    if trial.load is None or trial.measured is None:
        return 0.0
    return _others(trial.load, sum(cpu.cpu_ns for cpu in trial.measured.cpu) / trial.measured.elapsed_ns)


def _others(load: MachineLoad, used_cpus: float) -> float:
    stolen = (load.steal_share or 0.0) * (os.cpu_count() or 1)
    return max((load.busy_cpus or 0.0) - used_cpus, 0.0) + stolen


@contextmanager
def skip_if_crowded(*trials: Trial) -> Iterator[None]:
    """For bounds that hold where nobody else computes: what is beyond them elsewhere is skipped, with how much the others had."""
    try:
        yield
    except AssertionError as error:
        had = max(map(others_cpus, trials))
        if had <= MANY_OTHERS:
            raise
        pytest.skip(f"OTHERS HAD {had:.2f} CPUs OF THIS MACHINE: {error}")
