"""What all tests share: what lies in `lab` and `physics` starts real things, so it carries the mark."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in {"lab", "physics"}:
            item.add_marker(pytest.mark.lab)
