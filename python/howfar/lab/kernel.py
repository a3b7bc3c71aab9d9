"""System calls that the standard library of Python 3.11 lacks; on failure they raise OSError."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_Result = TypeVar("_Result")


def _check_result(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends."""
    _check_result(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def _run_in_thread(function: Callable[[], _Result]) -> _Result:
    """Run `function` in a separate thread: a network namespace belongs to a thread, and the caller's must not change."""
    results: list[_Result] = []
    errors: list[BaseException] = []

    def call_function() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call_function, name="network namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def new_network_namespace() -> int:
    """Create a network namespace, which exists as long as the returned descriptor is open."""

    def unshare() -> int:
        _check_result(_libc.unshare(_CLONE_NEWNET), "unshare(CLONE_NEWNET)")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _run_in_thread(unshare)


def in_network_namespace(descriptor: int, function: Callable[[], _Result]) -> _Result:
    """Run `function` in the network namespace of `descriptor`; its sockets and its view of /proc/sys/net belong to that namespace."""

    def enter() -> _Result:
        _check_result(_libc.setns(descriptor, _CLONE_NEWNET), "setns")
        return function()

    return _run_in_thread(enter)
