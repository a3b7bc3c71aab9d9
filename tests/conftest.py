"""What all tests share: what lies in `lab` and `physics` starts real things, so it carries the mark, and more time to end in."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONG_S = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in {"lab", "physics"}:
            item.add_marker(pytest.mark.lab)
        long = item.get_closest_marker("lab") or item.get_closest_marker("slow")
        if long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S))
