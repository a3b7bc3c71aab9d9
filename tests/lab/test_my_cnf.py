"""The lines that a report advises for my.cnf: a real server starts with these very lines and says that they are in force."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest
from pymysql.cursors import DictCursor

from howfar.analysis.replication.my_cnf import STATUS, my_cnf, timeout_lines
from howfar.lab.replication.member import wait_for
from howfar.lab.servers import USER
from howfar.lab.servers.kinds import DIALECTS, find_server
from howfar.lab.servers.program import Program
from tests.lab.sandboxes import PATIENCE_S

pytestmark = pytest.mark.lab
_UNLOGGED = "SET SESSION sql_log_bin = 0;\n"
"""Else the account would wait for a replica to acknowledge it."""
SAYS = {"ON": {"ON", "1"}, "binlog": {"ON", "1"}}
"""What a server may answer for what a file says, where it is not the same; a log's name is asked for as a yes or no."""


@pytest.mark.parametrize("name", ["mariadb", "mysql"], indirect=True)
def test_a_server_starts_with_the_advised_lines(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    program, short = find_server(name), tmp_path_factory.mktemp("m")
    for mode in ("async", "after-sync", "after-commit"):
        with _started(program, my_cnf(program.kind, mode), short / mode) as connection:
            assert _unlike(connection, my_cnf(program.kind, mode)) == {}
            semi_sync = _asked(connection, "STATUS", STATUS[program.kind])
            assert (semi_sync == "ON") == (mode != "async") or program.kind == "mariadb"
            settings = [line for line in timeout_lines(program.kind) if " = " in line]
            assert mode == "async" or _unlike(connection, settings) == {}


def _unlike(connection: pymysql.Connection[DictCursor], lines: tuple[str, ...] | list[str]) -> dict[str, str | None]:
    """Settings that are not in force, with what is."""
    wanted = dict(line.split(" = ") for line in lines if " = " in line and not line.startswith("#"))
    wanted = {key: value for key, value in wanted.items() if key != "plugin-load-add"}
    found = {key: _asked(connection, "VARIABLES", key.replace("-", "_")) for key in wanted}
    return {key: found[key] for key, value in wanted.items() if found[key] not in SAYS.get(value, {value})}


def _asked(connection: pymysql.Connection[DictCursor], what: str, name: str) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW GLOBAL {what} WHERE Variable_name = %s", (name,))
        row = cursor.fetchone()
        return None if row is None else str(row["Value"])


@contextmanager
def _started(program: Program, lines: tuple[str, ...], work: Path) -> Iterator[pymysql.Connection[DictCursor]]:
    """With a file of these lines and nothing more than a place of its own."""
    work.mkdir()
    DIALECTS[program.kind].initialise(program.path, work / "data")
    (work / "my.cnf").write_text("\n".join(lines) + "\n")
    (work / "init.sql").write_text(_UNLOGGED + DIALECTS[program.kind].init_sql("secret"))
    command = [
        str(program.path),
        f"--defaults-file={work / 'my.cnf'}",
        f"--datadir={work / 'data'}",
        f"--socket={work / 's.sock'}",
        f"--pid-file={work / 'pid'}",
        f"--init-file={work / 'init.sql'}",
        "--skip-networking",
        "--secure-file-priv=",
        *(("--user=root",) if os.geteuid() == 0 else ()),
        *(("--mysqlx=OFF",) if program.kind == "mysql" else ()),
    ]
    with (work / "log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        opened: list[pymysql.Connection[DictCursor]] = []

        def answers() -> bool:
            assert server.poll() is None, (work / "log").read_text(errors="replace")[-2000:]
            try:
                opened.append(_connect(work / "s.sock"))
            except (pymysql.Error, OSError):
                return False
            return True

        wait_for(answers, PATIENCE_S, lambda: "it does not answer")
        with opened[0] as connection:
            yield connection
    finally:
        server.kill()
        server.wait()


def _connect(socket: Path) -> pymysql.Connection[DictCursor]:
    return pymysql.connect(
        unix_socket=str(socket), user=USER, password="secret", ssl_disabled=True, cursorclass=DictCursor
    )
