"""Client programs of `benches/drivers.py` in Python: python python_clients.py NAME. The programs in other languages do the same.

Each connects, runs three queries of one text with different keys, one prepared statement twice and one UPDATE in a transaction, as
far as its library can, or fetches 2000 rows in batches of 100. It marks each of these steps as a page. The address and the login are
in DB_HOST, DB_PORT, DB_USER, DB_PASSWORD and DB_NAME. The first line of the output is the version of the library.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

SELECT = "SELECT c FROM sbtest1 WHERE id = %s"
QUESTION = SELECT.replace("%s", "?")
DOLLAR = SELECT.replace("%s", "$1")
UPDATE = "UPDATE sbtest1 SET k = k + 1 WHERE id = 1"
ROWS = "SELECT id FROM sbtest1 WHERE id <= 2000"
BATCH = 100
KEYS = (1, 2, 3)
PREPARED_KEYS = (11, 12)
LOGIN: dict[str, Any] = {
    "host": os.environ["DB_HOST"],
    "port": int(os.environ["DB_PORT"]),
    "user": os.environ["DB_USER"],
    "password": os.environ["DB_PASSWORD"],
}
LOGIN_BY_DATABASE = {**LOGIN, "database": os.environ["DB_NAME"]}
LOGIN_BY_DBNAME = {**LOGIN, "dbname": os.environ["DB_NAME"]}


@contextmanager
def step(name: str) -> Iterator[None]:
    """A page of the recording."""
    host, _, port = os.environ["HOWFAR_MARKS"].rpartition(":")
    begun_ns = time.monotonic_ns()
    yield
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.sendto(f"page 0 {begun_ns} {time.monotonic_ns()} mark {name}".encode(), (host, int(port)))


def another(statement: str) -> str:
    """The same statement with another text, which a library that prepares statements by itself has not prepared yet."""
    return statement.replace("sbtest1", "sbtest1 AS prepared")


def ask(cursor: Any, statement: str = SELECT, keys: Sequence[int] = KEYS) -> None:
    for key in keys:
        cursor.execute(statement, (key,))
        cursor.fetchall()


def explicit(library: Any) -> None:
    """PyMySQL and mysqlclient: `begin` begins a transaction."""
    with step("connect"):
        line = library.connect(**LOGIN_BY_DATABASE)
    with step("queries"):
        ask(line.cursor())
    with step("transaction"):
        line.begin()
        line.cursor().execute(UPDATE)
        line.commit()
    line.close()


def implicit(library: Any, **login: Any) -> None:
    """psycopg2 and pg8000: the first statement begins a transaction."""
    with step("connect"):
        line = library.connect(**login)
    with step("queries"):
        ask(line.cursor())
        line.rollback()
    with step("transaction"):
        line.cursor().execute(UPDATE)
        line.commit()
    line.close()


def mysql_connector(library: Any) -> None:
    with step("connect"):
        line = library.connect(**LOGIN_BY_DATABASE, use_pure=True)
        cursor = line.cursor()
    with step("queries"):
        ask(cursor)
    with step("prepared"):
        ask(line.cursor(prepared=True), keys=PREPARED_KEYS)
    line.rollback()  # of the transaction that the first query began
    with step("transaction"):
        line.start_transaction()
        line.cursor().execute(UPDATE)
        line.commit()
    line.close()


def mariadb(library: Any) -> None:
    with step("connect"):
        line = library.connect(**LOGIN_BY_DATABASE)
    cursor = line.cursor()
    with step("queries"):
        ask(cursor, QUESTION)
    with step("prepared"):
        ask(line.cursor(prepared=True), QUESTION, PREPARED_KEYS)
    with step("transaction"):
        line.begin()
        cursor.execute(UPDATE)
        line.commit()
    line.close()


def sqlalchemy(dialect: str, library: Any) -> None:
    login = {name.replace("user", "username"): value for name, value in LOGIN_BY_DATABASE.items()}
    engine = library.create_engine(library.URL.create(dialect, **login))
    with step("connect"):
        line = engine.connect()
    with step("queries"), line:
        for key in KEYS:
            line.execute(library.text(SELECT.replace("%s", ":key")), {"key": key}).all()
    with step("transaction"), engine.begin() as line:
        line.execute(library.text(UPDATE))
    engine.dispose()


def psycopg(library: Any) -> None:
    with step("connect"):
        line = library.connect(**LOGIN_BY_DBNAME, autocommit=True)
    with step("queries"):
        ask(line.cursor())
    with step("prepared"):
        for key in PREPARED_KEYS:
            line.execute(another(SELECT), (key,), prepare=True).fetchall()
    with step("transaction"), line.transaction():
        line.execute(UPDATE)
    line.close()


def psycopg_pipeline(library: Any) -> None:
    with step("connect"):
        line = library.connect(**LOGIN_BY_DBNAME, autocommit=True)
    with step("queries"), line.pipeline():
        for cursor in [line.execute(SELECT, (key,)) for key in KEYS]:
            cursor.fetchall()
    with step("transaction"), line.pipeline(), line.transaction():
        line.execute(UPDATE)
    line.close()


def psycopg_cursor(library: Any) -> None:
    with step("connect"):
        line = library.connect(**LOGIN_BY_DBNAME)
    with step("rows"):
        with line.cursor("rows") as cursor:
            cursor.itersize = BATCH
            assert len(list(cursor.execute(ROWS))) == 2000
        line.commit()
    line.close()


async def asyncpg(library: Any) -> None:
    with step("connect"):
        line = await library.connect(**LOGIN_BY_DATABASE, ssl=False)
    with step("queries"):
        for key in KEYS:
            await line.fetch(DOLLAR, key)
    with step("prepared"):
        statement = await line.prepare(another(DOLLAR))
        for key in PREPARED_KEYS:
            await statement.fetch(key)
    with step("transaction"):
        async with line.transaction():
            await line.execute(UPDATE)
    await line.close()


async def asyncpg_cursor(library: Any) -> None:
    with step("connect"):
        line = await library.connect(**LOGIN_BY_DATABASE, ssl=False)
    with step("rows"):
        async with line.transaction():
            assert len([row async for row in line.cursor(ROWS, prefetch=BATCH)]) == 2000
    await line.close()


PROGRAMS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "pymysql": ("PyMySQL", "pymysql", explicit),
    "mysqlclient": ("mysqlclient", "MySQLdb", explicit),
    "mysql-connector": ("mysql-connector-python", "mysql.connector", mysql_connector),
    "mariadb": ("mariadb", "mariadb", mariadb),
    "sqlalchemy-pymysql": ("SQLAlchemy", "sqlalchemy", partial(sqlalchemy, "mysql+pymysql")),
    "sqlalchemy-psycopg": ("SQLAlchemy", "sqlalchemy", partial(sqlalchemy, "postgresql+psycopg")),
    "psycopg": ("psycopg", "psycopg", psycopg),
    "psycopg-pipeline": ("psycopg", "psycopg", psycopg_pipeline),
    "psycopg-cursor": ("psycopg", "psycopg", psycopg_cursor),
    "psycopg2": ("psycopg2-binary", "psycopg2", partial(implicit, **LOGIN_BY_DBNAME)),
    "asyncpg": ("asyncpg", "asyncpg", lambda library: asyncio.run(asyncpg(library))),
    "asyncpg-cursor": ("asyncpg", "asyncpg", lambda library: asyncio.run(asyncpg_cursor(library))),
    "pg8000": ("pg8000", "pg8000.dbapi", partial(implicit, **LOGIN_BY_DATABASE, ssl_context=False)),
}
"""By name: package, module, and the function that uses it."""

if __name__ == "__main__":
    package, module, program = PROGRAMS[sys.argv[1]]
    print(version(package), flush=True)
    program(import_module(module))
