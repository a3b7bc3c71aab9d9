"""What all tests share: what lies in `lab` and `physics` starts real things, so it carries the mark, and more time to end in.

Properties are tried on the same values in each run, so that a change and not a dice decides whether the tests pass;
`HOWFAR_EXPLORE=1` draws others.
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

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("default" if os.environ.get("HOWFAR_EXPLORE") else "repeatable")

TESTS = Path(__file__).parent

os.environ.pop("COLUMNS", None)
"""Set by what runs tests side by side; output is as wide as it is without a terminal, unless a test says otherwise."""
LONG_S = 1200

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As for a command in the background; tests send it, to their own process and to what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_known_password() -> Iterator[None]:
    """A password of one test is an ordinary word in the next."""
    yield
    passwords.forget()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in {"lab", "physics"}:
            item.add_marker(pytest.mark.lab)
        long = item.get_closest_marker("lab") or item.get_closest_marker("slow")
        if long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S))


def pytest_collection_finish() -> None:
    """What was collected stays until the end: the garbage collector need not look at it again and again, nor as often."""
    gc.freeze()
    gc.set_threshold(50_000)
