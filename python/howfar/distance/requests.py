"""The requests to each kind of server, verbatim: small, read-only, and documented in docs/distance.md.

A request is a tuple of words, as in `PingRequest`: one for SQL, several for a Redis command, none for the protocol's own ping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from howfar.address.server_address import format_host_port
from howfar.doctor.kind import product_name
from howfar.services import ServiceName

Rows = Sequence[Sequence[str | None]]
BULK_BYTES = 8 * 1024 * 1024
_MISSING_KEY = "howfar:no-such-key"


@dataclass(frozen=True)
class Identity:
    """Facts that a server reports about itself and this connection; None for facts that it does not report."""

    product: str | None = None
    connection_id: int | None = None
    """The server's ID of the connection. If it differs from the ID at login, a pooler or proxy is in between."""
    client_address: str | None = None
    """The connection's origin as the server sees it, `host:port`."""
    is_by_socket: bool = False
    """Whether the server sees the connection come over its Unix socket."""
    server_address: str | None = None
    socket: str | None = None
    """The path of the server's Unix socket."""
    proxy_name: str | None = None
    """Name of a pooler or proxy that identifies itself."""


@dataclass(frozen=True)
class Requests:
    """The requests for one kind of server."""

    query: tuple[str, ...]
    """A request that only the server itself can answer."""
    query_name: str
    ping_name: str
    identity: tuple[tuple[str, ...], ...]
    """Requests that identify the server; each is sent once, and not timed."""
    bulk: tuple[str, ...] | None
    """A request with an answer of 8 MiB; None if data would have to be stored first."""


_MYSQL_IDENTITY = (
    "SELECT CONNECTION_ID(), VERSION(), @@version_comment, @@socket, "
    "(SELECT HOST FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID())"
)
_POSTGRESQL_IDENTITY = (
    "SELECT pg_backend_pid(), current_setting('server_version'), host(inet_client_addr()), inet_client_port(), "
    "host(inet_server_addr()), inet_server_port()"
)
MYSQL = Requests(
    query=("SELECT 1",),
    query_name="SELECT 1",
    ping_name="COM_PING",
    identity=((_MYSQL_IDENTITY,),),
    bulk=(f"SELECT REPEAT('x', {BULK_BYTES})",),
)
POSTGRESQL = Requests(
    query=("SELECT 1",),
    query_name="SELECT 1",
    ping_name="Sync",
    identity=((_POSTGRESQL_IDENTITY,),),
    bulk=(f"SELECT repeat('x', {BULK_BYTES})",),
)
REDIS = Requests(
    query=("GET", _MISSING_KEY),
    query_name="GET (no such key)",
    ping_name="PING",
    identity=(("INFO", "server"), ("CLIENT", "INFO")),
    bulk=("EVAL", f"return string.rep('x', {BULK_BYTES})", "0"),
)
MEMCACHED = Requests(
    query=("get", _MISSING_KEY),
    query_name="get (no such key)",
    ping_name="version",
    identity=(("version",),),
    bulk=None,
)
REQUESTS: Mapping[ServiceName, Requests] = {
    "mysql": MYSQL,
    "postgresql": POSTGRESQL,
    "redis": REDIS,
    "memcached": MEMCACHED,
}

_PROXY_NAMES = (
    ("proxysql", "ProxySQL"),
    ("maxscale", "MaxScale"),
    ("vitess", "Vitess"),
    ("pgbouncer", "PgBouncer"),
)


def find_proxy_name(text: str) -> str | None:
    """Find the name of a proxy in the version that it reports; None if there is none."""
    return next((name for word, name in _PROXY_NAMES if word in text.lower()), None)


def identify(service: ServiceName, answers: Sequence[Rows]) -> Identity:
    """Read the identity from the answers to `Requests.identity`, ignoring answers without rows. No answer raises an exception."""
    read_identity = {
        "mysql": _read_mysql,
        "postgresql": _read_postgresql,
        "redis": _read_redis,
        "memcached": _read_memcached,
    }[service]
    return read_identity(answers)


def _first_row(answers: Sequence[Rows], count: int) -> list[str | None] | None:
    if not answers or not answers[0] or len(answers[0][0]) != count:
        return None
    return list(answers[0][0])


def _parse_number(text: str | None) -> int | None:
    """Parse a number from a server; None if it sent anything else."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,20}", text) else None


def _format_endpoint(host: str | None, port: str | None) -> str | None:
    return format_host_port(host, port) if host and port else None


def _read_mysql(answers: Sequence[Rows]) -> Identity:
    cells = _first_row(answers, 5)
    if cells is None:
        return Identity()
    connection_id, version, comment, path, host = cells
    return Identity(
        product=product_name("mysql", version, comment or "") if version else None,
        connection_id=_parse_number(connection_id),
        client_address=host if host and re.fullmatch(r".+:[0-9]+", host) else None,
        is_by_socket=host == "localhost",
        socket=path or None,
        proxy_name=find_proxy_name(f"{version} {comment}"),
    )


def _read_postgresql(answers: Sequence[Rows]) -> Identity:
    cells = _first_row(answers, 6)
    if cells is None:
        return Identity()
    process, version, client, client_port, server, server_port = cells
    return Identity(
        product=product_name("postgresql", version) if version else None,
        connection_id=_parse_number(process),
        client_address=_format_endpoint(client, client_port),
        is_by_socket=process is not None and client is None,
        server_address=_format_endpoint(server, server_port),
        proxy_name=find_proxy_name(version or ""),
    )


def _read_redis(answers: Sequence[Rows]) -> Identity:
    info_text, client_text = ("\n".join(row[0] or "" for row in rows if row) for rows in (*answers, (), ())[:2])
    identity = Identity()
    for field, brand in (("valkey_version", "Valkey"), ("redis_version", "Redis")):
        version = re.search(rf"^{field}:(\S+)", info_text, re.MULTILINE)
        if version and identity.product is None:
            identity = replace(identity, product=f"{brand} {version.group(1)}")
    fields = dict(word.partition("=")[::2] for word in client_text.split())
    address = fields.get("addr", "")
    is_by_socket = address.endswith(":0")  # Redis gives the socket's path, and 0 for the port
    return replace(
        identity,
        connection_id=_parse_number(fields.get("id")),
        client_address=address if re.fullmatch(r".+:[1-9][0-9]*", address) else None,
        is_by_socket=is_by_socket,
    )


def _read_memcached(answers: Sequence[Rows]) -> Identity:
    text = answers[0][0][0] if answers and answers[0] and answers[0][0] else None
    name, _, version = (text or "").partition(" ")
    return Identity(product=f"Memcached {version}") if name == "VERSION" and version else Identity()
