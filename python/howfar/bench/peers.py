"""Interface of the load generators that `howfar bench engine --against` compares with, and sysbench's server, tables and statements.

The server counts a peer's queries; the output of the peer is not used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import pymysql

from howfar.clients import OWN_SERVER
from howfar.clients.mysql import MysqlConnection
from howfar.contract.messages import Pgbench, Sysbench
from howfar.errors import LabError, MissingError
from howfar.lab.servers import DATABASE, USER, ServerProcess
from howfar.services import SqlProtocol


class ServerCounters(Protocol):
    """A server's counters, over a separate connection."""

    def align(self) -> None:
        """Wait for a moment at which the counters are up to date, if the server publishes them only at intervals."""
        ...

    def executed(self) -> int:
        """Queries or transactions of the workload since the server began."""
        ...

    def connected(self) -> int:
        """Number of sessions besides this one and the laboratory's, which are taken to be the smallest total seen so far."""
        ...

    def close(self) -> None: ...


class PeerProgram(Protocol):
    """A load generator that the engine is compared with."""

    program: str
    server: str
    """Kind of server that is started unless another is named."""
    protocol: SqlProtocol
    description: str
    cpu_bars: Mapping[int, float]
    """Client CPU per query relative to the peer's, by connections."""
    memory_bars: Mapping[int, float]
    bare: bool
    """Whether this is the engine's own loop that only moves the bytes. It starts as the engine does, and no client is faster."""

    @property
    def workload(self) -> Sysbench | Pgbench: ...

    def version(self) -> str:
        """The peer's version. Raises MissingError."""
        ...

    def prepare(self, server: ServerProcess, password: str, folder: Path) -> None:
        """Make tables that the laboratory does not load, and a file for the password: every user can read a command line."""
        ...

    def command(self, server: ServerProcess, folder: Path, connections: int, threads: int) -> list[str]: ...

    def environment(self, server: ServerProcess, folder: Path) -> dict[str, str]: ...

    def counters(self, server: ServerProcess, password: str) -> ServerCounters: ...


def version_of(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise MissingError(f"the program {program} was not found", f"Install Debian's package {package}.")
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def write_secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


class SysbenchPeer:
    program = "sysbench"
    server = "mariadb"
    protocol: SqlProtocol = "mysql"
    workload = Sysbench(kind="oltp_point_select", tables=1, table_size=10_000)
    description = f"{workload.kind}, {workload.tables} table of {workload.table_size} rows, prepared, Unix socket"
    cpu_bars: Mapping[int, float] = {1: 0.55, 64: 0.35, 512: 0.20, 2048: 0.08}
    memory_bars: Mapping[int, float] = {64: 0.5, 512: 0.2, 2048: 0.1}
    bare = False

    def version(self) -> str:
        return version_of("sysbench", "sysbench")

    def prepare(self, server: ServerProcess, password: str, folder: Path) -> None:
        write_secret(folder / "sysbench.cnf", f"mysql-password={password}\n")

    def command(self, server: ServerProcess, folder: Path, connections: int, threads: int) -> list[str]:
        """The command line; sysbench has a thread for each connection."""
        return [
            "sysbench",
            f"--config-file={folder / 'sysbench.cnf'}",
            self.workload.kind,
            f"--mysql-socket={server.socket}",
            f"--mysql-user={USER}",
            f"--mysql-db={DATABASE}",
            f"--tables={self.workload.tables}",
            f"--table-size={self.workload.table_size}",
            f"--threads={connections}",
            "--time=3600",
            "run",
        ]

    def environment(self, server: ServerProcess, folder: Path) -> dict[str, str]:
        return dict(os.environ)

    def counters(self, server: ServerProcess, password: str) -> ServerCounters:
        return MysqlCounters(server.socket, USER, password)


class MysqlCounters:
    """`ServerCounters` of MariaDB and MySQL."""

    def __init__(self, socket: Path, user: str, password: str) -> None:
        self._connection = MysqlConnection(
            OWN_SERVER, unix_socket=str(socket), user=user, password=password, connect_timeout=60
        )
        self._other_sessions = self._status("Threads_connected")

    def align(self) -> None:
        """Nothing to do: the counters are up to date at any time."""

    def executed(self) -> int:
        return self._status("Com_stmt_execute")

    def connected(self) -> int:
        sessions = self._status("Threads_connected")
        self._other_sessions = min(self._other_sessions, sessions)
        return sessions - self._other_sessions

    def _status(self, name: str) -> int:
        try:
            ((_, value),) = self._connection.values(f"SHOW GLOBAL STATUS WHERE Variable_name = '{name}'")
        except pymysql.Error as error:
            raise LabError(f"the server did not report its counter {name}: {error}") from error
        return int(value)

    def close(self) -> None:
        self._connection.close()


BARE_CPU_BARS: Final[Mapping[int, float]] = {1: 1.5, 64: 1.3, 512: 1.3, 2048: 1.3}


class BareSysbenchPeer(SysbenchPeer):
    program = "a bare loop"
    cpu_bars = BARE_CPU_BARS
    memory_bars: Mapping[int, float] = {}
    bare = True

    def version(self) -> str:
        return self.program
