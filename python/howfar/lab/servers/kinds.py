"""The known kinds of server, one entry each; and finding a server's program by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from howfar.contract.messages import ServiceName
from howfar.errors import ServerMissing, UsageError, did_you_mean
from howfar.lab.servers import Store, Tables, mariadb, memcached, mysql, redis
from howfar.lab.servers.dialect import Dialect
from howfar.lab.servers.key_value import KeyValueStore, StoreDialect
from howfar.lab.servers.private import RECIPES, find_install, list_installs
from howfar.lab.servers.program import EXTRA_DIRECTORIES, Program, find_program, identify
from howfar.lab.servers.sql_store import SqlStore

Speaks = Literal["mysql", "postgresql", "keys"]


@dataclass(frozen=True)
class ServerKind:
    """One kind of server."""

    names: tuple[str, ...]
    """Names of its program."""
    remedy: str
    """Advice if the program is missing."""
    service: ServiceName
    """The service that it provides to an application, named after the protocol."""
    port: int
    """The usual port."""
    speaks: Speaks
    store: Callable[[Program, Tables], Store]
    resumes_tls: bool = True
    """Whether a later connection can resume the TLS session of an earlier one."""
    tls_on_socket: bool = True
    """Whether TLS is also possible over its Unix socket."""
    long_text: str = "MEDIUMTEXT"
    """SQL type of a column for a megabyte of text."""


DIALECTS: dict[str, Dialect] = {"mariadb": mariadb.MariadbDialect(), "mysql": mysql.MysqlDialect()}


def _mysql_kind(kind: str, names: tuple[str, ...], remedy: str) -> ServerKind:
    dialect = DIALECTS[kind]
    return ServerKind(names, remedy, "mysql", 3306, "mysql", lambda program, tables: SqlStore(program, dialect, tables))


def _key_value_kind(dialect: StoreDialect, names: tuple[str, ...], remedy: str, service: ServiceName) -> ServerKind:
    return ServerKind(names, remedy, service, dialect.port, "keys", lambda program, _: KeyValueStore(program, dialect))


def _postgresql_store(program: Program, tables: Tables) -> Store:
    # Imported here, because other servers do not need PostgreSQL's client library.
    from howfar.lab.servers.postgresql import PostgresStore

    return PostgresStore(program, tables)


_STORE_REMEDY = "Install {} (`howfar setup --page` does it), or name one with --server PATH."
KINDS: dict[str, ServerKind] = {
    "mariadb": _mysql_kind(
        "mariadb",
        mariadb.NAMES,
        f"Install {mariadb.PACKAGE} (`howfar setup` does it), get a private one (`howfar servers get mariadb-11`), or name one with "
        "--server PATH.",
    ),
    "mysql": _mysql_kind(
        "mysql", mysql.NAMES, "Get a private one (`howfar servers get mysql`), or name one with --server PATH."
    ),
    "postgresql": ServerKind(
        ("postgres",),
        "Install postgresql (`howfar setup --postgresql` does it), or name one with --server PATH.",
        "postgresql",
        5432,
        "postgresql",
        _postgresql_store,
        resumes_tls=False,
        tls_on_socket=False,
        long_text="TEXT",
    ),
    "redis": _key_value_kind(
        redis.RedisDialect("redis"), redis.REDIS_NAMES, _STORE_REMEDY.format(redis.PACKAGE), "redis"
    ),
    "valkey": _key_value_kind(
        redis.RedisDialect("valkey"),
        redis.VALKEY_NAMES,
        "Install Valkey where your distribution has it, or name one with --server PATH.",
        "redis",
    ),
    "memcached": _key_value_kind(
        memcached.MemcachedDialect(), memcached.NAMES, _STORE_REMEDY.format(memcached.PACKAGE), "memcached"
    ),
}
STORES = tuple(name for name, kind in KINDS.items() if kind.speaks == "keys")


def long_text(server: str) -> str:
    """SQL type of a column for long text. `server`: as for `find_server`."""
    return KINDS[find_server(server).kind].long_text


def find_server(server: str) -> Program:
    """The program of a server, given its kind (the machine's own program, else the newest private install), a private install's name,
    or a path. Raises ServerMissing, ServerCrashed, UsageError."""
    check_no_address(server)
    if "/" in server:
        return identify(Path(server))
    kind = KINDS.get(server)
    if kind is not None and (own_program := find_program(kind.names, server)) is not None:
        return identify(own_program)
    if (private_install := find_install(server, list_installs())) is not None:
        return identify(private_install.program)
    if kind is not None:
        raise ServerMissing(
            f"no {server} server was found (looked for {' and '.join(kind.names)} in PATH and {', '.join(EXTRA_DIRECTORIES)}, "
            "and among the private installations)",
            kind.remedy,
        )
    check_name(server)
    raise ServerMissing(
        f"there is no private installation {server} here", f"Install it with `howfar servers get {server}`."
    )


def check_no_address(server: str) -> None:
    """Check that `server` is not an address, which might contain a password. Raises UsageError."""
    if server.startswith("-") or any(mark in server for mark in ("://", "@", "=")):
        raise UsageError(
            "the laboratory starts a server of its own, and --server names the program, not the address of a server",
            "For a server that runs already, use `howfar TARGET` or `howfar load`; `howfar servers` lists programs.",
        )


def check_name(server: str) -> None:
    """Check that `server` is a path, or the name of a server that exists here or can be installed. Raises ServerMissing,
    UsageError."""
    check_no_address(server)
    if "/" in server or server in KINDS or server in RECIPES or find_install(server, list_installs()) is not None:
        return
    known = [*KINDS, *(install.name for install in list_installs())]
    raise ServerMissing(
        f"no server is called {server!r}",
        f"{did_you_mean(server, (*known, *RECIPES))}Known servers: {', '.join(known)}; or give the path of a server program."
        " `howfar servers list` shows what is here.",
    )
