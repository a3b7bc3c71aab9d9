"""Keep processors awake for a moment, so that what is measured is a link and not how deeply this machine sleeps.

Waking an idle processor takes from a few microseconds to some tens, on virtual machines with large and sudden changes. In a round
trip of 0.2 ms that is up to a third, and it belongs to no link. The kernel's idle class runs only where nothing else wants
to: a measured process takes the processor at once, and finds it awake. This is for users who may not hold the kernel's limit on idle
states; where it can be held, nothing needs to run.
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
"""Where the kernel groups processes by session, the idle class counts within the group alone, and the group as much as any other: it
kept a processor from the measured process for 3 ms at a time. So the group itself is made as light as possible. The kernel lets only
one process without root do so in 100 ms, so all spinners are in one group, and it is tried again for a second."""
_LONGEST_S = 60
_MOST = 32
"""Most spinners. On a larger machine the rest may sleep: starting a spinner for each would take longer than the probe."""


@contextmanager
def awake(cpus: Iterable[int], longest_s: int = _LONGEST_S) -> Iterator[None]:
    """Keep `cpus` from sleeping inside. Where idle CPUs cannot be kept polling, spinners keep them busy, for `longest_s` at most."""
    if cannot_poll() is None:
        with polling():
            yield
        return
    each = (f"taskset -c {cpu} chrt --idle 0 sh -c '{_SPIN}' &\n" for cpu in islice(cpus, _MOST))
    with spinning([()], longest_s, f"{_MEEKLY}{''.join(each)}wait"):
        yield


@contextmanager
def spinning(prefixes: Iterable[Sequence[str]], longest_s: int, program: str = _SPIN) -> Iterator[None]:
    """Programs that want a CPU all the time, one behind each prefix of a command line; none is left on leaving.

    They end by themselves after `longest_s`, should nobody be left to end them.
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
            # The whole session at once: `timeout` passes a signal on, but not in the moment between its fork and its noting of the
            # child, and in the idle class of a busy machine that moment can last: the child then spun for ever.
            ledger.callback(end_session, spinner)
        yield
