"""The kinds of server that there are, and which program a name means: one line a kind."""

from __future__ import annotations

from pathlib import Path

from howfar.errors import ServerMissing
from howfar.lab.servers import mariadb, memcached, mysql, redis
from howfar.lab.servers.dialect import Dialect
from howfar.lab.servers.key_value import StoreDialect
from howfar.lab.servers.private import RECIPES, installs, named
from howfar.lab.servers.program import PLACES, Program, find_program, identify

DIALECTS: dict[str, Dialect] = {"mariadb": mariadb.MariadbDialect(), "mysql": mysql.MysqlDialect()}
STORES: dict[str, StoreDialect] = {
    "redis": redis.RedisDialect("redis"),
    "valkey": redis.RedisDialect("valkey"),
    "memcached": memcached.MemcachedDialect(),
}
KINDS = (*DIALECTS, *STORES)
_NAMES = {
    "mariadb": mariadb.NAMES,
    "mysql": mysql.NAMES,
    "redis": redis.REDIS_NAMES,
    "valkey": redis.VALKEY_NAMES,
    "memcached": memcached.NAMES,
}
_REMEDIES = {
    "mariadb": f"Install {mariadb.PACKAGE}, get a private one (`howfar servers get mariadb-11`), or name one with --server PATH.",
    "mysql": "Get a private one (`howfar servers get mysql`), or name one with --server PATH.",
    "redis": f"Install {redis.PACKAGE} (./setup --page does it), or name one with --server PATH.",
    "valkey": "Install Valkey where your distribution has it, or name one with --server PATH.",
    "memcached": f"Install {memcached.PACKAGE} (./setup --page does it), or name one with --server PATH.",
}


def find_server(server: str) -> Program:
    """A kind: the machine's own, else the newest private install. Raises ServerMissing, ServerCrashed."""
    if "/" in server:
        return identify(Path(server))
    if server in KINDS and (own := find_program(_NAMES[server], server)) is not None:
        return identify(own)
    if (private := named(server, installs())) is not None:
        return identify(private.program)
    if server in KINDS:
        raise ServerMissing(
            f"no {server} server was found (looked for {' and '.join(_NAMES[server])} in PATH and {', '.join(PLACES)}, "
            "and among the private installs)",
            _REMEDIES[server],
        )
    if server in RECIPES:
        raise ServerMissing(f"the private install {server} is not here", f"Get it: howfar servers get {server}")
    known = [*KINDS, *(install.name for install in installs())]
    raise ServerMissing(
        f"no server is called {server!r}",
        f"Known: {', '.join(known)}; or give the path of a server program. `howfar servers list` shows what is here.",
    )
