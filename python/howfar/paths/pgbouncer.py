"""`pgbouncer` and its variants: PgBouncer on the server's host, the client's host, a separate host, or the single host of both.

PgBouncer parses PostgreSQL's protocol and lends each connection to the server to several clients in turn, for one transaction or one
session at a time. Clients log in with SCRAM, and PgBouncer logs in to the server with the same keys: its account file contains the
server's SCRAM secret, not the password. Its own counters show what it carried. Its CPU time counts as the path's.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal

from howfar.errors import LabError
from howfar.paths.path import ClientEndpoint, Hop, Path, PathContext, Row, Side, find_program

if TYPE_CHECKING:
    from howfar.clients.postgresql import PostgresqlConnection

Leg = Literal["socket", "tcp"]
"""Kind of PgBouncer's connections to clients, or to the server."""
_PROGRAM = "pgbouncer"
_NOBODY_UID = 65534
"""UID of nobody: PgBouncer refuses to run as root."""
_POOL_SIZE = 20
"""Connections to the server that carry the transactions of all clients in turn; PgBouncer's default."""
_OTHER_FILES = 200
"""Number of files that PgBouncer opens in addition to two for each client."""
_MAX_CLIENTS = 32_000
_ANSWER_TIMEOUT_S = 5.0
_CONFIGURATION = """\
[databases]
{database} = host={host} port={server_port}
[pgbouncer]
listen_addr = {listen}
listen_port = {port}
unix_socket_dir = {work}
listen_backlog = 4096
pool_mode = {mode}
default_pool_size = {pool}
max_client_conn = {max_clients}
auth_type = {auth_type}
auth_file = {accounts}
log_connections = 0
log_disconnections = 0
# Nothing ends an idle connection but its client or server.
server_lifetime = 86400
server_idle_timeout = 0
query_wait_timeout = 0
"""


class PgbouncerPath(Path):
    """PgBouncer on one host and in one mode. `listens`: how clients connect to it; `connects`: how it connects to the server."""

    networking = True
    hops = (_PROGRAM,)
    protocols = ("postgresql",)
    pools = True
    passes_tls = False
    works_between_hosts = True
    modelled = False

    def __init__(
        self, name: str, label: str, *, side: Side, machines: int = 2, listens: Leg, connects: Leg, mode: str
    ) -> None:
        self.name = name
        self.label = label
        self.machines = machines
        self.crosses_link = machines == 2
        self.by_socket = connects == "socket"
        self.keeps_sessions = mode == "session"
        self.movable = machines == 2 and (listens, connects) == ("tcp", "tcp")
        self._side: Side = side
        self._listens, self._connects, self._mode = listens, connects, mode

    def open(self, context: PathContext) -> ClientEndpoint:
        assert context.server_port is not None, "this path needs a server that listens on TCP"
        crosses_link, hop_address = self.crosses_link, context.hop_address
        side: Side = "hop" if hop_address else self._side
        address = hop_address or (
            context.server_address if crosses_link and side == "server" else context.loopback_address
        )
        server_address = context.server_address if crosses_link and side != "server" else context.loopback_address
        pgbouncer = _PgBouncer(
            context,
            side,
            listen=address if self._listens == "tcp" else "",
            connect=str(context.server_socket.parent) if self.by_socket else server_address,
            mode=self._mode,
        )
        socket_path = pgbouncer.socket if self._listens == "socket" else None
        expected_client_host = hop_address or (
            context.client_address if crosses_link and side == "client" else context.loopback_address
        )
        return ClientEndpoint(
            socket=socket_path,
            host=None if socket_path else address,
            port=None if socket_path else context.hop_port,
            peer_pid=pgbouncer.process.pid if socket_path else None,
            expected_client_host="localhost" if self.by_socket else expected_client_host,
            server_port=(context.hop_port if side == "server" else context.server_port) if crosses_link else None,
            hops=(pgbouncer.hop,),
            facts={"program": context.run_on(side, _version), pgbouncer.hop.label: pgbouncer.facts},
        )


PGBOUNCER_PATHS = (
    PgbouncerPath(
        "pgbouncer",
        "TCP from a second machine to PgBouncer, which has the server's socket",
        side="server",
        listens="tcp",
        connects="socket",
        mode="transaction",
    ),
    PgbouncerPath(
        "pgbouncer-session",
        "TCP from a second machine to PgBouncer, which pools sessions",
        side="server",
        listens="tcp",
        connects="socket",
        mode="session",
    ),
    PgbouncerPath(
        "pgbouncer-tcp",
        "TCP from a second machine to PgBouncer, which reaches the server by TCP",
        side="server",
        listens="tcp",
        connects="tcp",
        mode="transaction",
    ),
    PgbouncerPath(
        "pgbouncer-near",
        "PgBouncer's socket beside the client, and TCP to a second machine",
        side="client",
        listens="socket",
        connects="tcp",
        mode="transaction",
    ),
    PgbouncerPath(
        "pgbouncer-local",
        "PgBouncer's socket on the same machine",
        side="server",
        machines=1,
        listens="socket",
        connects="socket",
        mode="transaction",
    ),
)


