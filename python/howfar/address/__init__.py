"""Parses server addresses in the forms that drivers and command-line clients use: URLs, DSNs, connection strings. No I/O.

`parse` returns only what the text states; `howfar.cli.target` adds environment, option files and defaults. Messages
quote a part of an address only if it cannot belong to a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, unquote

from howfar.address import caches, libpq, mysql
from howfar.address.option_files import Files
from howfar.address.option_files import parse as parse_option_file
from howfar.address.parameters import ESCAPING_ADVICE, parse_port
from howfar.address.server_address import (
    NO_FILE,
    SSL_MODES,
    SYSTEM_CA,
    Login,
    ParsedTarget,
    Secret,
    ServerAddress,
    SslMode,
)
from howfar.errors import UsageError
from howfar.services import SERVICES, ServiceName

MAX_LENGTH: Final = 16_384
"""Maximum length of a target, in characters."""
ADVICE: Final = (
    "Use, for example, mysql://USER@HOST:3306/DATABASE, postgresql://USER@HOST/DATABASE, redis://HOST:6379, "
    "memcached://HOST:11211, HOST:PORT, or the path of a socket. docs/addresses.md has all forms."
)
_UNSUPPORTED_SCHEMES: Final = {
    "sqlserver": "SQL Server", "mssql": "SQL Server", "oracle": "Oracle", "sqlite": "SQLite", "mongodb": "MongoDB",
    "mongodb+srv": "MongoDB", "clickhouse": "ClickHouse", "cassandra": "Cassandra", "http": "HTTP", "https": "HTTP",
    "redis-sentinel": "Redis Sentinel", "mysqlx": "MySQL's X protocol", "mysql+srv": "MySQL's DNS SRV",
}  # fmt: skip
"""URL schemes of servers that are not supported."""


def looks_like_target(word: str) -> bool:
    """Whether a word on a command line can name a server. A word without `.`, `:`, `/`, `@` or `=` cannot, except `localhost`."""
    return word == "localhost" or (not word.startswith("-") and any(mark in word for mark in ".:/@="))


def looks_like_url(text: str) -> bool:
    return "://" in text


def parse(text: str) -> ParsedTarget:
    """Parse a server's address in any form. Raises UsageError; its message never quotes what may be a secret."""
    if len(text) > MAX_LENGTH or "\0" in text:
        raise UsageError(f"the target is longer than {MAX_LENGTH} characters or contains a NUL character", ADVICE)
    text = text.strip()
    if text.startswith("-"):
        raise UsageError("a target is expected here, not an option", ADVICE)
    scheme, colon, rest = text.partition(":")
    scheme = scheme.lower()
    if colon and rest.startswith("//") and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        return _parse_url(scheme, text)
    if scheme == "jdbc":
        return _parse_jdbc(rest)
    if colon and (parse_pdo_dsn := _PDO_PARSERS.get(scheme)) is not None and "=" in rest:
        return parse_pdo_dsn(dict(_split_pairs("PDO DSN", rest)))
    if re.match(r"[A-Za-z_ ]+=", text):
        return _parse_assignments(text)
    if mysql.GO_DSN_PATTERN.search(text) and not text.startswith(("/", ".")):
        return mysql.parse_go_dsn(text)
    return _parse_location(text)


def _parse_url(scheme: str, url: str) -> ParsedTarget:
    dialect, plus, driver = scheme.partition("+")
    if scheme in libpq.SCHEMES:
        return libpq.parse_uri(url)
    if scheme in mysql.SCHEMES:
        return mysql.parse_url(url)
    if scheme in (*caches.REDIS_SCHEMES, *caches.MEMCACHED_SCHEMES):
        return caches.parse_url(scheme, url)
    if plus and scheme not in _UNSUPPORTED_SCHEMES and dialect in (*libpq.SCHEMES, *mysql.SCHEMES):
        return _parse_sqlalchemy(dialect, driver, url)
    product = _UNSUPPORTED_SCHEMES.get(scheme) or _UNSUPPORTED_SCHEMES.get(dialect)
    if product is not None:
        raise UsageError(f"{product} is not supported", "MySQL, MariaDB, PostgreSQL, Redis, Valkey and Memcached are.")
    raise UsageError("the URL's scheme, the part before ://, is not that of a supported server", ADVICE)


