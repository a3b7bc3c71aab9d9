"""Servers beside the one that a stage is of, as a page asks them: Redis or Valkey, and Memcached, on the same host and CPUs.

Each has a directory of its own below the laboratory's, and is started afresh for each stage, as the main server is. How a path leads
to them is the same for all (`reached.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from howfar.errors import PlanError
from howfar.lab.cache import check_name
from howfar.lab.reached import SERVICES, Started
from howfar.lab.servers import CertificatePaths, Ground, Store, Tables, find_store
from howfar.lab.servers.kinds import STORES
from howfar.paths import Path as NetworkPath
from howfar.plan.sessions import SessionAsked


class Beside:
    """Found programs with their directories. Made once for a laboratory."""

    def __init__(self, servers: Sequence[str], main: str | None, ground: Ground) -> None:
        """`servers`: kinds, names or paths, as of the main server, whose kind is `main`. Raises PlanError, ServerMissing."""
        self._stores: list[Store] = []
        taken = set() if main is None else {SERVICES[main]}
        for server in servers:
            store = find_store(server, Tables(0, 0))
            if store.kind not in STORES:
                raise PlanError(f"{server} cannot stand beside another server", f"Those that can: {', '.join(STORES)}.")
            name = SERVICES[store.kind]
            if name in taken:
                raise PlanError(f"two servers would be the application's {name}", "Name one of them.")
            taken.add(name)
            work = self.work(ground.work, store.kind)
            check_name(work)
            work.mkdir()
            store.prepare(replace(ground, work=work))
            self._stores.append(store)

    @staticmethod
    def work(of: Path, kind: str) -> Path:
        """Where one's sockets and logs are, below the laboratory's own directory."""
        return of / SERVICES[kind]

    def environment(self) -> dict[str, dict[str, str]]:
        return {
            SERVICES[store.kind]: {"kind": store.kind, "version": store.version, "program": str(store.program.path)}
            for store in self._stores
        }

    def start(
        self, path: NetworkPath, certificates: CertificatePaths | None, asked: SessionAsked, ledger: ExitStack
    ) -> tuple[Started, ...]:
        """All of them, answering; stopped with the ledger. Raises ServerCrashed, LabError."""
        mine = of_store(asked, path)
        found = []
        for store in self._stores:
            running = store.start(
                networking=path.networking,
                tls=certificates if mine.tls else None,
                reached_by="socket" if path.by_socket else "tcp",
            )
            ledger.callback(running.stop)
            found.append(Started(running, certificates if mine.tls else None, mine))
        return tuple(found)


def of_store(asked: SessionAsked, path: NetworkPath) -> SessionAsked:
    """What a cell's sessions can be with a key-value store: it compresses nothing, and its socket is plain."""
    plain = replace(asked, algorithm=None, level=None)
    return replace(plain, tls=None, resumption=False) if path.by_socket else plain
