"""Stores with sysbench's tables. Tables are loaded once; data directories are then copied from templates in the cache. Subclasses for
the kinds of server are in `sql_store.py` and `postgresql.py`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from howfar.contract.environment import DataFacts
from howfar.errors import PlanError
from howfar.lab.cache import cache_home, copy_tree, file_system_of, lock
from howfar.lab.servers import (
    DATABASE,
    USER,
    CertificatePaths,
    ServerContext,
    ServerProcess,
    Store,
    Tables,
    TableServer,
    Transport,
    wait_ready,
)
from howfar.lab.servers.contents import Rows, find_rows
from howfar.lab.servers.program import Program
from howfar.plan.estimate import ROWS_PER_S
from howfar.plan.factors import Content

_UNFINISHED_PREFIX = "building-"
_MAX_TEMPLATES_BYTES = 16 * 2**30
"""Maximum size of a directory of templates. Beyond it the least recently used templates are removed, but never the one just built."""


def copy_or_build_template(templates: Path, name: str, target: Path, build: Callable[[Path], None]) -> bool:
    """Create `target` as a copy of the template `name` in the directory `templates`. If there is no such template, build `target`, and
    keep a copy as the template. Returns True if the template existed. Passes on errors of `build`, after which no template is kept."""
    templates.mkdir(parents=True, exist_ok=True)
    lock_file = templates / "lock"
    template = templates / name
    with lock(lock_file, exclusive=False):
        if template.is_dir():
            with contextlib.suppress(OSError):  # it may belong to another account
                os.utime(template)
            copy_tree(template, target)
            return True
    with lock(lock_file, exclusive=True):
        if template.is_dir():
            copy_tree(template, target)
            return True
        _remove_unfinished(templates)
        build(target)
        unfinished = templates / f"{_UNFINISHED_PREFIX}{os.getpid()}"
        copy_tree(target, unfinished)
        os.utime(unfinished)
        unfinished.rename(template)
        _remove_oldest(templates, keep=template)
    return False


def remove_unfinished_templates(root: Path) -> None:
    """Remove the unfinished templates that killed processes left in all directories of templates below `root`."""
    for templates in root.glob("*/"):
        if not any(templates.glob(f"{_UNFINISHED_PREFIX}*")):
            continue
        # If another process holds the lock, leave the templates to that process.
        with (templates / "lock").open("a") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_unfinished(templates)


def _remove_unfinished(templates: Path) -> None:
    """Remove unfinished templates. The caller holds the directory's lock exclusively, so no template is being built."""
    for stale in templates.glob(f"{_UNFINISHED_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)


def _disk_bytes(directory: Path) -> int:
    """Size of a directory on disk, in bytes. Files that vanish meanwhile count as 0."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(folder) / name).stat().st_blocks * 512
    return total


def _remove_oldest(templates: Path, keep: Path) -> None:
    oldest_first = sorted(
        (template for template in templates.iterdir() if template.is_dir()),
        key=lambda template: template.stat().st_mtime,
    )
    total = sum(_disk_bytes(template) for template in oldest_first)
    for template in oldest_first:
        if total <= _MAX_TEMPLATES_BYTES or template == keep:
            continue
        total -= _disk_bytes(template)
        shutil.rmtree(template, ignore_errors=True)


ROW_BYTES = 250
"""Bytes of a row with its share of the index on `k`, as InnoDB stores it: 10 tables of 1 000 000 rows took 2.4 GB."""
POOL_PER_DATA = 1.25
"""Ratio of the buffer pool's size to the tables' size. It is large enough that no page of the tables is ever evicted."""

LOADED_TEMPLATES = "templates/loaded"
"""Directory of the templates with loaded tables, relative to the cache."""


def template_name(program: Program, tables: int, table_size: int, rows: Rows) -> str:
    """Name of the template with these tables."""
    return f"{program.key}-{tables}x{table_size}-{rows.key}"


_ServerT = TypeVar("_ServerT", bound=TableServer)


@contextlib.contextmanager
def template_server(server: _ServerT) -> Iterator[_ServerT]:
    """Wait until a newly started server is ready; shut it down cleanly at the end, so that its files can become a template. Raises
    ServerCrashed, LabError."""
    wait_ready(server)
    try:
        yield server
        server.shut_down()
    finally:
        server.stop()


class TableStore(Store):
    """A store of sysbench's tables, from templates."""

    user = USER
    database = DATABASE
    pool_slack_bytes = 128 * 2**20
    """Space needed in addition to the tables, in the buffer pool and on disk."""

    def __init__(self, program: Program, tables: Tables) -> None:
        super().__init__(program)
        self.tables = tables
        self.password = secrets.token_urlsafe(18)
        self._cache = cache_home() / "templates"

    @abstractmethod
    def _initialise(self, data: Path) -> None:
        """Create a data directory without tables at `data`. Raises LabError, ServerCrashed, ServerMissing."""

    @abstractmethod
    def _renew_identity(self, data: Path) -> None:
        """Give a copy of a data directory its own identity."""

    @abstractmethod
    def _load(self, data: Path, rows: Rows) -> None:
        """Create a data directory with the tables at `data`. Raises LabError, ServerCrashed, ServerMissing."""

    @abstractmethod
    def _serve(self, data: Path, *, networking: bool, tls: CertificatePaths | None) -> ServerProcess:
        """Start a server on `data`. The caller waits until it is ready."""

    @property
    def pool_bytes(self) -> int:
        """Size of a server's buffer pool: large enough that no page of the tables is ever evicted."""
        return int(self.data_bytes() * POOL_PER_DATA) + self.pool_slack_bytes

    def data_bytes(self) -> int:
        return self.tables.count * self.tables.size * ROW_BYTES + self.pool_slack_bytes

    def preparation(self) -> str:
        missing = [
            content
            for content in self.tables.contents
            if not (cache_home() / LOADED_TEMPLATES / self._template_name(content)).is_dir()
        ]
        if not missing or self.tables.count == 0:
            return "copying the server's data, usually a few seconds"
        rows = self.tables.count * self.tables.size * len(missing)
        return f"loading {rows:,} rows, which is kept for later runs and takes about {rows // ROWS_PER_S + 5} s"

    def prepare(self, context: ServerContext) -> DataFacts:
        self._context = context
        remove_unfinished_templates(self._cache)
        (context.work / "tmp").mkdir()
        was_copied = [self._create_data(content) for content in self.tables.contents]
        return DataFacts(
            data_file_system=file_system_of(self._data_directory(self.tables.contents[0])),
            data_from_template=all(was_copied),
            tables=self.tables.count,
            table_size=self.tables.size,
            contents=list(self.tables.contents),
        )

    def discard(self) -> None:
        for content in self.tables.contents:
            shutil.rmtree(self._data_directory(content), ignore_errors=True)

    def start(
        self,
        *,
        networking: bool,
        tls: CertificatePaths | None = None,
        content: Content | None = None,
        transport: Transport = "socket",
    ) -> ServerProcess:
        content = content or self.tables.contents[0]
        if content not in self.tables.contents:
            raise PlanError(f"this laboratory has no tables of {content}", "Ask for them when building the laboratory.")
        return wait_ready(self._serve(self._data_directory(content), networking=networking, tls=tls))

    def _data_directory(self, content: Content) -> Path:
        return self.context.work / ("data" if content == "digits" else f"data-{content}")

    def _create_data(self, content: Content) -> bool:
        """Create the data directory of one content; returns whether its template existed."""
        data = self._data_directory(content)
        if self.tables.count == 0:
            return self._create_empty(data)
        rows = find_rows(content)
        was_copied = copy_or_build_template(
            cache_home() / LOADED_TEMPLATES,
            self._template_name(content),
            data,
            lambda directory: self._load(directory, rows),
        )
        self._renew_identity(data)
        return was_copied

    def _template_name(self, content: Content) -> str:
        return template_name(self.program, self.tables.count, self.tables.size, find_rows(content))

    def _create_empty(self, data: Path) -> bool:
        was_copied = copy_or_build_template(self._cache / "empty", self.program.key, data, self._initialise)
        self._renew_identity(data)
        return was_copied
