"""Configuration of all tests: those in `lab` and `physics` start real programs, so they get the mark `lab` and a longer timeout.

Property tests use the same values in each run, so that a change of the code and not chance decides whether they pass;
`HOWFAR_EXPLORE=1` draws other values.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from howfar import passwords

settings.register_profile("repeatable", derandomize=True, deadline=None)  # a deadline is wall-clock time
settings.load_profile("default" if os.environ.get("HOWFAR_EXPLORE") else "repeatable")

TESTS = Path(__file__).parent
LAB_FOLDERS = tuple(f"{TESTS / name}/" for name in ("lab", "physics"))

os.environ.pop("COLUMNS", None)
"""The parallel test runner sets it. Without it, output is as wide as without a terminal, unless a test sets another width."""
LONG_S = 1200

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Background commands of a shell ignore SIGINT, but tests send it to their own process and to those that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_known_password() -> Iterator[None]:
    """Forget the passwords of each test: in the next one they are ordinary words."""
    yield
    passwords.forget()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(LAB_FOLDERS):
            item.add_marker(pytest.mark.lab)
        long = item.get_closest_marker("lab") or item.get_closest_marker("slow")
        if long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S))


def pytest_collection_finish() -> None:
    """Collected tests live until the end, so the garbage collector need not traverse them, and may run less often."""
    gc.freeze()
    gc.set_threshold(50_000)
