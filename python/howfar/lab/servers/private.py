"""Private installs: server programs unpacked below the cache, each with all its libraries, known to nothing else on this machine.

    <cache>/servers/mysql-9.7.4-2/sbin/mysqld    starts the program with its own loader and libraries
                                  packages/…     the packages' files as they came
                                  receipt.json   what it was made of

A directory has its name only once it is complete. Getting one is `getting.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from howfar.lab.cache import cache_home

RECEIPT = "receipt.json"


@dataclass(frozen=True)
class Installed:
    """One private install. `name` is what `--server` takes."""

    name: str
    program: Path


def servers_home() -> Path:
    """Where they are; perhaps not there yet."""
    return cache_home() / "servers"


def installs() -> list[Installed]:
    """All complete ones, older versions first."""
    found = []
    for receipt in servers_home().glob(f"*/{RECEIPT}"):
        if receipt.parent.name.startswith("."):
            continue
        program = json.loads(receipt.read_text())["program"]
        found.append(Installed(receipt.parent.name, receipt.parent / program))
    return sorted(found, key=lambda one: _by_version(one.name))


def named(name: str, candidates: Sequence[Installed]) -> Installed | None:
    """`mysql`, `mysql-9` and `mysql-9.7.4-2` all name `mysql-9.7.4-2`; the newest of several."""
    fitting = [one for one in candidates if one.name == name or one.name.startswith((f"{name}-", f"{name}."))]
    return fitting[-1] if fitting else None


def _by_version(name: str) -> tuple[tuple[int, str], ...]:
    """Numbers by value: 9.10 is newer than 9.9."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))
