"""MariaDB or MySQL: initialised from a template, loaded once, started fresh for each trial.

The data directory is thrown away, so a server is stopped by SIGKILL. Only one that becomes a template is shut down cleanly.
Loading is in `sysbench_tables.py`, a running server in `sql_server.py`, what differs between the two in their own files.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

from howfar.errors import PlanError
from howfar.lab.cache import cache_home, file_system_of
from howfar.lab.servers import DATABASE, USER, CertificatePaths, Ground, Reach, Tables
from howfar.lab.servers.contents import Rows, find_rows
from howfar.lab.servers.dialect import BinaryLog, Dialect, Settings
from howfar.lab.servers.program import Program
from howfar.lab.servers.sql_server import SqlServer, start_server
from howfar.lab.servers.sysbench_tables import load_tables
from howfar.lab.servers.templates import from_template, tidy
from howfar.plan.factors import Content

ROW_BYTES = 250
"""A row with its share of the index on `k`, as InnoDB keeps it (2.4 GB for 10 x 1 000 000 were seen)."""
POOL_PER_DATA = 1.25
"""The buffer pool has room for more than the tables, so that no page of theirs is ever evicted."""

LOADED = "templates/loaded"
"""The shelf of loaded tables, in the cache."""


def template_name(program: Program, tables: int, table_size: int, rows: Rows) -> str:
    """What such tables are called there."""
    return f"{program.key}-{tables}x{table_size}-{rows.key}"


class SqlStore:
    """See `servers.Store`."""

    user = USER
    database = DATABASE

    def __init__(self, program: Program, dialect: Dialect, tables: Tables) -> None:
        assert program.kind == dialect.kind
        self.program = program
        self.kind = program.kind
        self.version = program.version
        self.tables = tables
        self.password = secrets.token_urlsafe(18)
        self._dialect = dialect
        self._ground: Ground | None = None
        self._cache = cache_home() / "templates"

    def data_bytes(self) -> int:
        return self.tables.count * self.tables.size * ROW_BYTES + self._dialect.pool_slack_bytes

    def prepare(self, ground: Ground) -> dict[str, Any]:
        self._ground = ground
        tidy(self._cache)
        (ground.work / "tmp").mkdir()
        kept = [self._put(content) for content in self.tables.contents]
        return {
            "data_file_system": file_system_of(self._data(self.tables.contents[0])),
            "data_from_template": all(kept),
            "tables": self.tables.count,
            "table_size": self.tables.size,
            "contents": list(self.tables.contents),
        }

    def discard(self) -> None:
        for content in self.tables.contents:
            shutil.rmtree(self._data(content), ignore_errors=True)

    def start(
        self,
        *,
        networking: bool,
        tls: CertificatePaths | None = None,
        content: Content | None = None,
        reached_by: Reach = "socket",
    ) -> SqlServer:
        content = content or self.tables.contents[0]
        if content not in self.tables.contents:
            raise PlanError(f"this laboratory has no tables of {content}", "Ask for them when building the laboratory.")
        return self._start(self._data(content), networking=networking, loading=False, tls=tls)

    def begin(self, *, binary_log: BinaryLog, tls: CertificatePaths | None = None) -> SqlServer:
        """Start one that takes part in replication, with networking, on the first content; who calls waits until it is ready, and
        stops it. So several come up side by side."""
        data = self._data(self.tables.contents[0])
        settings = self._settings(data, networking=True, loading=False, tls=tls, binary_log=binary_log)
        return SqlServer(settings, self._dialect)

    def _data(self, content: Content) -> Path:
        assert self._ground is not None, "prepare() comes first"
        return self._ground.work / ("data" if content == "digits" else f"data-{content}")

    def _put(self, content: Content) -> bool:
        """Make one data directory. True: a template was there."""
        data = self._data(content)
        if self.tables.count == 0:
            return self._empty(data)
        rows = find_rows(content)
        name = template_name(self.program, self.tables.count, self.tables.size, rows)
        kept = from_template(cache_home() / LOADED, name, data, lambda where: self._load(where, rows))
        self._dialect.adopt(data)
        return kept

    def _empty(self, data: Path) -> bool:
        kept = from_template(
            self._cache / "empty",
            self.program.key,
            data,
            lambda where: self._dialect.initialise(self.program.path, where),
        )
        self._dialect.adopt(data)
        return kept

    def _load(self, data: Path, rows: Rows) -> None:
        self._empty(data)
        server = self._start(data, networking=False, loading=True)
        try:
            load_tables(server, self.tables, rows, data)
            server.shut_down()
        finally:
            server.stop()

    def _start(self, data: Path, *, networking: bool, loading: bool, tls: CertificatePaths | None = None) -> SqlServer:
        return start_server(self._settings(data, networking=networking, loading=loading, tls=tls), self._dialect)

    def _settings(
        self,
        data: Path,
        *,
        networking: bool,
        loading: bool,
        tls: CertificatePaths | None,
        binary_log: BinaryLog | None = None,
    ) -> Settings:
        assert self._ground is not None, "prepare() comes before start()"
        return Settings(
            program=self.program.path,
            data=data,
            ground=self._ground,
            password=self.password,
            pool_bytes=int(self.data_bytes() * POOL_PER_DATA) + self._dialect.pool_slack_bytes,
            tables=self.tables.count,
            networking=networking,
            loading=loading,
            tls=tls,
            binary_log=binary_log,
        )