_SQLALCHEMY: Final = re.compile(
    r"[^:]+://(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:(?:\[(?P<v6>[^/\?]+)\]|(?P<v4>[^/:\?]+))?(?::(?P<port>[^/\?]*))?)?(?:/(?P<database>[^\?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
"""The pattern by which SQLAlchemy itself parses URLs."""


def _parse_sqlalchemy(dialect: str, driver: str, url: str) -> ParsedTarget:
    form = "SQLAlchemy URL"
    match = _SQLALCHEMY.fullmatch(url)
    if match is None or "@" in f"{match['v4']}{match['v6']}{match['port']}{match['database']}":
        raise UsageError(f"the {form} is malformed", ESCAPING_ADVICE)
    if driver == "pyodbc":
        raise UsageError("ODBC data sources (driver pyodbc) are not supported", ADVICE)
    parts = {
        "user": unquote(match["user"] or ""),
        "password": unquote(match["password"] or ""),
        "host": match["v6"] or match["v4"] or "",
        "port": match["port"] or "",
        "database": match["database"] or "",
    }
    query = parse_qsl(match["query"] or "", keep_blank_values=True)
    if dialect in mysql.SCHEMES:
        return mysql.parse_sqlalchemy(form, driver, parts, query)
    return libpq.parse_sqlalchemy(form, parts, query)


def _parse_jdbc(rest: str) -> ParsedTarget:
    product, _, rest = rest.partition(":")
    path, _, query = rest.partition("?")
    if product in ("mysql", "mariadb"):
        return mysql.parse_jdbc(product, rest)
    if product in libpq.SCHEMES:
        if "@" in path:
            raise UsageError("PostgreSQL's JDBC URLs cannot have a user before @", "Write ?user=USER&password=….")
        return libpq.parse_jdbc(path, mysql.query_pairs(query, plus_is_space=True))
    raise UsageError("the JDBC URL is for a server that is not supported", ADVICE)


_PDO_PARSERS: Final[dict[str, Callable[[dict[str, str]], ParsedTarget]]] = {
    "mysql": mysql.parse_pdo_dsn,
    "pgsql": libpq.parse_pdo_dsn,
}
_FIRST_PAIR: Final = re.compile(r"\s*([^=;]*?)\s*=\s*('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s;]*)\s*(;|$)?", re.DOTALL)


def _parse_assignments(text: str) -> ParsedTarget:
    """Parse libpq's pairs of keyword and value, or an ADO.NET connection string with semicolons. Raises UsageError."""
    first = _FIRST_PAIR.match(text)
    if first is None:
        raise UsageError("the target is not understood", ADVICE)
    if first[3] != ";" and first[1] in libpq.PARAMETERS:
        return libpq.parse_keywords(text)
    pairs = _split_pairs("connection string", text)
    names = {name.lower().replace(" ", "") for name, _ in pairs}
    libpq_names = {name.replace(" ", "") for name in libpq.ADO_PARAMETERS}
    mysql_names = {name.replace(" ", "") for name in mysql.ADO_PARAMETERS}
    if not names & (libpq_names | mysql_names):
        raise UsageError("the target is not understood", ADVICE)
    if len(names & libpq_names) > len(names & mysql_names) or ("host" in names and names <= libpq_names):
        return libpq.parse_ado_net(pairs)
    return mysql.parse_ado_net(pairs)


def _split_pairs(form: str, text: str) -> list[tuple[str, str]]:
    """Split pairs NAME=VALUE at semicolons. A value may be quoted; quotes in it are doubled. Raises UsageError."""
    pairs: list[tuple[str, str]] = []
    pattern = re.compile(r"\s*([^=;]+?)\s*=\s*(\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'|[^;]*?)\s*(?:;|$)", re.DOTALL)
    position = 0
    while text[position:].strip("; \t\n"):
        match = pattern.match(text, position)
        if match is None:
            raise UsageError(
                f"part {len(pairs) + 1} of the {form} is not NAME=VALUE", "Quote values that contain ; or quotes."
            )
        value = match[2]
        if value[:1] in ("'", '"') and len(value) > 1:
            value = value[1:-1].replace(value[0] * 2, value[0])
        pairs.append((match[1], value))
        position = match.end()
    return pairs


_HOST_PORT: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([A-Za-z0-9_](?:[\w.-]*)))(?::(\d+))?", re.ASCII)


def _parse_location(text: str) -> ParsedTarget:
    """Parse the path of a socket, HOST:PORT, or a host alone. Raises UsageError."""
    if "@" in text:
        raise UsageError(
            "the target has a user name, but does not say what kind of server it is",
            "Begin it with mysql://, postgresql:// or redis://.",
        )
    if "/" in text and ":" not in text:
        return ParsedTarget(ServerAddress(protocol=_protocol_of_socket(text), socket=text), None, "socket path")
    match = _HOST_PORT.fullmatch(text)
    if match is not None and (match[3] or looks_like_target(text)):
        try:
            port = parse_port(match[3]) if match[3] else None
        except ValueError as error:
            raise UsageError(f"the target is not HOST:PORT: {error}", ADVICE) from None
        return ParsedTarget(ServerAddress(host=match[1] or match[2], port=port), None, "HOST:PORT" if port else "host")
    if re.fullmatch(r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?", text) and text.count(":") > 1:
        return ParsedTarget(ServerAddress(host=text), None, "host")
    if re.fullmatch(r"[\w-]+", text):
        raise UsageError("a single word is not taken as a host name", f"Write HOST:PORT, or localhost. {ADVICE}")
    raise UsageError("the target is not understood", ADVICE)


def protocol_by_port(port: int | None) -> ServiceName | None:
    """Return the kind of server whose default port this is, or None."""
    return next((service.name for service in SERVICES.values() if service.port == port), None)


def _protocol_of_socket(path: str) -> ServiceName | None:
    """Guess the kind of server from the name of its socket; None if it is unknown."""
    name = path.lower()
    for service in SERVICES.values():
        if any(part.lower() in name for part in service.socket_names):
            return service.name
    return None


__all__ = [
    "NO_FILE",
    "SSL_MODES",
    "SYSTEM_CA",
    "Files",
    "Login",
    "ParsedTarget",
    "Secret",
    "ServerAddress",
    "SslMode",
    "looks_like_target",
    "looks_like_url",
    "parse",
    "parse_option_file",
    "protocol_by_port",
]
