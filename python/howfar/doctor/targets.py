"""Servers that the user named, and logins. No I/O.

`howfar.address` parses the addresses, which are complete before they reach this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from howfar.address import Login, protocol_by_port
from howfar.clients import NO_CONSENT, Consent
from howfar.doctor.findings import Kind
from howfar.errors import UsageError
from howfar.services import SERVICES

_EXAMPLES = (
    "Write for example mysql://user@127.0.0.1:3306/, mysql:///run/mysqld/mysqld.sock?user=u, postgresql://user@127.0.0.1:5432/, "
    "postgresql:///?host=/run/postgresql&user=u, redis://127.0.0.1:6379, "
    "redis:///run/redis/redis-server.sock, memcached://127.0.0.1:11211 or memcached:///run/memcached/memcached.sock."
)


@dataclass(frozen=True)
class TargetLogin:
    """User and password; the password is never printed."""

    user: str
    password: str = field(repr=False)
    consent: Consent = NO_CONSENT
    database: str | None = None
    """Name of the database, for PostgreSQL."""
    is_default_user: bool = False
    """Whether no user was named; PostgreSQL's package then lets root log in as the account of the server."""


@dataclass(frozen=True)
class Logins:
    """Logins by kind of server."""

    mysql: TargetLogin
    redis: TargetLogin
    postgresql: TargetLogin

    def of(self, kind: Kind) -> TargetLogin:
        return {Kind.REDIS: self.redis, Kind.POSTGRESQL: self.postgresql}.get(kind, self.mysql)

    def without_user(self) -> Logins | None:
        """Return these logins without the user for PostgreSQL, whose package sets up its own account; None if no user was named."""
        return replace(self, postgresql=TargetLogin("", "")) if self.postgresql.user else None


@dataclass(frozen=True)
class DoctorTarget:
    """A server named by the user: a socket's path, or a host (name or address) and port."""

    kind: Kind
    path: str | None
    host: str | None
    port: int | None
    user: str | None
    tls: bool
    consent: Consent = NO_CONSENT
    database: str | None = None
    password: str | None = field(default=None, repr=False)
    """The password that was given for this server alone."""


def target_from_login(login: Login) -> DoctorTarget:
    """Make the target of a complete address; it has a user only if the address names one. Raises UsageError."""
    address = login.address
    protocol = address.protocol or protocol_by_port(address.port)
    if protocol is None:
        raise UsageError(f"{address.location} does not say which kind of server it is", _EXAMPLES)
    if address.ssl_mode is not None and address.ssl_mode.startswith("VERIFY"):
        raise UsageError(
            f"howfar doctor does not verify certificates, so ssl-mode={address.ssl_mode} is not supported",
            "Use ssl-mode=REQUIRED, or name the server's socket.",
        )
    if address.channel_binding == "require":
        raise UsageError("howfar doctor does not bind logins to TLS", "Leave channel_binding out.")
    port = None if address.socket is not None else address.port or SERVICES[protocol].port
    consent = Consent(address.fetch_server_key is True, address.allow_cleartext_password is True)
    host = None if address.socket is not None else address.hostaddr or address.host
    tls = address.ssl_mode not in (None, "DISABLED", "PREFERRED")
    password = login.password.reveal() or None
    return DoctorTarget(
        Kind(protocol), address.socket, host, port, address.user, tls, consent, address.database, password
    )
