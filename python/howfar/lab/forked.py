"""How many processes a forwarder has for its connections, watched while a load runs: afterwards they are gone."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

_EVERY_S = 0.1
"""Two small files each time: some tens of microseconds of CPU."""


def child_count(pid: int) -> int | None:
    """Children of all threads of a process now. None: gone, or this kernel does not list children."""
    try:
        lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return None
    return sum(map(len, lists)) if lists else None


class ForkWatch:
    """Watches processes by name from its making until `finish()`, which gives the most children that each had at once."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._most: dict[str, int | None] = dict.fromkeys(pids)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="forwarders", daemon=True)
        self._look()
        self._thread.start()

    def _look(self) -> None:
        for name, pid in self._pids.items():
            now, most = child_count(pid), self._most[name]
            self._most[name] = now if most is None else max(most, now or 0)

    def _watch(self) -> None:
        while not self._end.wait(_EVERY_S):
            self._look()

    def finish(self) -> dict[str, int | None]:
        """Stops watching; may be called again. None: unknown."""
        self._end.set()
        self._thread.join()
        return dict(self._most)


def fork_violations(most: Mapping[str, int | None], connections: int | None) -> tuple[str, ...]:
    """Forwarders with fewer processes than there were connections did not forward them all. Unknown is no violation."""
    if connections is None:
        return ()
    return tuple(
        f"the forwarder of the {name.replace('_', ' ')} had {count} processes for {connections} connections"
        for name, count in most.items()
        if count is not None and count < connections
    )
