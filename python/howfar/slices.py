"""Slices: the folders below `experiments` that hold all that one kind of measurement needs.

The core asks for what the slices register, by the name of a module and of a value in it, and names none of them. To add a slice, add
its folder and its name here; to remove it, remove both.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TypeVar

SLICES = ("replication", "key_value", "page", "network")
"""Folders of `experiments`, in the order in which their factors, findings and reports are considered."""

_FOLDER = Path(__file__).parent / "experiments"
_PLANS = (Path(__file__).parent / "plan" / "shipped", *(_FOLDER / part / "plans" for part in SLICES))
REGISTERED: Mapping[str, tuple[str, ...]] = {
    "application": ("APPLICATIONS",),
    "experiments": ("EXPERIMENTS",),
    "factors": ("FACTORS", "NAMINGS", "SERVER_LINKS", "SESSION_SETTINGS"),
    "hosts": ("APPLICATIONS", "SERVER_GROUPS"),
    "lab_command": ("GROUP_OPTIONS",),
    "load": ("LOADS", "MEASUREMENTS"),
    "plan": ("WORKLOADS", "TABLES", "CHECKS"),
    "preflight": ("SERVER_SUPPORT",),
    "records": ("FAULTS", "LAGS"),
    "server_groups": ("SERVER_GROUPS",),
    "setup": ("WORKLOAD_NOTES",),
    "violations": ("VIOLATIONS",),
    "waits": ("ACKNOWLEDGEMENTS",),
}
"""Tuples that the core asks for, by module of a slice. A module has one or more of them."""
T = TypeVar("T")


def collect(module: str, name: str, kind: type[T]) -> tuple[T, ...]:
    """The values of type `kind` that the slices' modules called `module` register in their tuple `name`."""
    assert name in REGISTERED[module], f"{module}.{name} is not in REGISTERED"
    found: list[T] = []
    for part in _modules(module):
        # A module that is still being imported would seem to register nothing.
        assert any(hasattr(part, known) for known in REGISTERED[module]), f"{part.__name__} registers nothing"
        for value in getattr(part, name, ()):
            assert isinstance(value, kind), f"{part.__name__}.{name} holds {value!r}, not {kind.__name__}"
            found.append(value)
    return tuple(found)


@cache
def plan_files() -> dict[str, Path]:
    """The plans that come with howfar, those of the slices included, by name."""
    files = (file for folder in _PLANS if folder.is_dir() for file in folder.glob("*.toml"))
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


@cache
def _modules(name: str) -> tuple[ModuleType, ...]:
    return tuple(
        import_module(f"howfar.experiments.{part}.{name}")
        for part in SLICES
        if (_FOLDER / part / f"{name}.py").is_file() or (_FOLDER / part / name).is_dir()
    )
