"""Read receipts and environments of any version, in which keys may be absent: a number under nested keys, a list of processors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number_in(facts: Mapping[str, Any], *path: str) -> float | None:
    """A number under keys of nested mappings; None: absent."""
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def cpus_in(facts: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Numbers of processors; empty: not recorded."""
    found = facts.get(key)
    return tuple(cpu for cpu in found if isinstance(cpu, int)) if isinstance(found, list | tuple) else ()
