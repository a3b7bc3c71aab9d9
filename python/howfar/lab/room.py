"""How many rows a laboratory has room for: in memory, where its tables lie twice (as files and in the server's pool), and on disk,
where their template is kept.

Not here: what a plan makes of that number (`plan/fitting.py`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from howfar.lab.cache import cache_home
from howfar.lab.environment import memory_bytes
from howfar.lab.servers.contents import find_rows
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import LOADED, POOL_PER_DATA, ROW_BYTES, template_name
from howfar.plan.factors import Content
from howfar.plan.fitting import round_below
from howfar.plan.types import Data

_MEMORY_SHARE = 0.7
"""Of all memory: so much less is stable from day to day, and the rest is for what else runs."""
_AVAILABLE_SHARE = 0.9
"""Of what is free now, on a machine where more is taken than that rest."""
_SERVER_BYTES = 1536 * 2**20
"""A server beside its pool, 2048 connections included (MySQL with 2048 was seen to take 1 GB)."""
_DISK_SHARE = 0.9
_CGROUPS = Path("/sys/fs/cgroup")


def rows_that_fit(data: Data, contents: Sequence[Content], program: Program, servers: int = 1) -> int:
    """Of each table, with a data directory for each content, on so many servers at once. 0: none."""
    memory = min(_total() * _MEMORY_SHARE, memory_bytes("MemAvailable") * _AVAILABLE_SHARE)
    kept = sizes_kept(cache_home() / LOADED, program, data.tables, contents)
    sizes = [size for size in kept if size == data.table_size or (size < data.table_size and size == round_below(size))]
    return rows_in(memory, shutil.disk_usage(cache_home()).free, data.tables, len(contents), sizes, servers)


def rows_at_all(data: Data) -> int:
    """Of each table, where only the server's pool is in memory and all of it is given to that: of more it would die."""
    return max(int(memory_at_all() / POOL_PER_DATA / (data.tables * ROW_BYTES)), 0)


def memory_at_all() -> float:
    """Bytes that one program could take now."""
    return min(_total(), memory_bytes("MemAvailable"))


def _total() -> float:
    return min(memory_bytes("MemTotal"), memory_limit(Path("/proc/self/cgroup").read_text(), _CGROUPS))


def rows_in(
    memory_bytes: float, disk_bytes: float, tables: int, contents: int, kept: Sequence[int] = (), servers: int = 1
) -> int:
    """`kept`: sizes of which there are templates already: they need no more disk."""
    row_bytes = tables * ROW_BYTES
    in_memory = int((memory_bytes / servers - _SERVER_BYTES) / (contents + POOL_PER_DATA) / row_bytes)
    on_disk = int(disk_bytes * _DISK_SHARE / contents / row_bytes)
    there = max((size for size in kept if size <= in_memory), default=0)
    return max(min(in_memory, max(on_disk, there)), 0)


def sizes_kept(shelf: Path, program: Program, tables: int, contents: Sequence[Content]) -> tuple[int, ...]:
    """Rows of the tables of which a template lies there for every content."""
    names = [path.name for path in shelf.iterdir()] if shelf.is_dir() else []
    common: set[int] | None = None
    for content in contents:
        rows = find_rows(content)
        found = ((name, int(size)) for name in names for size in re.findall(r"x(\d+)-", name))
        sizes = {size for name, size in found if name == template_name(program, tables, size, rows)}
        common = sizes if common is None else common & sizes
    return tuple(sorted(common or ()))


def memory_limit(membership: str, root: Path) -> float:
    """The least that this process's control groups allow, of version 1 or 2. `membership`: /proc/self/cgroup. Infinite: no limit."""
    limit = float("inf")
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = base / path.lstrip("/")
        # Inside a container the path may be one of outside, and its own group is the root that it sees.
        for place in (group, *group.parents):
            if place == base or base in place.parents:
                limit = min(limit, _bytes_in(place / name))
    return limit


def _bytes_in(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return float("inf")
