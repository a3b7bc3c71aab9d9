"""pgbench as a peer of `howfar bench engine`, on its own tables in PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from howfar.bench.peers import BARE_CPU_BARS, ServerCounters, version_of, write_secret
from howfar.clients.postgresql import ERRORS, PostgresqlConnection
from howfar.contract.messages import Pgbench
from howfar.errors import LabError
from howfar.lab.servers import DATABASE, USER, ServerProcess
from howfar.services import SqlProtocol

_FLUSH_S = 1.5
"""Longer than the interval of one second at which PostgreSQL's sessions publish their counts."""
_FLUSH_POLL_S = 0.002


class PgbenchPeer:
    program = "pgbench"
    server = "postgresql"
    protocol: SqlProtocol = "postgresql"
    workload = Pgbench(kind="select_only", scale=1)
    description = "pgbench's select-only, scale 1, prepared, Unix socket"
    cpu_bars: Mapping[int, float] = {1: 0.6, 64: 0.35, 512: 0.2}
    memory_bars: Mapping[int, float] = {}
    bare = False

    def version(self) -> str:
        return version_of("pgbench", "postgresql")

    def prepare(self, server: ServerProcess, password: str, folder: Path) -> None:
        write_secret(folder / "pgpass", f"*:*:*:*:{password}\n")
        completed = subprocess.run(
            ["pgbench", "--initialize", "--quiet", f"--scale={self.workload.scale}"],
            env=self.environment(server, folder),
            capture_output=True,
            text=True,
        )
        if completed.returncode != 0:
            raise LabError(f"pgbench did not make its tables: {completed.stderr.strip()[-500:]}")

    def command(self, server: ServerProcess, folder: Path, connections: int, threads: int) -> list[str]:
        return [
            "pgbench",
            "--builtin=select-only",
            "--protocol=prepared",
            "--no-vacuum",
            f"--client={connections}",
            f"--jobs={min(connections, threads)}",
            "--time=3600",
        ]

    def environment(self, server: ServerProcess, folder: Path) -> dict[str, str]:
        name = server.socket.name  # .s.PGSQL.5432
        location = {"PGHOST": str(server.socket.parent), "PGPORT": name.rpartition(".")[2]}
        return {**os.environ, **location, "PGUSER": USER, "PGDATABASE": DATABASE, "PGPASSFILE": str(folder / "pgpass")}

    def counters(self, server: ServerProcess, password: str) -> ServerCounters:
        return PostgresCounters(server.socket, password)


class PostgresCounters:
    """`ServerCounters` of PostgreSQL."""

    def __init__(self, socket: Path, password: str) -> None:
        self._connection = PostgresqlConnection(
            USER, unix_sock=str(socket), database=DATABASE, password=password, timeout=60
        )
        self._other_sessions = self._backends()

    def align(self) -> None:
        """Wait until a session has just published its counts. With many sessions, the lag is the same at both ends of a window."""
        before = self.executed()
        deadline = time.monotonic() + _FLUSH_S
        while self.executed() == before and time.monotonic() < deadline:
            time.sleep(_FLUSH_POLL_S)

    def connected(self) -> int:
        sessions = self._backends()
        self._other_sessions = min(self._other_sessions, sessions)
        return sessions - self._other_sessions

    def executed(self) -> int:
        """Count scans of an index that only the workload uses: queries of this connection and of the laboratory do not count."""
        return self._query_number(
            "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_user_tables WHERE relname = 'pgbench_accounts'"
        )

    def _backends(self) -> int:
        return self._query_number("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")

    def _query_number(self, statement: str) -> int:
        try:
            rows = self._connection.values(statement)
        except ERRORS as error:
            raise LabError(f"the server did not report its counters: {error}") from error
        return int(rows[0][0])

    def close(self) -> None:
        self._connection.close()


class BarePgbenchPeer(PgbenchPeer):
    program = "a bare loop"
    cpu_bars = BARE_CPU_BARS
    bare = True

    def version(self) -> str:
        return self.program
