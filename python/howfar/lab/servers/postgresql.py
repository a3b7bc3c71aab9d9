"""PostgreSQL: initialises it, starts it as a user other than root, loads the tables once, and reads its counters.

PostgreSQL refuses to run as root, and the laboratory runs as root. So each server runs in its own user namespace, which maps root to
nobody: no user account is needed, the server's files still belong to us, and this works with and without root on the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import signal
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pg8000.exceptions import DatabaseError

from howfar.clients.postgresql import ERRORS, PostgresqlConnection, error_message
from howfar.contract.messages import Target, UnixTarget
from howfar.contract.server_receipt import SessionView
from howfar.errors import LabError, PlanError, ServerCrashed, ServerMissing
from howfar.lab.sandbox import as_other_user, children_of
from howfar.lab.servers import (
    DATABASE,
    SPARE_CONNECTIONS,
    USER,
    CertificatePaths,
    RunQuery,
    ServerContext,
    ServerCounts,
    SessionProbe,
    Tables,
    TableServer,
    address_parts,
    describe_address,
    ready_timeout_s,
)
from howfar.lab.servers.contents import Rows, row_chunks
from howfar.lab.servers.dialect import run_initialiser
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import TableStore, template_server
from howfar.paths.path import Row

PACKAGE = "postgresql"
_ADMIN_ROLE = "postgres"
"""The laboratory's own role. It needs no password on the socket, whose directory no other user can enter."""
_INITIAL_DATABASE = "postgres"
_PORT = 5432
"""The usual port. Without networking it appears only in the socket's name."""
_PAGE_BYTES = 8192
_MIN_POOL_BYTES = 16 * 2**20
_STOP_TIMEOUT_S = 5.0
"""Time limit for the server to stop, after which the server itself kills its processes."""
_ANSWER_TIMEOUT_S = 30.0
"""Time limit for an answer over the path: a dead link or hop never answers."""
_SESSIONS_END_TIMEOUT_S = 5.0
"""Time limit for the backends of disconnected clients to end. Each reports its counters when it ends."""
_POLL_S = 0.005
_SCRAM_ITERATIONS = 4096
"""Iterations of SCRAM-SHA-256; the server's default."""
_METRIC_NAMES = {
    "xact_commit": "commits",
    "sessions": "connections",
    "blks_read": "pages_read",
    "wal_sync": "fsyncs",
    "active": "running",
}
"""Names in `ServerMetrics` of the server's counters."""
_COUNTERS = (
    *_METRIC_NAMES,
    "transactions",
    "clients",
    "xact_rollback",
    "blks_hit",
    "tup_returned",
    "tup_fetched",
    "tup_inserted",
    "tup_updated",
    "tup_deleted",
    "deadlocks",
    "temp_files",
    "sessions_abandoned",
    "sessions_killed",
    "wal_records",
    "wal_bytes",
    "wal_write",
    "table_pages",
)
"""Counters of pg_stat_database, pg_stat_wal and the tables' files; a snapshot omits those that a version does not have."""
_COUNTERS_SQL = (
    "SELECT to_jsonb(d) || to_jsonb(w) || jsonb_build_object('transactions', xact_commit + xact_rollback, "
    "'clients', (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()), "
    "'active', (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state = 'active'), "
    "'table_pages', (SELECT sum(pg_relation_size(oid)) / current_setting('block_size')::int FROM pg_class "
    "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i'))) AS c "
    f"FROM pg_stat_database d, pg_stat_wal w WHERE d.datname = '{DATABASE}'"
)
_RECEIPT_SETTINGS = (
    "server_version",
    "max_connections",
    "shared_buffers",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "ssl",
    "password_encryption",
    "jit",
    "max_parallel_workers_per_gather",
    "autovacuum",
    "lc_collate",
    "listen_addresses",
)
_PREWARM_SQL = (
    "SELECT sum(pg_prewarm(c.oid, 'buffer', fork)) FROM pg_class c, unnest(ARRAY['main', 'vm', 'fsm']) AS fork "
    "WHERE c.relkind IN ('r', 'i', 't', 'm') AND pg_relation_size(c.oid, fork) > 0"
)
"""Reads tables and catalogs into memory, so that no session of a trial reads them from files."""