class _PgBouncer:
    """One running PgBouncer, with its addresses and counters."""

    def __init__(self, context: PathContext, side: Side, *, listen: str, connect: str, mode: str) -> None:
        work, port, database = context.work, context.hop_port, context.database
        log = "pgbouncer.log"
        # PgBouncer can log in to the server with a client's keys only if PgBouncer and server store the same SCRAM secret.
        (row,) = context.query(f"SELECT rolpassword FROM pg_authid WHERE rolname = '{context.user}'")
        # Without a password at the server, PgBouncer requires none either.
        secret = row["rolpassword"]
        accounts = context.write(side, "pgbouncer.users", f'"{context.user}" "{secret or ""}"\n')
        max_clients = context.run_on(side, _max_clients)
        configuration = _CONFIGURATION.format(
            database=database,
            host=connect,
            server_port=context.server_port,
            listen=listen,
            port=port,
            work=work,
            mode=mode,
            pool=_POOL_SIZE if mode == "transaction" else max_clients,
            max_clients=max_clients,
            accounts=accounts,
            auth_type="scram-sha-256" if secret else "trust",
        )
        file = context.write(side, "pgbouncer.ini", configuration)
        self.socket = str(socket_path := work / f".s.PGSQL.{port}")
        context.run_on(side, partial(_close_console, socket_path))
        program = context.run_on(side, partial(find_program, _PROGRAM))
        self.process = context.start(side, [program, str(file)], log, as_user=_NOBODY_UID)
        context.wait_until(self.process, log, lambda: context.run_on(side, socket_path.is_socket))
        self.facts = (
            f"pools {mode}s, at most {_POOL_SIZE if mode == 'transaction' else max_clients} connections; "
            f"listens at {listen or socket_path}:{port}, connects to {connect}:{context.server_port}"
        )
        self._context, self._side, self._database = context, side, database
        self.hop = Hop(
            f"{side}_side",
            self.process,
            read_counters=self._read_counters,
            count_connections=self._count_connections,
            close_idle_connections=self._close_idle_connections,
        )

    def _query_console_rows(self, command: str) -> list[Row]:
        rows = self._context.run_on(self._side, partial(_query_console, self.socket, command))
        return [row for row in rows if row["database"] == self._database]

    def _read_counters(self) -> Mapping[str, int]:
        """Read the counters of bytes, transactions and queries. Raises LabError."""
        names = {"total_received": "bytes_to_server", "total_sent": "bytes_to_client"}
        names |= {"total_xact_count": "transactions", "total_query_count": "queries"}
        totals = self._query_console_rows("SHOW STATS")
        return {name: sum(int(row[column]) for row in totals) for column, name in names.items()}

    def _count_connections(self) -> Mapping[str, int]:
        """Read the present numbers of connections. Raises LabError."""
        pools = self._query_console_rows("SHOW POOLS")
        sides = {"to_clients": ("cl_active", "cl_waiting"), "to_server": ("sv_active", "sv_idle", "sv_used")}
        return {side: sum(int(row[name]) for row in pools for name in names) for side, names in sides.items()}

    def _close_idle_connections(self) -> None:
        """Close the connections to the server, because a PostgreSQL session publishes its statistics when it ends. Raises LabError."""
        self._context.run_on(self._side, partial(_query_console, self.socket, "PAUSE"))
        self._context.run_on(self._side, partial(_close_console, FilePath(self.socket)))


_consoles: dict[str, PostgresqlConnection] = {}
"""Open connections to PgBouncer's console, by its socket, in the process that runs on PgBouncer's host."""


def _close_console(socket_path: FilePath) -> None:
    """Close the console of an earlier PgBouncer and remove its socket."""
    if (console := _consoles.pop(str(socket_path), None)) is not None:
        with suppress(Exception):  # the other end may be dead, which pg8000 reports by various exceptions
            console.close()
    socket_path.unlink(missing_ok=True)


def _query_console(socket_path: str, command: str) -> list[Row]:
    """Run a command in PgBouncer's console, which admits the account that runs PgBouncer. Raises LabError."""
    # Imported here because every command imports the paths, but few commands open one.
    from howfar.clients.postgresql import ERRORS, PostgresqlConnection

    try:
        if socket_path not in _consoles:
            _consoles[socket_path] = PostgresqlConnection(
                _PROGRAM, unix_sock=socket_path, database=_PROGRAM, timeout=_ANSWER_TIMEOUT_S
            )
        return _consoles[socket_path].rows(command)
    except ERRORS as error:
        raise LabError(f"PgBouncer's console does not answer {command}: {error}") from error


def _max_clients() -> int:
    """The maximum number of clients that the file limit allows; each also needs a file for a connection to the server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CLIENTS if hard == resource.RLIM_INFINITY else min(_MAX_CLIENTS, hard // 2 - _OTHER_FILES)


@cache
def _version() -> str:
    """PgBouncer's version: `PgBouncer 1.18.0`."""
    output = subprocess.run([find_program(_PROGRAM), "--version"], capture_output=True, text=True).stdout
    return output.partition("\n")[0]
