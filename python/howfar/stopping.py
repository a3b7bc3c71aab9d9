"""Handles end signals, SIGINT, SIGTERM and SIGHUP, which every command treats in the same way.

A signal that was ignored at the start, for example by nohup, stays ignored. This module is imported before all others, so it imports
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

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLEANUP_S = 10.0
"""Time after an end signal in which further ones count as repeated: a signal to a process group may arrive twice, and must not
disturb the cleanup."""


_requested_at_s = float("-inf")
"""Time of the last end signal, whichever handler handled it."""
_requested_by: int = signal.SIGINT
"""The last end signal that was raised as an exception here."""
_active_deferrals: list[bool] = []
_deferred_calls: list[Callable[[], None]] = []
"""Deferred end signals, as calls of their handlers."""


class EndRequested(KeyboardInterrupt):
    """SIGTERM or SIGHUP: handled like Ctrl-C, with its own exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.exit_code = 128 + number


@contextmanager
def handling_end_signals(handler: Callable[[int], None]) -> Iterator[None]:
    """Call `handler` with the number of each end signal during the block. In other threads than the main one, which receive no
    signals, this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {
        number: signal.signal(number, lambda received, _frame: _handle_or_hold(handler, received)) for number in handled
    }
    try:
        yield
    finally:
        for number, handler_before in previous_handlers.items():
            signal.signal(number, handler_before)


def _handle_or_hold(handler: Callable[[int], None], number: int) -> None:
    if _active_deferrals:
        _deferred_calls.append(lambda: handler(number))
    else:
        handler(number)


def is_repeated_request() -> bool:
    """Whether a new end signal repeats a recent one, whichever handler handled that. If not, the time of the new one is recorded."""
    global _requested_at_s
    now = time.monotonic()
    if now - _requested_at_s < _CLEANUP_S:
        return True
    _requested_at_s = now
    return False


def end_signal_exit_code() -> int:
    """Exit code of a command that a signal ended: 128 plus the signal's number."""
    return 128 + _requested_by


@contextmanager
def raising_on_end_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGINT and `EndRequested` for the other end signals, so that cleanup code runs."""
    global _requested_at_s, _requested_by
    _requested_at_s, _requested_by = float("-inf"), signal.SIGINT

    def raise_ended(number: int) -> None:
        global _requested_by
        if is_repeated_request() and number != signal.SIGINT:
            return
        _requested_by = number
        raise KeyboardInterrupt if number == signal.SIGINT else EndRequested(number)

    with handling_end_signals(raise_ended):
        yield


@contextmanager
def forwarding_end_signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward end signals to a child process during the block. A terminal's Ctrl-C reaches the child directly. Nothing is raised here,
    because an exception in wait() could lose an exit code. A second signal to the process group counts as repeated."""

    def forward(number: int) -> None:
        global _requested_at_s
        _requested_at_s = time.monotonic()
        if number != signal.SIGINT:
            process.send_signal(number)

    with handling_end_signals(forward):
        yield


@contextmanager
def deferring_end_signals() -> Iterator[None]:
    """Defer end signals during the block, so that everything created in it is registered for cleanup. A signal mask would not
    suffice: another thread would receive the signal, and its handler would still run in the main thread."""
    _active_deferrals.append(True)
    try:
        yield
    finally:
        _active_deferrals.pop()
        while _deferred_calls and not _active_deferrals:
            _deferred_calls.pop(0)()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder that is removed after the block, no matter when an end signal arrives."""
    import tempfile

    folder: tempfile.TemporaryDirectory[str] | None = None
    try:
        with deferring_end_signals():
            folder = tempfile.TemporaryDirectory(prefix="howfar-", ignore_cleanup_errors=True)
        yield Path(folder.name)
    finally:
        with deferring_end_signals():
            if folder is not None:
                folder.cleanup()
