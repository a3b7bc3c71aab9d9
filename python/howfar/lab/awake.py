"""Keep processors awake for a short time, so that a probe measures a link and not how deeply this machine sleeps.

Waking an idle processor takes from a few microseconds to some tens; on virtual machines that time changes much and suddenly. It can
be a third of a round trip of 0.2 ms, and is not part of any link. Spinners run in the kernel's idle class, only when nothing else is
runnable: a measured process gets the processor at once, and finds it awake. They are for users who may not set the kernel's limit on
idle states; where it can be set, no spinner is needed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice

from howfar.lab.idle import cannot_poll, polling
from howfar.lab.sandbox import end_session

_SPIN = "while :; do :; done"
_MEEKLY = """n=0
while [ -e /proc/self/autogroup ] && [ $n -lt 50 ] && ! echo 19 2>/dev/null >/proc/self/autogroup
do n=$((n + 1)); sleep 0.02; done
"""
"""Where the kernel groups processes by session (autogroup), the idle class applies only within the group, and the group has the same
weight as any other: it kept a processor from the measured process for 3 ms at a time. So the group gets the lowest weight, nice 19.
Without root the kernel allows one such change per 100 ms, so all spinners share one group, and the change is retried for a second."""
_LONGEST_S = 60
_MOST = 32
"""Maximum number of spinners. The remaining CPUs of a larger machine may sleep: starting a spinner for each would take longer than
the probe."""


@contextmanager
def awake(cpus: Iterable[int], longest_s: int = _LONGEST_S) -> Iterator[None]:
    """Keep `cpus` awake inside the block. Where idle CPUs cannot be kept polling, spinners keep them busy, for at most `longest_s`."""
    if cannot_poll() is None:
        with polling():
            yield
        return
    each = (f"taskset -c {cpu} chrt --idle 0 sh -c '{_SPIN}' &\n" for cpu in islice(cpus, _MOST))
    with spinning([()], longest_s, f"{_MEEKLY}{''.join(each)}wait"):
        yield


@contextmanager
def spinning(prefixes: Iterable[Sequence[str]], longest_s: int, program: str = _SPIN) -> Iterator[None]:
    """Run programs that always want a CPU, one for each command prefix, and end them on leaving.

    They end by themselves after `longest_s`, in case this process is killed first.
    """
    with ExitStack() as ledger:
        for prefix in prefixes:
            spinner = subprocess.Popen(
                [*prefix, "timeout", str(longest_s), "sh", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            # Signal the whole session at once: `timeout` forwards a signal, but not between its fork and its recording of the
            # child. In the idle class of a busy machine that interval can be long, and the child then spun forever.
            ledger.callback(end_session, spinner)
        yield
