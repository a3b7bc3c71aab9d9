"""Requests to end: SIGINT, SIGTERM and SIGHUP, which every command treats in the same way.

A signal that was ignored at the start, for example by nohup, stays ignored. This module is needed before the rest is loaded, so it
imports little.
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
_CLEANUP_S = 10.0
"""For this long after a request, further requests count as repeated: a signal to a process group may arrive twice, and must not
disturb the cleanup."""


_requested_at = float("-inf")
"""Time of the last request, whichever handler handled it."""
_requested_by: int = signal.SIGINT
"""The signal of the last request that was raised here."""
_active_holds: list[bool] = []
_held_requests: list[Callable[[], None]] = []
"""Requests that came while they were withheld, as calls of their handlers."""


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
    handled = [number for number in REQUESTS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {
        number: signal.signal(number, lambda received, _frame: _handle_or_hold(handler, received)) for number in handled
    }
    try:
        yield
    finally:
        for number, handler_before in previous_handlers.items():
            signal.signal(number, handler_before)


def _handle_or_hold(handler: Callable[[int], None], number: int) -> None:
    if _active_holds:
        _held_requests.append(lambda: handler(number))
    else:
        handler(number)


def is_repeated() -> bool:
    """Whether a request that has just come repeats a recent one, whichever handler handled that. If not, its time is recorded."""
    global _requested_at
    now = time.monotonic()
    if now - _requested_at < _CLEANUP_S:
        return True
    _requested_at = now
    return False


def request_code() -> int:
    """The exit code of a command that a request ended: 128 and the number of its signal."""
    return 128 + _requested_by


@contextmanager
def ended_by_request() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGINT and `Ended` for the other requests, so that cleanup code runs."""
    global _requested_at, _requested_by
    _requested_at, _requested_by = float("-inf"), signal.SIGINT

    def raise_ended(number: int) -> None:
        global _requested_by
        if is_repeated() and number != signal.SIGINT:
            return
        _requested_by = number
        raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)

    with on_request(raise_ended):
        yield


@contextmanager
def forward_requests_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass requests on to a child process while inside. A terminal's Ctrl-C reaches the child directly. Nothing is raised here: an
    exception in wait() could lose the exit code that it has just fetched. The second signal to a process group counts as repeated."""

    def forward(number: int) -> None:
        global _requested_at
        _requested_at = time.monotonic()
        if number != signal.SIGINT:
            process.send_signal(number)

    with on_request(forward):
        yield


@contextmanager
def hold_requests() -> Iterator[None]:
    """Withhold requests to end until this context is left, so that what is created inside is registered for cleanup. A signal mask
    would not suffice: another thread would receive a signal that this one blocks, and its handler still runs in the main thread."""
    _active_holds.append(True)
    try:
        yield
    finally:
        _active_holds.pop()
        while _held_requests and not _active_holds:
            _held_requests.pop(0)()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed on leaving, no matter when a request to end comes."""
    import tempfile

    folder: tempfile.TemporaryDirectory[str] | None = None
    try:
        with hold_requests():
            folder = tempfile.TemporaryDirectory(prefix="howfar-", ignore_cleanup_errors=True)
        yield Path(folder.name)
    finally:
        with hold_requests():
            if folder is not None:
                folder.cleanup()
