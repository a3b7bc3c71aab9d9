"""Server addresses: one parser for all the notations of drivers, consoles and clients. Pure.

`parse` returns only what the text states; `howfar.cli.target` adds environment, option files and defaults. No message repeats
what may be part of a password: parts of a text are quoted only where their meaning is certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, unquote

from howfar.address import caches, libpq, mysql
from howfar.address.option_files import Files
from howfar.address.option_files import parse as parse_option_file
from howfar.address.parameters import IN_PASSWORD, port_of
from howfar.address.server_address import (
    NO_FILE,
    SSL_MODES,
    SYSTEM_CA,
    Given,
    Login,
    Secret,
    ServerAddress,
    SslMode,
)
from howfar.errors import UsageError
from howfar.services import SERVICES, ServiceName

LONGEST: Final = 16_384
"""Maximum length of a target, in characters."""
EXAMPLES: Final = (
    "Write for example mysql://USER@HOST:3306/DATABASE, postgresql://USER@HOST/DATABASE, redis://HOST:6379, "
    "memcached://HOST:11211, HOST:PORT, or the path of a socket. docs/addresses.md lists all forms."
)
_ELSEWHERE: Final = {
    "sqlserver": "SQL Server", "mssql": "SQL Server", "oracle": "Oracle", "sqlite": "SQLite", "mongodb": "MongoDB",
    "mongodb+srv": "MongoDB", "clickhouse": "ClickHouse", "cassandra": "Cassandra", "http": "HTTP", "https": "HTTP",
    "redis-sentinel": "Redis Sentinel", "mysqlx": "MySQL's X protocol", "mysql+srv": "MySQL's DNS SRV",
}  # fmt: skip
"""URL schemes of servers that are not supported."""


def looks_like_target(word: str) -> bool:
    """Whether a word on a command line can name a server. A bare word cannot, except `localhost`."""
    return word == "localhost" or (not word.startswith("-") and any(mark in word for mark in ".:/@="))


def looks_like_url(text: str) -> bool:
    return "://" in text


def parse(text: str) -> Given:
    """Parse a server's address in any notation. Raises UsageError, whose message repeats nothing that may be secret."""
    if len(text) > LONGEST or "\0" in text:
        raise UsageError(f"the target has more than {LONGEST} characters, or a NUL", EXAMPLES)
    text = text.strip()
    if text.startswith("-"):
        raise UsageError("an option stands where a target is expected", EXAMPLES)
    scheme, colon, rest = text.partition(":")
    scheme = scheme.lower()
    if colon and rest.startswith("//") and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        return _parse_url(scheme, text)
    if scheme == "jdbc":
        return _parse_jdbc(rest)
    if colon and (read := _PDO.get(scheme)) is not None and "=" in rest:
        return read(dict(_pairs_of("PDO DSN", rest)))
    if re.match(r"[A-Za-z_ ]+=", text):
        return _parse_pairs(text)
    if mysql.GO.search(text) and not text.startswith(("/", ".")):
        return mysql.parse_go(text)
    return _parse_place(text)


def _parse_url(scheme: str, url: str) -> Given:
    plain, plus, driver = scheme.partition("+")
    if scheme in libpq.SCHEMES:
        return libpq.parse_uri(url)
    if scheme in mysql.SCHEMES:
        return mysql.parse_url(url)
    if scheme in (*caches.REDIS, *caches.MEMCACHED):
        return caches.parse_url(scheme, url)
    if plus and scheme not in _ELSEWHERE and plain in (*libpq.SCHEMES, *mysql.SCHEMES):
        return _parse_sqlalchemy(plain, driver, url)
    what = _ELSEWHERE.get(scheme) or _ELSEWHERE.get(plain)
    if what is not None:
        raise UsageError(f"{what} is not measured", "MySQL, MariaDB, PostgreSQL, Redis, Valkey and Memcached are.")
    raise UsageError("what stands before :// is not the name of a server that is measured", EXAMPLES)


