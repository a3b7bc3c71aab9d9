"""Keep processors awake for a moment, so that what is measured is a link and not how deeply this machine sleeps.

Waking an idle processor takes from a few microseconds to some tens, on virtual machines with large and sudden changes. In a round
trip of 0.2 ms that is up to a third, and it belongs to no link. The kernel's idle class runs only where nothing else wants
to: whoever is measured takes the processor at once, and finds it awake.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice

_SPIN = "while :; do :; done"
_LONGEST_S = 60
"""A spinner ends by itself, should nobody be left to end it."""
_MOST = 32
"""On a larger machine the rest may sleep: starting a spinner for each would take longer than the probe."""


@contextmanager
def awake(cpus: Iterable[int]) -> Iterator[None]:
    """None of `cpus` goes idle inside."""
    with ExitStack() as ledger:
        for cpu in islice(cpus, _MOST):
            spinner = subprocess.Popen(
                ["taskset", "-c", str(cpu), "chrt", "--idle", "0", "timeout", str(_LONGEST_S), "sh", "-c", _SPIN],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            ledger.callback(_end, spinner)
        yield


def _end(spinner: subprocess.Popen[bytes]) -> None:
    """`timeout` passes the signal on to what it runs."""
    spinner.terminate()
    spinner.wait()
