"""Servers for tests, on this machine's own loopback: no sandbox, no link. They die with the test's process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest
from pymysql.cursors import DictCursor

from howfar.lab.network import Host, usable_cpus
from howfar.lab.servers import DATABASE, USER, CertificatePaths, ServerContext, ServerProcess, Store, Tables, find_store

ONE_TABLE = Tables(1, 100)
SERVERS = ("mariadb", pytest.param("mariadb-11", marks=pytest.mark.thorough), "mysql")
"""All kinds of servers, and in `./test thorough` a newer MariaDB; tests of what differs between servers run on all."""


@dataclass(frozen=True)
class Running:
    """A running server and how to log in."""

    server: ServerProcess
    password: str

    @property
    def address(self) -> tuple[str, int]:
        """The address and port on which it listens."""
        assert self.server.address is not None and self.server.port is not None, "started without networking"
        return self.server.address, self.server.port

    def execute(self, *statements: str) -> list[dict[str, object]]:
        """Execute over the socket as the laboratory's own account, which has all privileges; returns the last statement's rows."""
        connection = pymysql.connect(
            unix_socket=str(self.server.socket),
            user=USER,
            password=self.password,
            database=DATABASE,
            autocommit=True,
            ssl_disabled=True,
            cursorclass=DictCursor,
        )
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


def prepared(server: str, work: Path, *, tables: Tables = ONE_TABLE, connections: int = 64) -> Store:
    """A store with its data in `work`, which must be empty and have a short name. Raises ServerMissing."""
    store = find_store(server, tables)
    host = Host("here", None)
    store.prepare(ServerContext(work=work, host=host, cpus=usable_cpus(), connections=connections, namespaced=False))
    return store


@contextmanager
def started(store: Store, *, networking: bool = True, tls: CertificatePaths | None = None) -> Iterator[Running]:
    """Start a store on its prepared data, and kill it afterwards."""
    server = store.start(networking=networking, tls=tls)
    try:
        yield Running(server, store.password)
    finally:
        server.stop()


def short_directory(parent: Path) -> Path:
    """An empty directory whose path is short enough for a socket in it."""
    found = parent / f"s{len(list(parent.iterdir()))}"
    found.mkdir()
    return found
