"""Every fault that was found by trying out the product has a test that carries its id, such as `[rec-3]`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOUND = {"rec": 18, "cap": 8, "load": 15, "tls": 9, "doc": 11, "peer": 5, "file": 12, "app": 26, "dist": 4, "cli": 14}
WITHOUT = {
    "cli-13": "two addresses cannot be compared in alternating blocks yet",
    "doc-10": "a greeting that waits for a resolver is not named as such yet",
    "doc-11": "a user's own program cannot be a hop yet",
    "app-17": "documented: PHP does not say when fastcgi_finish_request ran",
}
"""Ids without a test, and why."""


def test_each_fault_that_was_found_has_its_test() -> None:
    sources = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "crates").rglob("*.rs")]
    own = Path(__file__)
    carried = {
        found
        for source in sources
        if source != own
        for found in re.findall(r"\b(?:rec|cap|load|tls|doc|peer|file|app|dist|cli)-\d+\b", source.read_text())
    }
    wanted = {f"{area}-{number}" for area, count in FOUND.items() for number in range(1, count + 1)}
    assert wanted - carried == WITHOUT.keys()
