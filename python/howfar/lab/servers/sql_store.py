"""MariaDB or MySQL: initialised from a template, loaded once, started fresh for each trial.

The data directory is thrown away, so a server is stopped by SIGKILL. Only one that becomes a template is shut down cleanly.
A running server is in `sql_server.py`, what differs between the two in their own files.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from howfar.lab.servers import DATABASE, CertificatePaths, Tables, ready
from howfar.lab.servers.contents import Rows, row_chunks
from howfar.lab.servers.dialect import BinaryLog, Dialect, Settings
from howfar.lab.servers.program import Program
from howfar.lab.servers.sql_server import SqlServer
from howfar.lab.servers.table_store import TableStore


def load_tables(server: SqlServer, tables: Tables, rows: Rows, data: Path) -> None:
    """Fill the empty database, and read every page once, so that the dump at shutdown names them. Raises LabError."""
    _load_first(server, tables.size, rows, data.parent / "tmp" / "rows")
    for number in range(2, tables.count + 1):
        server.query(f"CREATE TABLE sbtest{number} LIKE sbtest1")
        server.query(f"ALTER TABLE sbtest{number} DISCARD TABLESPACE")
    if tables.count > 1:
        _copy_first(server, tables.count, data / DATABASE)
    for number in range(1, tables.count + 1):
        server.query(f"ANALYZE TABLE sbtest{number}")
        server.query(f"SELECT SUM(LENGTH(pad)) FROM sbtest{number} FORCE INDEX (PRIMARY)")
        server.query(f"SELECT COUNT(*) FROM sbtest{number} FORCE INDEX (k_{number}) WHERE k > 0")


def _load_first(server: SqlServer, size: int, rows: Rows, stream: Path) -> None:
    server.query(
        "CREATE TABLE sbtest1 (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT '0' NOT NULL, "
        f"c {rows.c_type} DEFAULT '' NOT NULL, pad {rows.pad_type} DEFAULT '' NOT NULL, PRIMARY KEY (id)) ENGINE = InnoDB"
    )
    server.query("SET SESSION unique_checks = 0")
    for chunk in row_chunks(rows, size):
        stream.write_bytes(chunk)
        server.query(
            f"LOAD DATA INFILE '{stream}' INTO TABLE sbtest1 FIELDS TERMINATED BY '\\t' LINES TERMINATED BY '\\n' "
            f"{rows.columns}"
        )
    stream.unlink(missing_ok=True)
    server.query("CREATE INDEX k_1 ON sbtest1 (k)")


def _copy_first(server: SqlServer, count: int, database: Path) -> None:
    server.query("FLUSH TABLES sbtest1 FOR EXPORT")
    for number in range(2, count + 1):
        for ending in ("ibd", "cfg"):
            shutil.copyfile(database / f"sbtest1.{ending}", database / f"sbtest{number}.{ending}")
    server.query("UNLOCK TABLES")
    for number in range(2, count + 1):
        server.query(f"ALTER TABLE sbtest{number} IMPORT TABLESPACE")
        server.query(f"ALTER TABLE sbtest{number} RENAME INDEX k_1 TO k_{number}")
        (database / f"sbtest{number}.cfg").unlink(missing_ok=True)


class SqlStore(TableStore):
    """See `servers.Store`."""

    def __init__(self, program: Program, dialect: Dialect, tables: Tables) -> None:
        assert program.kind == dialect.kind
        super().__init__(program, tables)
        self.pool_slack_bytes = dialect.pool_slack_bytes
        self._dialect = dialect

    def begin(self, *, binary_log: BinaryLog, tls: CertificatePaths | None = None) -> SqlServer:
        """Start one that takes part in replication, with networking, on the first content; who calls waits until it is ready, and
        stops it. So several come up side by side."""
        return self._server(self._data(self.tables.contents[0]), networking=True, tls=tls, binary_log=binary_log)

    def _initialise(self, data: Path) -> None:
        self._dialect.initialise(self.program.path, data)

    def _adopt(self, data: Path) -> None:
        self._dialect.adopt(data)

    def _load(self, data: Path, rows: Rows) -> None:
        self._empty(data)
        server = ready(self._server(data, networking=False, loading=True))
        try:
            load_tables(server, self.tables, rows, data)
            server.shut_down()
        finally:
            server.stop()

    def _serve(self, data: Path, *, networking: bool, tls: CertificatePaths | None) -> SqlServer:
        return self._server(data, networking=networking, tls=tls)

    def _server(
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
