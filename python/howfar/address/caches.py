"""Parses URLs of Redis, Valkey and Memcached as redis-cli and redis-py do. No I/O."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from howfar.address.mysql import parse_host, query_pairs, split_authority, split_host
from howfar.address.parameters import (
    EMPTY_ADDRESS,
    ENCRYPTED,
    HAS_OWN_TIMEOUTS,
    PLAIN,
    VERIFIED,
    VERIFIED_CHAIN,
    Ignored,
    Parameter,
    Refused,
    choice,
    fold_name,
    ignored,
    parse_port,
    parse_switch,
    parsed_field,
    password_field,
    read_parameters,
    refused,
    text_field,
)
from howfar.address.server_address import ParsedTarget, ServerAddress
from howfar.errors import UsageError
from howfar.services import ServiceName

REDIS_SCHEMES: Final = ("redis", "rediss", "valkey", "valkeys", "redis+unix", "redis-socket", "valkey+unix", "unix")
MEMCACHED_SCHEMES: Final = ("memcached", "memcacheds")
TLS_SCHEMES: Final = ("rediss", "valkeys", "memcacheds")
PORTS: Final = {"redis": 6379, "memcached": 11211}
_EXAMPLES: Final = {
    "redis": "Examples: redis://:PASSWORD@host:6379/0, rediss://host:6379 or redis:///run/redis/redis-server.sock.",
    "memcached": "Examples: memcached://host:11211 or memcached:///run/memcached/memcached.sock.",
}


def _parse_database_number(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 6):
        raise ValueError("a Redis database is a number of at most five digits")
    return int(value)


_VERIFICATION: Final = choice(
    none=ENCRYPTED, optional=ENCRYPTED, required=VERIFIED_CHAIN, certnone=ENCRYPTED, certrequired=VERIFIED_CHAIN
)  # fmt: skip
_REDIS_PARAMETERS: Final[dict[str, Parameter]] = {
    "host": parsed_field("host", parse_host),
    "port": parsed_field("port", parse_port),
    "user": text_field("user"),
    "username": text_field("user"),
    "password": password_field(),
    "db": parsed_field("database_number", _parse_database_number),
    "database": parsed_field("database_number", _parse_database_number),
    "ssl": choice(true=ENCRYPTED, false=PLAIN),
    "ssl_cert_reqs": _VERIFICATION,
    "ssl_check_hostname": choice(true=VERIFIED, false=EMPTY_ADDRESS),
    "ssl_ca_certs": text_field("ssl_ca"),
    "ssl_certfile": text_field("ssl_cert"),
    "ssl_keyfile": text_field("ssl_key"),
    "allow-cleartext-password": parsed_field("allow_cleartext_password", parse_switch),
    "protocol": Ignored(),
    **ignored("socket_timeout", "socket_connect_timeout", "socket_keepalive", "timeout", "health_check_interval",
              "retry_on_timeout", "socket_read_size", why=HAS_OWN_TIMEOUTS),
    **ignored("max_connections", "client_name", "clientName", "decode_responses", "encoding", "encoding_errors",
              "family", "pool_size", "virtual_host", "ssl_min_version"),
    **refused("ssl_ca_path", "ssl_ca_data", why="only the file of ssl_ca_certs is read", instead="Write ssl_ca_certs=FILE."),
    "ssl_password": Refused("keys with a passphrase are not read", "Name a key without one."),
    "sentinelMasterId": Refused("sentinels are not queried", "Name the server itself."),
}  # fmt: skip
_MEMCACHED_PARAMETERS: Final[dict[str, Parameter]] = {
    "host": parsed_field("host", parse_host),
    "port": parsed_field("port", parse_port),
    **ignored("timeout", "connect_timeout", why=HAS_OWN_TIMEOUTS),
    **ignored("weight", "max_pool_size", "ignore_exc", "no_delay"),
}


def parse_url(scheme: str, url: str) -> ParsedTarget:
    """Parse `redis://user:password@host:port/number`, `redis:///path/of.sock`, or `memcached://host:port`. Raises UsageError."""
    service: ServiceName = "memcached" if scheme in MEMCACHED_SCHEMES else "redis"
    form = "Memcached URL" if service == "memcached" else "Redis URL"
    rest = url.partition("://")[2]
    account, host_port, path, query = split_authority(form, rest)
    if service == "memcached" and account:
        raise UsageError("Memcached's logins (SASL) are not supported", "Leave out what stands before @.")
    notes: list[str] = []
    if "user" in account and "password" not in account:
        account = {"password": account["user"]}
        notes.append("the text before @ is the password, as in redis-cli; for a user without a password write USER:@")
    host, port = split_host(form, host_port, PORTS[service])
    parameters = [*account.items(), ("host", host or ""), ("port", str(port or ""))]
    parsed = read_parameters(
        form,
        [*parameters, *query_pairs(query)],
        _REDIS_PARAMETERS if service == "redis" else _MEMCACHED_PARAMETERS,
        fold_name,
        len(parameters),
    )
    address = parsed.address.updated(_read_path(service, form, unquote(path), host is None))
    if scheme in TLS_SCHEMES:
        address = _require_tls(scheme, form, address)
    if address.host is None and address.socket is None:
        address = replace(address, host="localhost")
        notes.append("no host was given, which means TCP to localhost")
    return replace(parsed, address=replace(address, protocol=service), notes=(*notes, *parsed.notes))


def _read_path(service: ServiceName, form: str, path: str, may_be_socket: bool) -> ServerAddress:
    """Parse the path of a URL: a socket, the number of a Redis database, or nothing. Raises UsageError."""
    name = path.strip("/")
    if not name:
        return EMPTY_ADDRESS
    if service == "redis" and re.fullmatch(r"\d{1,5}", name):
        return ServerAddress(database_number=int(name))
    if may_be_socket:
        return ServerAddress(socket=path)
    raise UsageError(f"the path of the {form} is not a database, which has a number", _EXAMPLES[service])


def _require_tls(scheme: str, form: str, address: ServerAddress) -> ServerAddress:
    if address.socket is not None:
        raise UsageError(f"a {scheme}:// URL names a socket, which is never encrypted", f"Use {scheme[:-1]}://.")
    if address.ssl_mode == "DISABLED":
        raise UsageError(f"ssl in the {form} contradicts {scheme}://", f"Use {scheme[:-1]}://.")
    return replace(address, ssl_mode=address.ssl_mode or ("REQUIRED" if address.ssl_ca is None else "VERIFY_CA"))
