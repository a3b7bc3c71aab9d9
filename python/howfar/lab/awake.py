"""Keeps CPUs awake for a short time, so that a probe measures the link alone and not also the time to wake idle CPUs.

Waking an idle CPU takes from a few to some tens of microseconds; on virtual machines that time varies greatly and suddenly, and can
be a third of a round trip of 0.2 ms. If this user may set the kernel's limit on idle states, CPUs are kept polling. Otherwise spinners
keep them busy. Spinners run in the kernel's idle class, only when nothing else is runnable, so they keep a CPU awake and yet a
measured process gets it at once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice

from howfar.lab.idle import keep_polling, polling_obstacle
from howfar.lab.sandbox import end_session

_SPIN_COMMAND = "while :; do :; done"
_LOWER_GROUP_PRIORITY = """n=0
while [ -e /proc/self/autogroup ] && [ $n -lt 50 ] && ! echo 19 2>/dev/null >/proc/self/autogroup
do n=$((n + 1)); sleep 0.02; done
"""
"""Shell commands that lower the priority of the spinners' group. If the kernel groups processes by session (autogroup), the idle class
applies only within the group, and the group has the same weight as any other group: it occupied the measured process's CPU for 3 ms at
a time. So the group gets the lowest weight, nice 19. Without root the kernel allows one such change per 100 ms, so all spinners share
one group, and the change is retried for a second."""
_MAX_DURATION_S = 60
_MAX_SPINNERS = 32
"""Maximum number of spinners; further CPUs may go idle. Starting a spinner for each CPU of a larger machine would take longer than
the probe."""


@contextmanager
def keep_cpus_awake(cpus: Iterable[int], max_duration_s: int = _MAX_DURATION_S) -> Iterator[None]:
    """Keep `cpus` awake during the block; if idle CPUs cannot be kept polling, by spinners, for at most `max_duration_s`."""
    if polling_obstacle() is None:
        with keep_polling():
            yield
        return
    spinner_lines = (
        f"taskset -c {cpu} chrt --idle 0 sh -c '{_SPIN_COMMAND}' &\n" for cpu in islice(cpus, _MAX_SPINNERS)
    )
    with run_spinners([()], max_duration_s, f"{_LOWER_GROUP_PRIORITY}{''.join(spinner_lines)}wait"):
        yield


@contextmanager
def run_spinners(
    prefixes: Iterable[Sequence[str]], max_duration_s: int, program: str = _SPIN_COMMAND
) -> Iterator[None]:
    """Run one spinner, a program that uses a CPU all the time, for each command prefix, and end the spinners on leaving. They also end
    after `max_duration_s`, in case this process is killed first."""
    with ExitStack() as stack:
        for prefix in prefixes:
            spinner = subprocess.Popen(
                [*prefix, "timeout", str(max_duration_s), "sh", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            # Signal the whole session at once: `timeout` forwards a signal, but not between its fork and its recording of the
            # child. In the idle class of a busy machine that interval can be long, and the child would then spin forever.
            stack.callback(end_session, spinner)
        yield
