"""DSNs of MySQL, MariaDB, PostgreSQL, Redis and Memcached, and logins. Pure.

Those of MySQL and PostgreSQL are the same as for `howfar load`.
A password in a DSN is refused, because `ps` shows it to every local user.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from howfar.doctor.findings import Kind
from howfar.errors import UsageError
from howfar.load import libpq
from howfar.load.target import SCHEMES as MYSQL_SCHEMES
from howfar.load.target import ServerAddress, must_have_no_password, parse_dsn, split_dsn
from howfar.services import SERVICES

SCHEMES = {
    **dict.fromkeys(MYSQL_SCHEMES, Kind.MYSQL),
    **dict.fromkeys(libpq.SCHEMES, Kind.POSTGRESQL),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), Kind.REDIS),
    "memcached": Kind.MEMCACHED,
    "memcacheds": Kind.MEMCACHED,
}
ENCRYPTED = {"rediss", "valkeys", "memcacheds"}
_CLEARTEXT = "allow-cleartext-password=1"
_EXAMPLES = (
    "Write for example mysql://user@127.0.0.1:3306/, mysql:///run/mysqld/mysqld.sock?user=u, postgresql://user@127.0.0.1:5432/, "
    "postgresql:///?host=/run/postgresql&user=u, redis://127.0.0.1:6379, "
    "redis:///run/redis/redis-server.sock, memcached://127.0.0.1:11211 or memcached:///run/memcached/memcached.sock."
)


@dataclass(frozen=True)
class Consent:
    """Consent to give a server more than a proof of the password; the rule of `howfar load`."""

    fetch_server_key: bool = False
    cleartext_password: bool = False


@dataclass(frozen=True)
class Login:
    """User and password; the password is never printed."""

    user: str
    password: str = field(repr=False)
    consent: Consent = Consent()
    database: str | None = None
    """Name of PostgreSQL's database."""
    of_server: bool = False
    """Whether root, where no user was named, logs in to PostgreSQL as the account of the server, as its package sets it up."""


@dataclass(frozen=True)
class Logins:
    """Logins by kind of server."""

    mysql: Login
    redis: Login
    postgresql: Login

    def of(self, kind: Kind) -> Login:
        return {Kind.REDIS: self.redis, Kind.POSTGRESQL: self.postgresql}.get(kind, self.mysql)


@dataclass(frozen=True)
class Target:
    """A named server: a socket's path, or a host (name or address) and port."""

    kind: Kind
    path: str | None
    host: str | None
    port: int | None
    user: str | None
    tls: bool
    consent: Consent = Consent()
    database: str | None = None


def parse_target(text: str) -> Target:
    """The server that a DSN names. Raises UsageError; its message never repeats what may be a password."""
    scheme = text.partition("://")[0].lower()
    if "://" not in text or scheme not in SCHEMES:
        shown = "that" if "@" in text else repr(text)
        raise UsageError(f"{shown} is not a DSN; a DSN begins with {', '.join(f'{s}://' for s in SCHEMES)}", _EXAMPLES)
    kind = SCHEMES[scheme]
    if kind in (Kind.MYSQL, Kind.POSTGRESQL):
        address = parse_dsn(text) if kind is Kind.MYSQL else _of_libpq(text)
        port = None if address.socket is not None else address.port or SERVICES[kind].port
        if address.ssl_mode is not None and address.ssl_mode.startswith("VERIFY"):
            raise UsageError(
                f"howfar doctor does not verify certificates, so ssl-mode={address.ssl_mode} is not supported",
                "Use ssl-mode=REQUIRED, or name the server's socket.",
            )
        tls = address.ssl_mode not in (None, "DISABLED", "PREFERRED")
        consent = Consent(address.fetch_server_key is True, address.allow_cleartext_password is True)
        return Target(kind, address.socket, address.host, port, address.user, tls, consent, address.database)
    return _of_cache(kind, scheme, text)


def _of_libpq(text: str) -> ServerAddress:
    """The address with libpq's default for the socket; user and database only where the DSN names them. Raises UsageError."""
    named = libpq.parse_uri(text)
    if named.service is not None:
        raise UsageError("howfar doctor does not read service files", _EXAMPLES)
    found = libpq.completed(named, "", None)
    return replace(found, host=named.hostaddr or found.host, user=named.user, database=named.database)


def _of_cache(kind: Kind, scheme: str, text: str) -> Target:
    parts, port = split_dsn(text, _EXAMPLES)
    must_have_no_password(parts)
    consents = parts.query == _CLEARTEXT and kind is Kind.REDIS
    if (parts.query and not consents) or parts.fragment:
        takes = f"no parameter but {_CLEARTEXT}" if kind is Kind.REDIS else "no parameters"
        raise UsageError(f"a {scheme}:// DSN takes {takes}", _EXAMPLES)
    user = unquote(parts.username) if parts.username else None
    if parts.hostname:
        number, encrypted = port or SERVICES[kind].port, scheme in ENCRYPTED
        consent = Consent(cleartext_password=consents)
        return Target(kind, None, unquote(parts.hostname), number, user, encrypted, consent)
    if len(parts.path) < 2:
        raise UsageError("the DSN names neither a host nor a socket", _EXAMPLES)
    if scheme in ENCRYPTED:
        raise UsageError(f"a {scheme}:// DSN names a socket, which is never encrypted", f"Use {scheme[:-1]}://.")
    return Target(kind, unquote(parts.path), None, None, user, False)
