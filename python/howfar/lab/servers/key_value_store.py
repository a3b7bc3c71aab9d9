"""Redis, Valkey or Memcached: nothing is prepared on disk, each trial begins with an empty one.

What is in it is set by the engine (a tables job of the workload `key_value`) or by whoever uses it.
"""

from __future__ import annotations

from typing import Any

from howfar.lab.servers import CertificatePaths, Ground, Reach
from howfar.lab.servers.key_value_server import SOCKET, KeyValueServer
from howfar.lab.servers.program import Program
from howfar.lab.servers.store_dialect import StoreDialect, StoreSettings
from howfar.lab.sockets import free_port
from howfar.plan.factors import Content


class KeyValueStore:
    """See `servers.Store`."""

    user = ""
    password = ""
    database = ""

    def __init__(self, program: Program, dialect: StoreDialect) -> None:
        assert program.kind == dialect.kind
        self.program = program
        self.kind = program.kind
        self.version = program.version
        self._dialect = dialect
        self._ground: Ground | None = None

    def data_bytes(self) -> int:
        return 0

    def prepare(self, ground: Ground) -> dict[str, Any]:
        self._ground = ground
        return {"data_file_system": None, "data_from_template": False, "tables": 0, "table_size": 0, "contents": []}

    def discard(self) -> None:
        """There are no files."""

    def start(
        self,
        *,
        networking: bool,
        tls: CertificatePaths | None = None,
        content: Content | None = None,
        reached_by: Reach = "socket",
    ) -> KeyValueServer:
        settings = self._settings(networking, tls, reached_by)
        server = KeyValueServer(settings, self._dialect, reached_by)
        try:
            server.become_ready()
        except BaseException:
            server.stop()
            raise
        return server

    def _settings(self, networking: bool, tls: CertificatePaths | None, reached_by: Reach) -> StoreSettings:
        """Where it may not listen on both, it listens where it is reached."""
        assert self._ground is not None, "prepare() comes first"
        ground, both = self._ground, self._dialect.has_both
        on_tcp = networking and (both or reached_by == "tcp")
        return StoreSettings(
            program=self.program.path,
            ground=ground,
            socket=ground.work / SOCKET if both or reached_by == "socket" else None,
            port=(self._dialect.port if ground.namespaced else free_port()) if on_tcp else None,
            tls=tls,
        )
