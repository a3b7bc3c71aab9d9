"""Requests to end: SIGINT, SIGTERM and SIGHUP, which every command treats alike.

A signal that was ignored at the start, as by nohup, stays ignored. This module takes effect before the rest is loaded, so it imports
little.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    import tempfile

REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNDOING_S = 10.0
"""For this long after a request, others count as repeated: a group's signal comes twice, and must not disturb the cleanup."""


_asked_at = float("-inf")
"""When the last request came, whichever handler took it."""
_asked_by: int = signal.SIGINT
"""The signal of the last request that was raised here."""
_holders: list[bool] = []
_held: list[Callable[[], None]] = []
"""Requests that came while they were withheld."""


class Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP: handled like Ctrl-C, with its own exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.exit_code = 128 + number


@contextmanager
def on_request(handler: Callable[[int], None]) -> Iterator[None]:
    """Call `handler` with the number of each request while inside. It does nothing in other threads, which receive no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    chosen = [number for number in REQUESTS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _frame: _take(handler, got)) for number in chosen}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _take(handler: Callable[[int], None], number: int) -> None:
    if _holders:
        _held.append(lambda: handler(number))
    else:
        handler(number)


def is_repeated() -> bool:
    """Whether a request that has just come repeats a recent one, whichever handler took that. If not, it is recorded as the first."""
    global _asked_at
    now = time.monotonic()
    if now - _asked_at < _UNDOING_S:
        return True
    _asked_at = now
    return False


def request_code() -> int:
    """The exit code of a command that a request ended: 128 and the number of its signal."""
    return 128 + _asked_by


@contextmanager
def ended_by_request() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGINT and `Ended` for the other requests, so that cleanup code runs."""
    global _asked_at, _asked_by
    _asked_at, _asked_by = float("-inf"), signal.SIGINT

    def end(number: int) -> None:
        global _asked_by
        if is_repeated() and number != signal.SIGINT:
            return
        _asked_by = number
        raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)

    with on_request(end):
        yield


@contextmanager
def passed_on_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass requests on to a command while inside, and end after it; a terminal's Ctrl-C reaches it directly. Nothing is raised: an
    exception from wait() can lose the exit code that it has just fetched. A group's second signal, if late, has no effect after it."""

    def pass_on(number: int) -> None:
        global _asked_at
        _asked_at = time.monotonic()
        if number != signal.SIGINT:
            process.send_signal(number)

    with on_request(pass_on):
        yield


@contextmanager
def withheld() -> Iterator[None]:
    """Withhold requests to end until this context is left, so that what is created is registered for cleanup. A signal mask would not
    suffice: another thread takes a signal that this one blocks, and the handler still runs in the main thread."""
    _holders.append(True)
    try:
        yield
    finally:
        _holders.pop()
        while _held and not _holders:
            _held.pop(0)()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed on leaving, no matter when a request to end comes."""
    import tempfile

    made: tempfile.TemporaryDirectory[str] | None = None
    try:
        with withheld():
            made = tempfile.TemporaryDirectory(prefix="howfar-", ignore_cleanup_errors=True)
        yield Path(made.name)
    finally:
        with withheld():
            if made is not None:
                made.cleanup()
