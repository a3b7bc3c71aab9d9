"""The lines that a report advises for my.cnf: servers that start with only these lines apply them and replicate."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pymysql
import pytest
from pymysql.cursors import DictCursor

from howfar.experiments.replication.lab.binary_log import BinaryLogReplication
from howfar.experiments.replication.lab.dialect import Source, replication_dialect
from howfar.experiments.replication.lab.member import wait_for
from howfar.experiments.replication.report import STATUS, MyCnf
from howfar.lab.servers import USER
from howfar.lab.servers.kinds import DIALECTS, find_server
from howfar.lab.servers.program import Program
from tests.lab.local_stores import free_port
from tests.lab.sandboxes import TIMEOUT_S
from tests.rarely import rarely_but

pytestmark = pytest.mark.lab
Connection: TypeAlias = "pymysql.Connection[DictCursor]"
_UNLOGGED = "SET SESSION sql_log_bin = 0;\n"
"""Otherwise the creation of accounts would wait for a replica."""
_TIMEOUT_S = 90
"""Much less than the advised timeout of semi-synchronous replication."""
REPORTED = {"ON": {"ON", "1"}, "binlog": {"ON", "1"}}
"""Values that a server may report for a value in its file. Instead of a log's name, it reports whether the log is on."""


@pytest.mark.parametrize("name", rarely_but(("mariadb",), ("mariadb", "mysql")), indirect=True)
def test_a_pair_replicates_with_the_advised_lines(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    program, short = find_server(name), tmp_path_factory.mktemp("m")
    advised = MyCnf(program.kind)
    DIALECTS[program.kind].initialise(program.path, short / "data")
    for mode in ("after-sync", "after-commit"):
        first, second = advised.primary_lines(mode), advised.replica_lines(mode)
        assert {*advised.lines("async")} < {*first, *second, *advised.lines(mode)}, (
            "the general advice only combines the specific lines"
        )
        with _pair(program, short, (*first, *advised.timeout_lines()), second) as (primary, replica, port):
            assert (
                _wrong_settings(primary, (*first, *advised.timeout_lines())) == _wrong_settings(replica, second) == {}
            )
            _follow(program.kind, primary, replica, port)
            primary.cursor().execute("CREATE DATABASE d")
            primary.cursor().execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
            primary.cursor().execute("INSERT INTO d.t VALUES (7)")
            wait_for(lambda: _has_the_row(replica), _TIMEOUT_S, lambda: "the replica did not apply a row")
            assert _read_value(primary, "STATUS", STATUS[program.kind]) == "ON"


def _follow(kind: str, primary: Connection, replica: Connection, port: int) -> None:
    dialect = replication_dialect(kind)
    assert isinstance(dialect, BinaryLogReplication)
    primary.cursor().execute("SET SESSION sql_log_bin = 0")
    for statement in dialect.account_sql("secret", tls=False).splitlines():
        primary.cursor().execute(statement)
    primary.cursor().execute("SET SESSION sql_log_bin = 1")
    replica.cursor().execute(dialect.follow_sql(Source("127.0.0.1", port, "secret", None, None)))
    replica.cursor().execute(dialect.start_sql)
    clients = STATUS[kind].replace("_status", "_clients")
    wait_for(lambda: _read_value(primary, "STATUS", clients) == "1", _TIMEOUT_S, lambda: "no replica acknowledges")


def _has_the_row(replica: Connection) -> bool:
    with replica.cursor() as cursor:
        try:
            cursor.execute("SELECT id FROM d.t")
        except pymysql.err.ProgrammingError:
            return False
        return bool(cursor.fetchall())


def _wrong_settings(connection: Connection, lines: tuple[str, ...]) -> dict[str, str | None]:
    """Settings with other values than those of the lines, with the server's values."""
    wanted = dict(line.split(" = ") for line in lines if " = " in line and not line.startswith("#"))
    wanted = {key: value for key, value in wanted.items() if key != "plugin-load-add"}
    found = {key: _read_value(connection, "VARIABLES", key.replace("-", "_")) for key in wanted}
    return {key: found[key] for key, value in wanted.items() if found[key] not in REPORTED.get(value, {value})}


def _read_value(connection: Connection, what: str, name: str) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW GLOBAL {what} WHERE Variable_name = %s", (name,))
        row = cursor.fetchone()
        return None if row is None else str(row["Value"])


@contextmanager
def _pair(
    program: Program, short: Path, first: tuple[str, ...], second: tuple[str, ...]
) -> Iterator[tuple[Connection, Connection, int]]:
    """Run both servers with equal data and without replication; yields both connections and the primary's port."""
    with ExitStack() as stack:
        works = [stack.enter_context(_directory(short, name)) for name in ("p", "r")]
        ports = [free_port(), free_port()]
        servers = [
            stack.enter_context(_start_server(program, lines, work, port))
            for lines, work, port in zip((first, second), works, ports, strict=True)
        ]
        opened = [
            stack.enter_context(_wait_for_connection(server, work)) for server, work in zip(servers, works, strict=True)
        ]
        yield opened[0], opened[1], ports[0]


@contextmanager
def _directory(short: Path, name: str) -> Iterator[Path]:
    work = short / name
    work.mkdir()
    shutil.copytree(short / "data", work / "data")
    (work / "data" / "auto.cnf").unlink(missing_ok=True)
    yield work
    shutil.rmtree(work)


@contextmanager
def _start_server(program: Program, lines: tuple[str, ...], work: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server with an option file of these lines; other options only set its directory, address and account."""
    (work / "my.cnf").write_text("\n".join(lines) + "\n")
    (work / "init.sql").write_text(_UNLOGGED + DIALECTS[program.kind].init_sql("secret"))
    command = [
        str(program.path),
        f"--defaults-file={work / 'my.cnf'}",
        f"--datadir={work / 'data'}",
        f"--socket={work / 's.sock'}",
        f"--pid-file={work / 'pid'}",
        f"--init-file={work / 'init.sql'}",
        "--bind-address=127.0.0.1",
        f"--port={port}",
        "--secure-file-priv=",
        *(("--user=root",) if os.geteuid() == 0 else ()),
        *(("--mysqlx=OFF",) if program.kind == "mysql" else ()),
    ]
    with (work / "log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


@contextmanager
def _wait_for_connection(server: subprocess.Popen[bytes], work: Path) -> Iterator[Connection]:
    opened: list[Connection] = []

    def responds() -> bool:
        assert server.poll() is None, (work / "log").read_text(errors="replace")[-2000:]
        try:
            opened.append(_connect(work / "s.sock"))
        except (pymysql.Error, OSError):
            return False
        return True

    wait_for(
        responds,
        TIMEOUT_S,
        lambda: f"it does not accept connections: {(work / 'log').read_text(errors='replace')[-2000:]}",
    )
    with opened[0] as connection:
        yield connection


def _connect(socket: Path) -> Connection:
    return pymysql.connect(
        unix_socket=str(socket),
        user=USER,
        password="secret",
        ssl_disabled=True,
        cursorclass=DictCursor,
        autocommit=True,
        read_timeout=_TIMEOUT_S,
    )
