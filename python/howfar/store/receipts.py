"""Functions that read values from receipts and environments of any version, in which keys may be absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number_in(facts: Mapping[str, Any], *path: str) -> float | None:
    """The number under `path`, keys of nested mappings. None: absent."""
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def cpus_in(facts: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A list of CPU numbers. Empty: not recorded."""
    cpus = facts.get(key)
    return tuple(cpu for cpu in cpus if isinstance(cpu, int)) if isinstance(cpus, list | tuple) else ()
