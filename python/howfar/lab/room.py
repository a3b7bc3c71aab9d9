"""How many rows a laboratory has room for: in memory, where its tables lie twice (as files and in the server's pool), and on disk,
where their template is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from howfar.lab.cache import cache_home
from howfar.lab.servers.sql_store import POOL_PER_DATA, ROW_BYTES
from howfar.lab.servers.templates import SHELF_BYTES_MAX, shelf_bytes

_MEMORY_SHARE = 0.7
"""Of all memory: so much less is stable from day to day, and the rest is for what else runs."""
_SERVER_BYTES = 1536 * 2**20
"""A server beside its pool, 2048 connections included (MySQL with 2048 was seen to take 1 GB)."""
_DISK_SHARE = 0.9


def rows_that_fit(tables: int, contents: int) -> int:
    """Of each table, with a data directory for each content."""
    memory = _memory_total() * _MEMORY_SHARE - _SERVER_BYTES
    shelf = cache_home() / "templates" / "loaded"
    disk = min(SHELF_BYTES_MAX, shutil.disk_usage(cache_home()).free * _DISK_SHARE + shelf_bytes(shelf))
    data_bytes = min(memory / (contents + POOL_PER_DATA), disk / contents)
    return max(1, int(data_bytes / (tables * ROW_BYTES)))


def _memory_total() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0
