"""MariaDB and MySQL: initialised from a template, loaded once, started anew for each trial.

A server is stopped by SIGKILL, because its data directory is deleted anyway; a server whose data becomes a template is shut down
cleanly. Differences between MariaDB and MySQL are in `mariadb.py` and `mysql.py`.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pymysql

from howfar.clients import OWN_SERVER
from howfar.clients.mysql import MysqlConnection
from howfar.contract.messages import Target, UnixTarget
from howfar.contract.server_receipt import SessionView
from howfar.errors import LabError, ServerCrashed
from howfar.lab.servers import (
    DATABASE,
    USER,
    CertificatePaths,
    RunQuery,
    ServerCounts,
    SessionProbe,
    Tables,
    TableServer,
    address_parts,
    ready_timeout_s,
)
from howfar.lab.servers.contents import Rows, row_chunks
from howfar.lab.servers.dialect import (
    PREPARED_STATEMENTS,
    BinaryLog,
    Dialect,
    Settings,
    build_init_sql,
    option_file,
    path_prefix,
    pool_option,
)
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import TableStore, template_server
from howfar.paths.path import Row

_ANSWER_TIMEOUT_S = 300.0
_VIEW_TIMEOUT_S = 30.0
"""Time limit for an answer over the path, where a dead link or hop does not close the connection."""
_CONNECTION_LOST_ERRORS = (2002, 2003, 2006, 2013)
"""Client errors: cannot connect (socket, TCP), server has gone away, connection lost during a query."""
_SYNTAX_ERROR = 1064
"""Number of the error whose message quotes the statement."""
_METRIC_NAMES = {
    "Questions": "requests",
    "Bytes_received": "bytes_received",
    "Bytes_sent": "bytes_sent",
    "Connections": "connections",
    "Handler_commit": "commits",
    "Innodb_data_fsyncs": "fsyncs",
    "Innodb_buffer_pool_reads": "pages_read",
    "Innodb_row_lock_waits": "lock_waits",
    "Innodb_row_lock_time": "lock_wait_ms",
    "Threads_running": "running",
}
"""Names in `ServerMetrics` of the server's counters."""
_STATEMENT_COUNTERS = ("Com_select", "Com_insert", "Com_update", "Com_delete", "Com_begin", "Com_commit")
_COUNTERS = (
    *_METRIC_NAMES,
    *_STATEMENT_COUNTERS,
    "Com_stmt_prepare",
    "Com_stmt_execute",
    "Aborted_connects",
    "Aborted_clients",
    "Slow_queries",
    "Innodb_buffer_pool_read_requests",
    "Innodb_data_reads",
    "Innodb_rows_read",
    "Innodb_os_log_fsyncs",
    "Innodb_log_waits",
    "Binlog_commits",
    "Binlog_group_commits",
)
"""Names of counters; a snapshot omits those that a server does not have."""
_CLIENT_COUNTERS = ("Questions", "Com_admin_commands", "Connections", "Threads_connected", "Ssl_finished_accepts")
_RECEIPT_SETTINGS = (
    "version",
    "version_comment",
    "max_connections",
    "table_open_cache",
    "open_files_limit",
    "skip_networking",
    "have_ssl",
    "innodb_buffer_pool_size",
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "log_bin",
    "performance_schema",
    "thread_handling",
    "character_set_server",
    "max_prepared_stmt_count",
    "back_log",
)


