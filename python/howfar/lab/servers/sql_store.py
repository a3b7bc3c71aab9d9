"""MariaDB or MySQL: initialised from a template, loaded once, started fresh for each trial.

The data directory is thrown away, so a server is stopped by SIGKILL. Only one that becomes a template is shut down cleanly.
A running server is in `sql_server.py`, what differs between the two in their own files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from howfar.errors import PlanError
from howfar.lab.cache import cache_home, copy_tree, file_system_of, lock
from howfar.lab.servers import DATABASE, USER, CertificatePaths, Reach, ServerContext, Store, Tables, ready
from howfar.lab.servers.contents import Rows, find_rows, row_chunks
from howfar.lab.servers.dialect import BinaryLog, Dialect, Settings
from howfar.lab.servers.program import Program
from howfar.lab.servers.sql_server import SqlServer
from howfar.plan.factors import Content


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


_UNFINISHED = "building-"
_SHELF_BYTES_MAX = 16 * 2**30
"""Templates used longest ago go when a shelf holds more; the one just built stays, however large."""


def from_template(shelf: Path, name: str, target: Path, build: Callable[[Path], None]) -> bool:
    """Make `target` (not there yet) a copy of the template `name`. A missing one is built in `target` and then kept.

    Returns True when the template was there. Raises what `build` raises; nothing half-made is kept.
    """
    shelf.mkdir(parents=True, exist_ok=True)
    lock_file = shelf / "lock"
    template = shelf / name
    with lock(lock_file, exclusive=False):
        if template.is_dir():
            os.utime(template)
            copy_tree(template, target)
            return True
    with lock(lock_file, exclusive=True):
        if template.is_dir():
            copy_tree(template, target)
            return True
        _remove_unfinished(shelf)
        build(target)
        unfinished = shelf / f"{_UNFINISHED}{os.getpid()}"
        copy_tree(target, unfinished)
        os.utime(unfinished)
        unfinished.rename(template)
        _collect(shelf, keep=template)
    return False


def tidy(shelves: Path) -> None:
    """Remove what builders who were killed left on all shelves."""
    for shelf in shelves.glob("*/"):
        if not any(shelf.glob(f"{_UNFINISHED}*")):
            continue
        with (
            (shelf / "lock").open("a") as file,
            contextlib.suppress(BlockingIOError),
        ):  # held: somebody builds, and tidies
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_unfinished(shelf)


def _remove_unfinished(shelf: Path) -> None:
    """Call with the shelf's lock held exclusively: then nobody builds."""
    for stale in shelf.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(stale, ignore_errors=True)


def _size(directory: Path) -> int:
    """On disk. What goes away meanwhile takes nothing."""
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(where) / name).stat().st_blocks * 512
    return total


def _collect(shelf: Path, keep: Path) -> None:
    oldest_first = sorted((item for item in shelf.iterdir() if item.is_dir()), key=lambda item: item.stat().st_mtime)
    total = sum(_size(item) for item in oldest_first)
    for item in oldest_first:
        if total <= _SHELF_BYTES_MAX or item == keep:
            continue
        total -= _size(item)
        shutil.rmtree(item, ignore_errors=True)


ROW_BYTES = 250
"""A row with its share of the index on `k`, as InnoDB keeps it (2.4 GB for 10 x 1 000 000 were seen)."""
POOL_PER_DATA = 1.25
"""The buffer pool has room for more than the tables, so that no page of theirs is ever evicted."""

LOADED = "templates/loaded"
"""The shelf of loaded tables, in the cache."""


def template_name(program: Program, tables: int, table_size: int, rows: Rows) -> str:
    """What such tables are called there."""
    return f"{program.key}-{tables}x{table_size}-{rows.key}"


class SqlStore(Store):
    """Tables of sysbench, from templates."""

    user = USER
    database = DATABASE

    def __init__(self, program: Program, dialect: Dialect, tables: Tables) -> None:
        assert program.kind == dialect.kind
        super().__init__(program)
        self.tables = tables
        self.password = secrets.token_urlsafe(18)
        self._dialect = dialect
        self._cache = cache_home() / "templates"

    def data_bytes(self) -> int:
        return self.tables.count * self.tables.size * ROW_BYTES + self._dialect.pool_slack_bytes

    def prepare(self, context: ServerContext) -> dict[str, Any]:
        self._context = context
        tidy(self._cache)
        (context.work / "tmp").mkdir()
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
        return ready(self._server(self._data(content), networking=networking, tls=tls))

    def begin(self, *, binary_log: BinaryLog, tls: CertificatePaths | None = None) -> SqlServer:
        """Start one that takes part in replication, with networking, on the first content; who calls waits until it is ready, and
        stops it. So several come up side by side."""
        return self._server(self._data(self.tables.contents[0]), networking=True, tls=tls, binary_log=binary_log)

    def _data(self, content: Content) -> Path:
        return self.context.work / ("data" if content == "digits" else f"data-{content}")

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
        server = ready(self._server(data, networking=False, loading=True))
        try:
            load_tables(server, self.tables, rows, data)
            server.shut_down()
        finally:
            server.stop()

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
            pool_bytes=int(self.data_bytes() * POOL_PER_DATA) + self._dialect.pool_slack_bytes,
            tables=self.tables.count,
            networking=networking,
            loading=loading,
            tls=tls,
            binary_log=binary_log,
        )
        return SqlServer(settings, self._dialect)
