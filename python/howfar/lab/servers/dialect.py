"""The interface to the differences between MariaDB and MySQL: initialisation, command line, accounts.

A `Dialect` is stateless. The store and the running server, which use it, are in `sql_store.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from howfar.errors import LabError, ServerCrashed
from howfar.lab.environment import MIN_QUEUE
from howfar.lab.servers import SOCKET_NAME, SPARE_CONNECTIONS, CertificatePaths, ServerContext

PREPARED_STATEMENTS = 1_000_000
"""Limit of prepared statements for all connections together. The default, 16 thousand, allows only eight for each of 2048
connections."""
_INITIALISE_TIMEOUT_S = 300


@dataclass(frozen=True)
class BinaryLog:
    """Additional settings of a server with a binary log, which takes part in replication."""

    server_id: int
    options: tuple[str, ...]
    init_sql: str
    """Statements that create the accounts for replication, one per line."""
    unlogged_sql: str = "SET SESSION sql_log_bin = 0;\n"
    """Statement before the init statements that keeps them out of the binary log, so that they are not replicated."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to put in the data directory before the server starts, by name."""
    path: str | None = None
    """The server's PATH for programs that it starts; None for our own."""
    uses_option_file: bool = False
    """Whether to set the buffer pool's size in an option file: MariaDB's transfer script passes the server's command-line options to a
    program that refuses this option."""
    fetches_data: bool = False
    """Whether the server fetches its data from another server at startup, so that there are no pages to read into memory first."""


@dataclass(frozen=True)
class Settings:
    """Settings with which one server is started."""

    program: Path
    data: Path
    """The server's data directory."""
    context: ServerContext
    password: str
    pool_bytes: int
    tables: int
    networking: bool
    loading: bool
    """Whether the server builds a template. Such a server dumps its buffer pool at shutdown, and may read any file of its work
    directory."""
    tls: CertificatePaths | None = None
    """Certificates for TLS; None to offer no TLS."""
    binary_log: BinaryLog | None = None
    """Settings for replication; None to write no binary log."""


class Dialect(Protocol):
    """The differences of one kind of server."""

    kind: str
    pool_slack_bytes: int
    """Space needed in addition to the tables, in the buffer pool and on disk."""
    unfinished_work_sql: str | None
    """Query whose column `n` is 0 once the server has finished the work that a killed server left in its data; None if there is no
    such query."""

    def initialise(self, program: Path, data: Path) -> None:
        """Create a data directory at `data`, with root without a password. Raises LabError, ServerCrashed, ServerMissing."""
        ...

    def renew_identity(self, data: Path) -> None:
        """Give a copy of a data directory its own identity."""
        ...

    def command_line(self, settings: Settings, port: int | None) -> list[str]:
        """Command that starts the server; `port` is None without networking."""
        ...

    def init_sql(self, password: str) -> str:
        """Statements for startup, one per line, after which only the laboratory's account exists."""
        ...


def shared_options(settings: Settings, port: int | None) -> list[str]:
    """Options that MariaDB and MySQL have in common; `--no-defaults` or `--defaults-file` must come first. The template's dump of the
    buffer pool lists every page of the tables; loading this list at startup is the fastest way to read them into memory."""
    work = settings.context.work
    connections = settings.context.connections + SPARE_CONNECTIONS
    file = option_file(settings)
    options = [
        "--no-defaults" if file is None else f"--defaults-file={file}",
        f"--datadir={settings.data}",
        f"--socket={work / SOCKET_NAME}",
        f"--pid-file={work / 'server.pid'}",
        f"--tmpdir={work / 'tmp'}",
        f"--init-file={work / 'init.sql'}",
        f"--max-connections={connections}",
        f"--max-prepared-stmt-count={PREPARED_STATEMENTS}",
        f"--table-open-cache={max(2000, connections * max(settings.tables, 1))}",
        f"--open-files-limit={connections * (settings.tables + 2) + 4096}",
        f"--back-log={max(MIN_QUEUE, connections)}",
        *([f"--{pool_option(settings)}"] if file is None else []),
        f"--innodb-buffer-pool-load-at-startup={'OFF' if settings.loading else 'ON'}",
        f"--innodb-buffer-pool-dump-at-shutdown={'ON' if settings.loading else 'OFF'}",
        "--innodb-buffer-pool-dump-pct=100",
        "--innodb-read-ahead-threshold=0",  # otherwise a long range scan would also read an extent that is not needed
        "--character-set-server=utf8mb4",
        "--collation-server=utf8mb4_general_ci",
        "--skip-name-resolve",
        "--performance-schema=OFF",
        "--secure-file-priv=" + (str(work) if settings.loading else str(work / "tmp")),
    ]
    if port is None:
        options.append("--skip-networking")
    else:
        options += [f"--port={port}", f"--bind-address={settings.context.listen_address}"]
    if settings.tls is not None:
        tls = settings.tls
        options += [f"--ssl-ca={tls.ca}", f"--ssl-cert={tls.certificate}", f"--ssl-key={tls.key}"]
    return options


def option_file(settings: Settings) -> Path | None:
    """The option file; None if the server reads none."""
    uses_file = settings.binary_log is not None and settings.binary_log.uses_option_file
    return settings.context.work / "server.cnf" if uses_file else None


def pool_option(settings: Settings) -> str:
    """The option for the buffer pool's size, without leading dashes, as in an option file."""
    return f"innodb-buffer-pool-size={settings.pool_bytes}"


def path_prefix(log: BinaryLog | None) -> list[str]:
    """Prefix of the server's command line that sets its PATH."""
    return [] if log is None or log.path is None else ["env", f"PATH={log.path}"]


def log_options(log: BinaryLog) -> list[str]:
    """Options for the binary log that MariaDB and MySQL have in common. The log is in the data directory. All servers give it the same
    name, because positions contain the name."""
    return [f"--server-id={log.server_id}", "--log-bin=bl", "--relay-log=rl", *log.options]


def build_init_sql(settings: Settings, dialect: Dialect) -> str:
    """Statements for startup, one per line. Each server creates its accounts without logging that: otherwise the primary's accounts
    would be replicated, and a replica would have errant transactions."""
    if settings.binary_log is None:
        return dialect.init_sql(settings.password)
    return settings.binary_log.unlogged_sql + dialect.init_sql(settings.password) + settings.binary_log.init_sql


def run_initialiser(command: Sequence[str], directory: Path, *, pass_fds: Sequence[int] = ()) -> None:
    """Run a command that creates `directory` with system tables. Raises ServerCrashed with its last output, LabError."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_INITIALISE_TIMEOUT_S, pass_fds=tuple(pass_fds)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerCrashed(f"initialising a data directory with {command[0]} failed: {error}") from error
    if result.returncode != 0:
        output = "\n".join((result.stdout + result.stderr).strip().splitlines()[-10:])
        raise ServerCrashed(
            f"initialising a data directory with {command[0]} ended with exit code {result.returncode}:\n{output}",
            "Does this server program work outside howfar?",
        )
    if not directory.is_dir():
        raise LabError(f"{command[0]} did not create {directory}")


def check_quotable(password: str) -> str:
    """Check that a password needs no escapes in SQL, and return it."""
    assert "'" not in password and "\\" not in password, "generated passwords have only letters, digits, - and _"
    return password