class SqlServer(TableServer):
    """A running MariaDB or MySQL; see `servers.ServerProcess`."""

    no_network_setting = "skip_networking"

    def __init__(self, settings: Settings, dialect: Dialect) -> None:
        self.kind = dialect.kind
        self._settings = settings
        self._dialect = dialect
        self._admin_session: MysqlConnection | None = None
        context = settings.context
        port = context.port(3306) if settings.networking else None
        init_file = context.work / "init.sql"
        init_file.touch(mode=0o600)
        init_file.write_text(build_init_sql(settings, dialect))
        if (file := option_file(settings)) is not None:
            file.write_text(f"[mysqld]\n{pool_option(settings)}\n")
        for name, text in ({} if settings.binary_log is None else settings.binary_log.files).items():
            (settings.data / name).write_text(text)
        command = [*path_prefix(settings.binary_log), *dialect.command_line(settings, port)]
        super().__init__(settings.program, context, port, command)

    @property
    def password(self) -> str:
        return self._settings.password

    def become_ready(self) -> None:
        """Wait until the server answers on its socket and its pages are in memory. Raises ServerCrashed."""
        timeout_s = ready_timeout_s(self._settings.pool_bytes)
        deadline = time.monotonic() + timeout_s
        self._wait_until(
            self._socket_accepts,
            deadline,
            lambda: ServerCrashed(
                f"{self.program} did not listen on {self.socket} within {timeout_s:.0f} s{self._last_output()}",
                "Is the machine overloaded?",
            ),
        )
        self._admin_session = self.connect(_ANSWER_TIMEOUT_S)
        self.version = str(self.query("SELECT VERSION() AS v")[0]["v"])
        limits = self.query("SELECT @@max_connections AS connections, @@max_prepared_stmt_count AS statements")[0]
        self._check_capacity(int(limits["connections"]))
        if int(limits["statements"]) < PREPARED_STATEMENTS:
            raise LabError(
                f"the server allows {limits['statements']} prepared statements where {PREPARED_STATEMENTS} are needed"
            )
        log = self._settings.binary_log
        if not self._settings.loading and not (log is not None and log.fetches_data):
            self._wait_for_buffer_pool(deadline)
            self._wait_for_unfinished_work(deadline)

    def _socket_accepts(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def _wait_for_buffer_pool(self, deadline: float) -> None:
        """Wait until the server has read its pages into memory. Raises LabError."""

        def status() -> str:
            return self._show_values(("Innodb_buffer_pool_load_status",))["Innodb_buffer_pool_load_status"]

        if (self._settings.data / "ib_buffer_pool").exists():
            self._wait_until(
                lambda: "completed" in status(),
                deadline,
                lambda: LabError(
                    f"reading the tables into memory took too long: {status()}", "Is the machine overloaded?"
                ),
            )

    def _wait_for_unfinished_work(self, deadline: float) -> None:
        """Wait until the server has finished the work that a killed server left in its data. Raises LabError."""
        sql = self._dialect.unfinished_work_sql
        if sql is not None:
            self._wait_until(
                lambda: int(self.query(sql)[0]["n"]) == 0,
                deadline,
                lambda: LabError("the server did not come to rest: transactions are not purged", "Is it overloaded?"),
            )

    def connect(self, timeout_s: float) -> MysqlConnection:
        """Open a further session over the socket; a statement that exceeds `timeout_s` fails with pymysql.Error. Raises LabError."""
        try:
            return _connect(UnixTarget(path=str(self.socket)), self._settings.password, timeout_s, None)
        except pymysql.Error as error:
            self._check_alive("when asked for a connection", connection_lost=_is_connection_lost(error))
            raise LabError(f"connecting to {self.socket} failed: {error}{self._last_output()}") from error

    @contextlib.contextmanager
    def open_session(self, timeout_s: float, *, as_client: bool = False) -> Iterator[RunQuery]:
        with self.connect(timeout_s) as connection:

            def run_query(sql: str) -> list[Row]:
                try:
                    return connection.rows(sql)
                except (pymysql.Error, OSError) as error:
                    raise LabError(str(error)) from error

            yield run_query

    def query(self, sql: str, label: str | None = None) -> list[Row]:
        assert self._admin_session is not None, "the server is ready"
        try:
            return self._admin_session.rows(sql)
        except pymysql.Error as error:
            self._check_alive(f"during {label or repr(sql[:60])}", connection_lost=_is_connection_lost(error))
            if label is not None:
                raise LabError(
                    f"the server refused {label}: {_message_without_statement(error)}{self._last_output()}"
                ) from None
            raise LabError(f"the server refused {sql[:200]!r}: {error}{self._last_output()}") from error

    def _show_values(self, names: tuple[str, ...], *, kind: str = "GLOBAL STATUS") -> dict[str, str]:
        quoted_names = ", ".join(f"'{name}'" for name in names)
        rows = self.query(f"SHOW {kind} WHERE Variable_name IN ({quoted_names})")
        return {str(row["Variable_name"]): str(row["Value"]) for row in rows}

    def read_counts(self) -> ServerCounts:
        status = {name: int(value) for name, value in self._show_values(_CLIENT_COUNTERS).items()}
        # A driver's ping counts as an administrative command, not as a question.
        round_trips = status["Questions"] + status["Com_admin_commands"]
        present = status["Threads_connected"] - 1
        return ServerCounts(round_trips, 0, status["Connections"], present, status.get("Ssl_finished_accepts", 0))

    def client_addresses(self) -> tuple[str, ...]:
        sql = f"SELECT HOST FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND USER = '{USER}'"
        return tuple(str(row["HOST"]) for row in self.query(sql))

    def snapshot(self) -> dict[str, int]:
        return convert_counters({name: int(value) for name, value in self._show_values(_COUNTERS).items()})

    def _facts(self) -> dict[str, str]:
        return self._show_values(_RECEIPT_SETTINGS, kind="GLOBAL VARIABLES")

    def session_probe(self) -> SessionProbe:
        return partial(_view_session, self._settings.password)

    def restart(self, binary_log: BinaryLog) -> SqlServer:
        """Start a new server on the data of this one, which has ended. Does not wait until it is ready."""
        return SqlServer(replace(self._settings, binary_log=binary_log), self._dialect)

    def disconnect(self) -> None:
        if self._admin_session is not None:
            with contextlib.suppress(pymysql.Error, OSError):
                self._admin_session.close()
            self._admin_session = None


def convert_counters(status: Mapping[str, int]) -> dict[str, int]:
    """Convert the counters of SHOW STATUS to those of a snapshot."""
    counters = {_METRIC_NAMES.get(name, name): count for name, count in status.items()}
    if all(name in status for name in _STATEMENT_COUNTERS):
        # Com_select does not include answers from a query cache.
        counters["statements"] = sum(status[name] for name in _STATEMENT_COUNTERS) + status.get("Qcache_hits", 0)
    return counters


def _connect(target: Target, password: str, timeout_s: float, tls_context: ssl.SSLContext | None) -> MysqlConnection:
    """Open a session. Raises pymysql.Error."""
    unix_socket, host, port = address_parts(target)
    return MysqlConnection(
        OWN_SERVER,
        unix_socket=unix_socket,
        host=host,
        port=port or 0,
        user=USER,
        password=password,
        database=DATABASE,
        connect_timeout=10,
        read_timeout=timeout_s,
        ssl=tls_context,
    )


def _view_session(password: str, target: Target, tls_context: ssl.SSLContext | None) -> SessionView:
    """The server's view of a session; see `servers.SessionProbe`."""
    try:
        with _connect(target, password, _VIEW_TIMEOUT_S, tls_context) as probe:
            (view,) = probe.rows("SELECT HOST AS host FROM information_schema.processlist WHERE ID = CONNECTION_ID()")
            status = probe.rows(
                "SHOW SESSION STATUS WHERE Variable_name IN ('Ssl_version', 'Ssl_cipher', 'Compression')"
            )
            view |= {row["Variable_name"].lower(): row["Value"] for row in status}
            return SessionView.model_validate(view)
    except pymysql.Error as error:
        raise LabError(str(error)) from error


def _is_connection_lost(error: pymysql.Error) -> bool:
    return bool(error.args) and error.args[0] in _CONNECTION_LOST_ERRORS


def _message_without_statement(error: pymysql.Error) -> str:
    """The server's message; if it quotes the statement, only the error's number, because a statement may contain a secret."""
    return f"error {_SYNTAX_ERROR}, which quotes it" if error.args[:1] == (_SYNTAX_ERROR,) else str(error)


def load_tables(server: SqlServer, tables: Tables, rows: Rows, data: Path) -> None:
    """Fill the empty database. Then read every page once, so that the dump of the buffer pool at shutdown lists all pages. Raises
    LabError."""
    _load_first_table(server, tables.size, rows, data.parent / "tmp" / "rows")
    for number in range(2, tables.count + 1):
        server.query(f"CREATE TABLE sbtest{number} LIKE sbtest1")
        server.query(f"ALTER TABLE sbtest{number} DISCARD TABLESPACE")
    if tables.count > 1:
        _copy_first_table(server, tables.count, data / DATABASE)
    for number in range(1, tables.count + 1):
        server.query(f"ANALYZE TABLE sbtest{number}")
        server.query(f"SELECT SUM(LENGTH(pad)) FROM sbtest{number} FORCE INDEX (PRIMARY)")
        server.query(f"SELECT COUNT(*) FROM sbtest{number} FORCE INDEX (k_{number}) WHERE k > 0")


def _load_first_table(server: SqlServer, size: int, rows: Rows, rows_file: Path) -> None:
    server.query(
        "CREATE TABLE sbtest1 (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT '0' NOT NULL, "
        f"c {rows.c_type} DEFAULT '' NOT NULL, pad {rows.pad_type} DEFAULT '' NOT NULL, PRIMARY KEY (id)) ENGINE = InnoDB"
    )
    server.query("SET SESSION unique_checks = 0")
    for chunk in row_chunks(rows, size):
        rows_file.write_bytes(chunk)
        server.query(
            f"LOAD DATA INFILE '{rows_file}' INTO TABLE sbtest1 FIELDS TERMINATED BY '\\t' LINES TERMINATED BY '\\n' "
            f"{rows.columns}"
        )
    rows_file.unlink(missing_ok=True)
    server.query("CREATE INDEX k_1 ON sbtest1 (k)")


def _copy_first_table(server: SqlServer, count: int, database: Path) -> None:
    server.query("FLUSH TABLES sbtest1 FOR EXPORT")
    for number in range(2, count + 1):
        for extension in ("ibd", "cfg"):
            shutil.copyfile(database / f"sbtest1.{extension}", database / f"sbtest{number}.{extension}")
    server.query("UNLOCK TABLES")
    for number in range(2, count + 1):
        server.query(f"ALTER TABLE sbtest{number} IMPORT TABLESPACE")
        server.query(f"ALTER TABLE sbtest{number} RENAME INDEX k_1 TO k_{number}")
        (database / f"sbtest{number}.cfg").unlink(missing_ok=True)


class SqlStore(TableStore):
    """A MariaDB or MySQL program with its data; see `servers.Store`."""

    def __init__(self, program: Program, dialect: Dialect, tables: Tables) -> None:
        assert program.kind == dialect.kind
        super().__init__(program, tables)
        self.pool_slack_bytes = dialect.pool_slack_bytes
        self._dialect = dialect

    def begin(self, *, binary_log: BinaryLog, tls: CertificatePaths | None = None) -> SqlServer:
        """Start a server for replication, with networking, on the data of the first content. Several servers can start in parallel:
        this does not wait until the server is ready. The caller stops it."""
        return self._serve(
            self._data_directory(self.tables.contents[0]), networking=True, tls=tls, binary_log=binary_log
        )

    def _initialise(self, data: Path) -> None:
        self._dialect.initialise(self.program.path, data)

    def _renew_identity(self, data: Path) -> None:
        self._dialect.renew_identity(data)

    def _load(self, data: Path, rows: Rows) -> None:
        self._create_empty(data)
        with template_server(self._serve(data, networking=False, loading=True)) as server:
            load_tables(server, self.tables, rows, data)

    def _serve(
        self,
        data: Path,
        *,
        networking: bool,
        loading: bool = False,
        tls: CertificatePaths | None = None,
        binary_log: BinaryLog | None = None,
    ) -> SqlServer:
        settings = Settings(
            program=self.program.path,
            data=data,
            context=self.context,
            password=self.password,
            pool_bytes=self.pool_bytes,
            tables=self.tables.count,
            networking=networking,
            loading=loading,
            tls=tls,
            binary_log=binary_log,
        )
        return SqlServer(settings, self._dialect)