_SQLALCHEMY: Final = re.compile(
    r"[^:]+://(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:(?:\[(?P<v6>[^/\?]+)\]|(?P<v4>[^/:\?]+))?(?::(?P<port>[^/\?]*))?)?(?:/(?P<database>[^\?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
"""SQLAlchemy's own pattern of a URL."""


def _parse_sqlalchemy(product: str, driver: str, url: str) -> Given:
    form = "SQLAlchemy URL"
    found = _SQLALCHEMY.fullmatch(url)
    if found is None or "@" in f"{found['v4']}{found['v6']}{found['port']}{found['database']}":
        raise UsageError(f"the {form} cannot be read", IN_PASSWORD)
    if driver == "pyodbc":
        raise UsageError("ODBC's data sources are not read", EXAMPLES)
    parts = {
        "user": unquote(found["user"] or ""),
        "password": unquote(found["password"] or ""),
        "host": found["v6"] or found["v4"] or "",
        "port": found["port"] or "",
        "database": found["database"] or "",
    }
    query = parse_qsl(found["query"] or "", keep_blank_values=True)
    if product in mysql.SCHEMES:
        return mysql.parse_sqlalchemy(form, driver, parts, query)
    return libpq.parse_sqlalchemy(form, parts, query)


def _parse_jdbc(rest: str) -> Given:
    product, _, rest = rest.partition(":")
    path, _, query = rest.partition("?")
    if product in ("mysql", "mariadb"):
        return mysql.parse_jdbc(product, rest)
    if product in libpq.SCHEMES:
        if "@" in path:
            raise UsageError("the JDBC URL of this driver has no user before @", "Write ?user=USER&password=….")
        return libpq.parse_jdbc(path, mysql.query_pairs(query, plus_is_space=True))
    raise UsageError("the JDBC URL is for a server that is not measured", EXAMPLES)


_PDO: Final[dict[str, Callable[[dict[str, str]], Given]]] = {"mysql": mysql.parse_pdo, "pgsql": libpq.parse_pdo}
_FIRST_PAIR: Final = re.compile(r"\s*([^=;]*?)\s*=\s*('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s;]*)\s*(;|$)?", re.DOTALL)


def _parse_pairs(text: str) -> Given:
    """libpq's keywords, separated by spaces, or a connection string, separated by semicolons."""
    first = _FIRST_PAIR.match(text)
    if first is None:
        raise UsageError("the target is not understood", EXAMPLES)
    if first[3] != ";" and first[1] in libpq.TABLE:
        return libpq.parse_keywords(text)
    pairs = _pairs_of("connection string", text)
    names = {name.lower().replace(" ", "") for name, _ in pairs}
    of_libpq = {name.replace(" ", "") for name in libpq.ADO}
    of_mysql = {name.replace(" ", "") for name in mysql.ADO}
    if not names & (of_libpq | of_mysql):
        raise UsageError("the target is not understood", EXAMPLES)
    if len(names & of_libpq) > len(names & of_mysql) or ("host" in names and names <= of_libpq):
        return libpq.parse_ado(pairs)
    return mysql.parse_ado(pairs)


def _pairs_of(form: str, text: str) -> list[tuple[str, str]]:
    """Pairs separated by semicolons; a value may be quoted, with the quote doubled inside. Raises UsageError."""
    pairs: list[tuple[str, str]] = []
    pattern = re.compile(r"\s*([^=;]+?)\s*=\s*(\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'|[^;]*?)\s*(?:;|$)", re.DOTALL)
    at = 0
    while text[at:].strip("; \t\n"):
        found = pattern.match(text, at)
        if found is None:
            raise UsageError(
                f"part {len(pairs) + 1} of the {form} is not NAME=VALUE", "Quote a value that has ; or quotes in it."
            )
        value = found[2]
        if value[:1] in ("'", '"') and len(value) > 1:
            value = value[1:-1].replace(value[0] * 2, value[0])
        pairs.append((found[1], value))
        at = found.end()
    return pairs


_HOST_PORT: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([A-Za-z0-9_](?:[\w.-]*)))(?::(\d+))?", re.ASCII)


def _parse_place(text: str) -> Given:
    """The path of a socket, HOST:PORT, or a host alone."""
    if "@" in text:
        raise UsageError(
            "the target is not understood: it has an account, and does not say which server it is",
            "Begin it with mysql://, postgresql:// or redis://.",
        )
    if "/" in text and ":" not in text:
        return Given(ServerAddress(protocol=_protocol_of_socket(text), socket=text), None, "socket path")
    found = _HOST_PORT.fullmatch(text)
    if found is not None and (found[3] or looks_like_target(text)):
        try:
            port = port_of(found[3]) if found[3] else None
        except ValueError as error:
            raise UsageError(f"the target is not HOST:PORT: {error}", EXAMPLES) from None
        return Given(ServerAddress(host=found[1] or found[2], port=port), None, "HOST:PORT" if port else "host")
    if re.fullmatch(r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?", text) and text.count(":") > 1:
        return Given(ServerAddress(host=text), None, "host")
    if re.fullmatch(r"[\w-]+", text):
        raise UsageError("a single word is not the name of a host", f"Write HOST:PORT, or localhost. {EXAMPLES}")
    raise UsageError("the target is not understood", EXAMPLES)


def protocol_by_port(port: int | None) -> ServiceName | None:
    """The kind of server that has this default port."""
    return next((service.name for service in SERVICES.values() if service.port == port), None)


def _protocol_of_socket(path: str) -> ServiceName | None:
    """The kind of server that the name of a socket suggests."""
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
    "Given",
    "Login",
    "Secret",
    "ServerAddress",
    "SslMode",
    "looks_like_target",
    "looks_like_url",
    "parse",
    "parse_option_file",
    "protocol_by_port",
]
