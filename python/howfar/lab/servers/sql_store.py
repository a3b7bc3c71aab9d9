"""MariaDB or MySQL: initialised from a template, loaded once, started fresh for each trial.

The data directory is thrown away, so a server is stopped by SIGKILL. Only one that becomes a template is shut down cleanly.
Loading is in `sysbench_tables.py`, a running server in `sql_server.py`, what differs between the two in their own files.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from howfar.lab.cache import cache_home, file_system_of
from howfar.lab.servers import CertificatePaths, Ground, Tables
from howfar.lab.servers.dialect import Dialect, Settings
from howfar.lab.servers.program import Program
from howfar.lab.servers.rows import GENERATOR_VERSION
from howfar.lab.servers.sql_server import SqlServer, start_server
from howfar.lab.servers.sysbench_tables import load_tables
from howfar.lab.servers.templates import from_template, tidy

_ROW_BYTES = 250
"""A row with its share of the index on `k`, as InnoDB keeps it (2.4 GB for 10 x 1 000 000 were seen)."""


class SqlStore:
    """See `servers.Store`."""

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
        return self.tables.count * self.tables.size * _ROW_BYTES + self._dialect.pool_slack_bytes

    def prepare(self, ground: Ground) -> dict[str, Any]:
        self._ground = ground
        tidy(self._cache)
        (ground.work / "tmp").mkdir()
        data = ground.work / "data"
        if self.tables.count == 0:
            kept = self._empty(data)
        else:
            name = f"{self.program.key}-{self.tables.count}x{self.tables.size}-g{GENERATOR_VERSION}"
            kept = from_template(self._cache / "loaded", name, data, self._load)
            self._dialect.adopt(data)
        return {
            "data_file_system": file_system_of(data),
            "data_from_template": kept,
            "tables": self.tables.count,
            "table_size": self.tables.size,
        }

    def start(self, *, networking: bool, tls: CertificatePaths | None = None) -> SqlServer:
        return self._start(networking=networking, loading=False, tls=tls)

    def _empty(self, data: Path) -> bool:
        kept = from_template(
            self._cache / "empty",
            self.program.key,
            data,
            lambda where: self._dialect.initialise(self.program.path, where),
        )
        self._dialect.adopt(data)
        return kept

    def _load(self, data: Path) -> None:
        self._empty(data)
        server = self._start(networking=False, loading=True)
        try:
            load_tables(server, self.tables, data)
            server.shut_down()
        finally:
            server.stop()

    def _start(self, *, networking: bool, loading: bool, tls: CertificatePaths | None = None) -> SqlServer:
        assert self._ground is not None, "prepare() comes before start()"
        settings = Settings(
            program=self.program.path,
            ground=self._ground,
            password=self.password,
            pool_bytes=self.data_bytes() * 5 // 4 + self._dialect.pool_slack_bytes,
            tables=self.tables.count,
            networking=networking,
            loading=loading,
            tls=tls,
        )
        return start_server(settings, self._dialect)
