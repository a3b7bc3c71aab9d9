"""Servers on this machine's loopback interface, without a sandbox and a link. They end with the test's process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.cursors import DictCursor

from howfar.contract.messages import TcpTarget, UnixTarget
from howfar.errors import HowfarError
from howfar.lab.network import Host, usable_cpus
from howfar.lab.servers import DATABASE, USER, CertificatePaths, ServerContext, ServerProcess, Store, Tables, find_store
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.program import Program

ONE_TABLE = Tables(1, 100)
SERVERS = ("mariadb", pytest.param("mariadb-11", marks=pytest.mark.thorough), "mysql")
"""The servers on which tests of server differences run; the newer MariaDB only in `./test thorough`."""


@dataclass(frozen=True)
class LocalServer:
    """A running server and the password of the laboratory's account."""

    process: ServerProcess
    password: str

    @property
    def address(self) -> tuple[str, int]:
        """The address and port on which it listens."""
        assert self.process.address is not None and self.process.port is not None, (
            "the server was started with networking"
        )
        return self.process.address, self.process.port

    @property
    def tcp(self) -> TcpTarget:
        host, port = self.address
        return TcpTarget(host=host, port=port)

    @property
    def unix(self) -> UnixTarget:
        return UnixTarget(path=str(self.process.socket))

    @property
    def login(self) -> dict[str, Any]:
        """The fields of a job that log in with the laboratory's account."""
        return {"user": USER, "password": self.password, "database": DATABASE}

    def execute(self, *statements: str) -> list[dict[str, object]]:
        """Execute statements over the socket with the laboratory's account, which has all privileges; returns the last one's rows."""
        connection = pymysql.connect(
            unix_socket=self.unix.path, **self.login, autocommit=True, ssl_disabled=True, cursorclass=DictCursor
        )
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


def require_server(kind: str) -> Program:
    """An installed server; skips the test if there is none of this kind."""
    try:
        return find_server(kind)
    except HowfarError as error:
        pytest.skip(f"{kind}: {error.message} {error.advice}")


def prepare_store(server: str, work: Path, *, tables: Tables = ONE_TABLE) -> Store:
    """Prepare a server's data in `work`, an empty directory with a short path. Raises ServerMissing."""
    store = find_store(server, tables)
    context = ServerContext(work=work, host=Host("here", None), cpus=usable_cpus(), connections=64, namespaced=False)
    store.prepare(context)
    return store


@contextmanager
def run_store(store: Store, *, networking: bool = True, tls: CertificatePaths | None = None) -> Iterator[LocalServer]:
    """Run a server on its prepared data."""
    process = store.start(networking=networking, tls=tls)
    try:
        yield LocalServer(process, store.password)
    finally:
        process.stop()


@contextmanager
def run_server(
    kind: str, parent: Path, *, tables: Tables = ONE_TABLE, networking: bool = True, tls: CertificatePaths | None = None
) -> Iterator[LocalServer]:
    """Run a server with new data in a directory below `parent`. Raises ServerMissing."""
    store = prepare_store(kind, make_short_directory(parent), tables=tables)
    with run_store(store, networking=networking, tls=tls) as server:
        yield server


def make_short_directory(parent: Path) -> Path:
    """A new directory below `parent` whose path is short enough for a socket in it."""
    directory = parent / f"s{len(list(parent.iterdir()))}"
    directory.mkdir()
    return directory