def password_verifier(password: str) -> str:
    """The hashed form in which the server stores a password (RFC 5803), so that no statement contains the password itself."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _SCRAM_ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    encoded = [b64encode(part).decode() for part in (salt, stored, hmac.digest(salted, b"Server Key", "sha256"))]
    return f"SCRAM-SHA-256${_SCRAM_ITERATIONS}:{encoded[0]}${encoded[1]}:{encoded[2]}"


@dataclass(frozen=True)
class Streaming:
    """Settings of one server for streaming replication."""

    account: str
    """Account with which replicas connect to this server."""
    password_hash: str
    """Stored form of that account's password."""
    options: Mapping[str, str]
    primary: str | None
    """The primary that this server follows, as a libpq connection string; None for a primary."""


@dataclass(frozen=True)
class PostgresSettings:
    """Settings with which one server is started."""

    program: Path
    data: Path
    context: ServerContext
    password: str
    pool_bytes: int
    networking: bool
    loading: bool = False
    """Whether the server is started to build a template, and need not survive a crash."""
    tls: CertificatePaths | None = None
    database: str = DATABASE
    """Database of the laboratory's own session."""
    streaming: Streaming | None = None
    log_for_replicas: bool = False
    """With `loading`: write a log from which a replica can start."""

    def options(self, port: int) -> dict[str, str]:
        """Settings that differ from the defaults."""
        work, context = self.context.work, self.context
        options = {
            "port": str(port),
            "unix_socket_directories": str(work),
            "listen_addresses": context.listen_address if self.networking else "",
            "hba_file": str(work / "pg_hba.conf"),
            # A replica needs at least as many connections as its template had.
            "max_connections": str((0 if self.loading else context.connections) + SPARE_CONNECTIONS),
            "shared_buffers": str(max(self.pool_bytes, _MIN_POOL_BYTES) // _PAGE_BYTES),
            "huge_pages": "off",
            # With /dev/shm a killed server would leave segments behind.
            "dynamic_shared_memory_type": "mmap",
            # For queries of single rows, JIT and parallel workers cost time without a benefit.
            "jit": "off",
            "max_parallel_workers_per_gather": "0",
            # Otherwise a checkpoint would occur in some trials and not in others.
            "checkpoint_timeout": "1h",
            "max_wal_size": "2GB",
            # Do not log failing statements: they may contain secrets.
            "log_min_error_statement": "panic",
        }
        if self.tls is not None:
            options |= {
                "ssl": "on",
                "ssl_ca_file": str(self.tls.ca),
                "ssl_cert_file": str(self.tls.certificate),
                "ssl_key_file": str(self.tls.key),
            }
        if self.loading:
            options |= {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "maintenance_work_mem": "256MB"}
        if self.loading and not self.log_for_replicas:
            options |= {"wal_level": "minimal", "max_wal_senders": "0"}
        return options if self.streaming is None else {**options, **self.streaming.options}

    def command_line(self, port: int) -> list[str]:
        options = [word for name, value in self.options(port).items() for word in ("-c", f"{name}={value}")]
        return as_other_user([str(self.program), "-D", str(self.data), *options])


def _open_session(
    target: Target,
    user: str,
    database: str,
    password: str | None,
    tls_context: ssl.SSLContext | None,
    timeout_s: float = _ANSWER_TIMEOUT_S,
) -> PostgresqlConnection:
    """Open a session. Raises LabError."""
    unix_socket, host, port = address_parts(target)
    try:
        return PostgresqlConnection(
            user,
            unix_sock=unix_socket,
            host=host,
            port=port or _PORT,
            database=database,
            password=password,
            ssl_context=tls_context,
            timeout=timeout_s,
        )
    except ERRORS as error:
        raise LabError(f"connecting to {describe_address(target)} failed: {error_message(error)}") from error


def _view_session(password: str, target: Target, tls_context: ssl.SSLContext | None) -> SessionView:
    """The server's view of a session; see `servers.SessionProbe`."""
    try:
        with contextlib.closing(_open_session(target, USER, DATABASE, password, tls_context)) as probe:
            rows = probe.rows(
                "SELECT coalesce(host(a.client_addr), 'localhost') AS host, s.version AS ssl_version, s.cipher AS ssl_cipher "
                "FROM pg_stat_activity a LEFT JOIN pg_stat_ssl s ON s.pid = a.pid WHERE a.pid = pg_backend_pid()",
            )
            return SessionView.model_validate(rows[0])
    except ERRORS as error:
        raise LabError(error_message(error)) from error


class PostgresServer(TableServer):
    """A running PostgreSQL; see `servers.ServerProcess`."""

    kind = "postgresql"
    shutdown_signal = signal.SIGINT
    counts_commits = True

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._admin_session: PostgresqlConnection | None = None
        context = settings.context
        port = context.port(_PORT) if settings.networking else _PORT
        remote_access = (
            [("all", USER)]
            if settings.streaming is None
            else [("all", USER), ("replication", settings.streaming.account)]
        )
        entries = [f"local all {_ADMIN_ROLE} trust", "local all all scram-sha-256"]
        entries += [
            f"host {database} {account} {network} scram-sha-256"
            for database, account in remote_access
            for network in ("0.0.0.0/0", "::/0")
        ]
        (context.work / "pg_hba.conf").write_text("\n".join(entries) + "\n")
        if settings.streaming is not None and settings.streaming.primary is not None:
            _make_standby(settings.data, settings.streaming.primary)
        # Remove the PID file of a killed server, whose PID may belong to another process by now.
        (settings.data / "postmaster.pid").unlink(missing_ok=True)
        (context.work / f".s.PGSQL.{port}.lock").unlink(missing_ok=True)
        super().__init__(
            settings.program,
            context,
            port if settings.networking else None,
            settings.command_line(port),
            socket=f".s.PGSQL.{port}",
        )

    @property
    def password(self) -> str:
        return self._settings.password

    @property
    def _is_replica(self) -> bool:
        """Whether the server was started as a replica, whose accounts are its primary's."""
        return self._settings.streaming is not None and self._settings.streaming.primary is not None

    def become_ready(self) -> None:
        timeout_s = ready_timeout_s(self._settings.pool_bytes)
        last_errors: list[LabError] = []

        def try_connect() -> bool:
            try:
                self._admin_session = self._open_admin_session()
            except LabError as error:
                last_errors[:] = [error]
            return self._admin_session is not None

        self._wait_until(
            try_connect,
            time.monotonic() + timeout_s,
            lambda: ServerCrashed(
                f"{self.program} did not answer within {timeout_s:.0f} s: {last_errors[0].message}{self._last_output()}",
                "Is the machine overloaded?",
            ),
        )
        facts = self._facts()
        self.version = facts["server_version"].partition(" ")[0]
        if self._settings.loading:
            return
        self._check_capacity(int(facts["max_connections"]))
        if not self._is_replica:
            password_hash = password_verifier(self._settings.password)
            self.query(f"ALTER ROLE {USER} PASSWORD '{password_hash}'", label="its password")
            if (streaming := self._settings.streaming) is not None:
                create_sql = f"CREATE ROLE {streaming.account} LOGIN REPLICATION PASSWORD '{streaming.password_hash}'"
                self.query(create_sql, label="the replicas' account")
        self.query(_PREWARM_SQL)
        # A session's reads are counted when it ends: end this one now, so that the pages it read do not count in a trial.
        self.disconnect()
        self._admin_session = self._open_admin_session()
        self._wait_for_sessions_to_end()

    def _open_admin_session(self) -> PostgresqlConnection:
        session = self._connect(_ADMIN_ROLE, self._settings.database)
        if self._settings.streaming is not None:
            session.rows("SET synchronous_commit = local")  # there may be no replica yet that could acknowledge
        return session

    @contextlib.contextmanager
    def open_session(self, timeout_s: float, *, as_client: bool = False) -> Iterator[RunQuery]:
        user = USER if as_client and not self._is_replica else _ADMIN_ROLE
        session = self._connect(user, DATABASE, timeout_s)

        def run_query(sql: str) -> list[Row]:
            try:
                return session.rows(sql)
            except ERRORS as error:
                raise LabError(error_message(error)) from error

        try:
            yield run_query
        finally:
            session.close()

    def _connect(self, user: str, database: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> PostgresqlConnection:
        """A session over the socket."""
        password = None if user == _ADMIN_ROLE else self._settings.password
        try:
            return _open_session(UnixTarget(path=str(self.socket)), user, database, password, None, timeout_s)
        except LabError:
            self._check_alive("when asked for a connection", connection_lost=self._admin_session is not None)
            raise

    def query(self, sql: str, label: str | None = None) -> list[Row]:
        assert self._admin_session is not None, "the server is ready"
        try:
            return self._admin_session.rows(sql)
        except ERRORS as error:
            what = label or repr(sql[:200])
            self._check_alive(f"during {what}", connection_lost=not isinstance(error, DatabaseError))
            raise LabError(f"the server refused {what}: {error_message(error)}{self._last_output()}") from error

    def read_counts(self) -> ServerCounts:
        """The server's counts. PostgreSQL counts the sessions that have logged in, but not their queries."""
        sql = (
            f"SELECT (SELECT sessions FROM pg_stat_database WHERE datname = '{DATABASE}') AS sessions, count(*) AS present, "
            f"count(*) FILTER (WHERE ssl) AS encrypted FROM pg_stat_activity LEFT JOIN pg_stat_ssl USING (pid) "
            f"WHERE usename = '{USER}'"
        )
        row = self.query(sql)[0]
        return ServerCounts(None, 0, int(row["sessions"]), int(row["present"]), int(row["encrypted"]))

    def client_addresses(self) -> tuple[str, ...]:
        sql = f"SELECT coalesce(host(client_addr), 'localhost') AS host FROM pg_stat_activity WHERE usename = '{USER}'"
        return tuple(str(row["host"]) for row in self.query(sql))

    def snapshot(self) -> dict[str, int]:
        counters = self.query(_COUNTERS_SQL)[0]["c"]
        return {
            _METRIC_NAMES.get(name, name): int(counters[name]) for name in _COUNTERS if counters.get(name) is not None
        }

    def _facts(self) -> dict[str, str]:
        names = ", ".join(f"'{name}'" for name in _RECEIPT_SETTINGS)
        # Ignore settings that only this session has.
        setting = "CASE source WHEN 'session' THEN reset_val ELSE current_setting(name) END"
        rows = self.query(f"SELECT name, {setting} AS setting FROM pg_settings WHERE name IN ({names})")
        return {str(row["name"]): str(row["setting"]) for row in rows}

    def _wait_for_sessions_to_end(self) -> None:
        """Wait until the load's sessions have ended, because a session reports its last counts when it ends."""
        deadline = time.monotonic() + _SESSIONS_END_TIMEOUT_S
        while self.snapshot().get("clients") and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def session_probe(self) -> SessionProbe:
        return partial(_view_session, self._settings.password)

    def has_tls(self) -> bool:
        """Whether TLS was built in."""
        return bool(self.query("SELECT 1 FROM pg_settings WHERE name = 'ssl_library' AND setting <> ''"))

    def kill(self) -> None:
        """Send SIGKILL to all processes, to the postmaster first, because it would restart the others."""
        children = children_of(self.pid)
        self._process.process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().kill()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while any(map(_is_running, children)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for pid in children:
            # In the sandbox this process is the first one, so orphans become its children.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def stop(self) -> None:
        # Killing the postmaster's session would miss its child processes, which have their own; on SIGQUIT it ends them first.
        self.disconnect()
        self._process.process.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.process.wait(_STOP_TIMEOUT_S)
        super().stop()

    def disconnect(self) -> None:
        if self._admin_session is not None:
            self._admin_session.close()
            self._admin_session = None


def _make_standby(data: Path, primary: str) -> None:
    """Make the server a standby. The connection string goes into a file, because it contains a secret."""
    (data / "standby.signal").touch()
    settings = data / "postgresql.auto.conf"
    settings.touch(mode=0o600)
    settings.chmod(0o600)
    settings.write_text(f"primary_conninfo = '{primary}'\n")


def _is_running(pid: int) -> bool:
    """Whether the process runs. A zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


class PostgresStore(TableStore):
    """A PostgreSQL program with its data; see `servers.Store`."""

    pool_slack_bytes = 64 * 2**20

    def __init__(self, program: Program, tables: Tables) -> None:
        super().__init__(program, tables)
        if "incompressible" in tables.contents:
            raise PlanError(
                "the content incompressible needs MariaDB or MySQL: PostgreSQL sends bytes that are not text as twice as many digits",
                "Use the content digits or text.",
            )

    def _initialise(self, data: Path) -> None:
        initdb = self.program.path.parent / "initdb"
        if not initdb.is_file():
            raise ServerMissing(f"initdb was not found beside {self.program.path}", f"Install {PACKAGE}.")
        options = [f"--username={_ADMIN_ROLE}", "--auth=scram-sha-256", "--auth-local=trust"]
        command = [str(initdb), "-D", str(data), *options, "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        run_initialiser(as_other_user(command), data / "base")

        with self._loading_server(data, _INITIAL_DATABASE) as server:
            server.query(f"CREATE ROLE {USER} LOGIN")
            server.query(f"CREATE DATABASE {DATABASE} OWNER {USER}")
        with self._loading_server(data) as server:
            server.query("CREATE EXTENSION pg_prewarm")
        self._write_log_for_replicas(data)

    def _renew_identity(self, data: Path) -> None:
        """Do nothing: a copy of a PostgreSQL data directory needs no identity of its own."""

    def _load(self, data: Path, rows: Rows) -> None:
        self._create_empty(data)
        with self._loading_server(data) as server:
            _load_first_table(server, self.tables.size, rows, data.parent / "tmp" / "rows")
            for number in range(2, self.tables.count + 1):
                server.query(f"CREATE TABLE sbtest{number} AS TABLE sbtest1")
            for number in range(1, self.tables.count + 1):
                _finish_table(server, number, self.tables.size)
        self._write_log_for_replicas(data)

    def begin(self, streaming: Streaming, tls: CertificatePaths | None) -> PostgresServer:
        """Start a server that takes part in replication; see `SqlStore.begin`."""
        data = self._data_directory(self.tables.contents[0])
        if not self._has_log_for_replicas(data):
            self._write_log_for_replicas(data)
        return self._serve(data, networking=True, tls=tls, streaming=streaming)

    def _has_log_for_replicas(self, data: Path) -> bool:
        """Whether a replica can start from the log in `data`. Templates that an older howfar built have no such log."""
        command = [str(self.program.path.parent / "pg_controldata"), "-D", str(data)]
        result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        return not re.search(r"^wal_level setting: +minimal", result.stdout, re.MULTILINE)

    def _write_log_for_replicas(self, data: Path) -> None:
        """Start and shut down once with `wal_level` set for replicas; loading tables without it is faster. A replica fetches the
        complete log file in which it starts, so switch to a new file."""
        with self._loading_server(data, log_for_replicas=True) as server:
            server.query("SELECT pg_switch_wal()")

    def _loading_server(
        self, data: Path, database: str = DATABASE, *, log_for_replicas: bool = False
    ) -> AbstractContextManager[PostgresServer]:
        return template_server(
            self._serve(data, networking=False, loading=True, database=database, log_for_replicas=log_for_replicas)
        )

    def _serve(
        self,
        data: Path,
        *,
        networking: bool,
        tls: CertificatePaths | None = None,
        loading: bool = False,
        database: str = DATABASE,
        streaming: Streaming | None = None,
        log_for_replicas: bool = False,
    ) -> PostgresServer:
        return PostgresServer(
            PostgresSettings(
                program=self.program.path,
                data=data,
                context=self.context,
                password=self.password,
                pool_bytes=self.pool_bytes,
                networking=networking,
                loading=loading,
                tls=tls,
                database=database,
                streaming=streaming,
                log_for_replicas=log_for_replicas,
            )
        )


def _load_first_table(server: PostgresServer, size: int, rows: Rows, rows_file: Path) -> None:
    server.query(f"CREATE TABLE sbtest1 (id INTEGER, k INTEGER, c {rows.c_type}, pad {rows.pad_type})")
    for chunk in row_chunks(rows, size):
        rows_file.write_bytes(chunk)
        server.query(f"COPY sbtest1 FROM '{rows_file}'")
    rows_file.unlink(missing_ok=True)


def _finish_table(server: PostgresServer, number: int, size: int) -> None:
    """Add keys, defaults and owner as sysbench does, and freeze the rows; otherwise the first read of each row would cost more."""
    name = f"sbtest{number}"
    for statement in (
        f"CREATE SEQUENCE {name}_id_seq START {size + 1} OWNED BY {name}.id",
        f"ALTER TABLE {name} ALTER id SET DEFAULT nextval('{name}_id_seq'), ADD PRIMARY KEY (id)",
        f"ALTER TABLE {name} ALTER k SET DEFAULT 0, ALTER c SET DEFAULT '', ALTER pad SET DEFAULT ''",
        f"ALTER TABLE {name} ALTER k SET NOT NULL, ALTER c SET NOT NULL, ALTER pad SET NOT NULL",
        f"CREATE INDEX k_{number} ON {name} (k)",
        f"ALTER TABLE {name} OWNER TO {USER}",
        f"VACUUM (FREEZE, ANALYZE) {name}",
    ):
        server.query(statement)
