"""The lines that make clients of a server on the same machine use its socket, by kind of server; and what cuts round trips there."""

from __future__ import annotations

_SQL = (
    "# option file of MySQL clients; the server knows",
    "# its socket: SELECT @@socket",
    "[client]",
    "socket = /run/mysqld/mysqld.sock",
    "# PHP, PDO",
    "mysql:unix_socket=/run/mysqld/mysqld.sock;dbname=shop",
)
_REDIS = (
    "# redis.conf; clients must be of its group",
    "unixsocket /run/redis/redis-server.sock",
    "unixsocketperm 770",
    "# PHP, phpredis",
    "$redis->pconnect('/run/redis/redis-server.sock');",
)
_MEMCACHED = (
    "# memcached.conf; -s turns its port off",
    "-s /run/memcached/memcached.sock",
    "-a 0770",
    "# PHP",
    "$memcached->addServer('/run/memcached/memcached.sock', 0);",
)
_LINES = {"redis": _REDIS, "valkey": _REDIS, "memcached": _MEMCACHED}
_FEWER = {
    "redis": "MGET for many GET, pipelines",
    "valkey": "MGET for many GET, pipelines",
    "memcached": "one get of many keys",
}


def socket_lines(server_kind: str) -> tuple[str, ...]:
    return _LINES.get(server_kind, _SQL)


def socket_action(server_kind: str) -> str:
    """Clients of MySQL take `localhost` for the socket; those of stores want its path."""
    how = "give it as the host" if server_kind in _LINES else "write host=localhost, not 127.0.0.1"
    return f"Where application and server share a machine, connect through the socket: {how}."


def fewer_turns(server_kind: str) -> str:
    return _FEWER.get(server_kind, "one query with IN or JOIN for many, multi-row INSERT")
