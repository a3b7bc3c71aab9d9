"""Messages about a server's failure: they contain the reason, and no password."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from howfar.contract.messages import UnixTarget
from howfar.errors import LabError, ServerCrashed
from howfar.experiments.replication.lab.binary_log import BinaryLogReplication
from howfar.experiments.replication.lab.dialect import Source, replication_dialect
from howfar.lab.servers.postgresql import _view_session
from howfar.lab.servers.sql_store import SqlServer
from howfar.paths.pgbouncer import _query_console

SECRET = "nobody-reads-this"
CALLED = "the statement that names its primary"


class Refusing:
    """A connection and the server's process in one: every query fails."""

    def __init__(self, error: pymysql.Error, code: int | None = None) -> None:
        self._error = error
        self._code = code
        self.process = self

    def rows(self, sql: str) -> None:
        raise self._error

    def poll(self) -> int | None:
        return self._code


def _server(refusing: Refusing, log: Path, lines: Sequence[str] = ("ready",)) -> SqlServer:
    server: Any = object.__new__(SqlServer)
    log.write_text("\n".join(lines))
    server._admin_session, server._process, server._log = refusing, refusing, log
    server.program = "mariadbd"
    made: SqlServer = server
    return made


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize(("code", "kept"), [(1201, "no more than that"), (1064, "error 1064")])
def test_a_statement_with_a_password_is_called_by_its_name(kind: str, code: int, kept: str, tmp_path: Path) -> None:
    dialect = replication_dialect(kind)
    assert isinstance(dialect, BinaryLogReplication)
    sql = dialect.follow_sql(Source(address="198.51.100.1", port=3306, password=SECRET, ca=None, compression=None))
    error = pymysql.Error(code, "no more than that" if code != 1064 else f"You have an error near '{sql}'")
    with pytest.raises(LabError) as caught:
        _server(Refusing(error), tmp_path / "log").query(sql, CALLED)
    assert CALLED in caught.value.message and kept in caught.value.message
    assert SECRET not in caught.value.message and SECRET[-4:] not in caught.value.message


def test_the_last_words_of_a_server_are_without_passwords(tmp_path: Path) -> None:
    quoted = f"Query (0x7f): CHANGE MASTER TO MASTER_PASSWORD = '{SECRET}'"
    with pytest.raises(ServerCrashed) as caught:
        _server(Refusing(pymysql.Error(1), 1), tmp_path / "log", ("got signal 11", quoted)).query("SELECT 1", CALLED)
    assert "got signal 11" in caught.value.message and SECRET not in caught.value.message


REFUSAL = b"SFATAL\0VFATAL\0C57P03\0Mthe server is going away\0\0"


@pytest.mark.parametrize(
    ("connect", "told"),
    [
        (lambda near: _view_session(SECRET, UnixTarget(path=near), None), "the server is going away"),
        (partial(_query_console, command="SHOW STATS"), "does not answer SHOW STATS"),
    ],
    ids=["server", "pgbouncer"],
)
def test_a_refusal_that_comes_before_any_login_is_told(
    connect: Callable[[str], object], told: str, tmp_path: Path
) -> None:
    """The refusal begins with a message type, which is not an answer to a TLS request."""
    near = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(near)
        listening.listen()

        def refuse() -> None:
            session, _ = listening.accept()
            with session:
                session.recv(1024)
                session.sendall(b"E" + (len(REFUSAL) + 4).to_bytes(4) + REFUSAL)

        server = threading.Thread(target=refuse)
        server.start()
        with pytest.raises(LabError, match=told):
            connect(near)
        server.join()
