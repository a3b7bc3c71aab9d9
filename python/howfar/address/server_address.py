"""The content of a target: the server's address, settings of the session, and a password that is never printed. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from howfar.passwords import learn
from howfar.services import ServiceName

SslMode = Literal["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]
"""Modes of TLS, from the weakest to the strongest; with PREFERRED, TLS is used if the server offers it."""
SSL_MODES: tuple[SslMode, ...] = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
SYSTEM_CA = "system"
"""Value of `ssl_ca`: the authorities that this machine trusts."""
NO_FILE = ""
"""Value of `ssl_ca` and `ssl_cert`: no file, not even the default one."""


def format_host_port(host: str | None, port: int | str | None) -> str:
    """Host and port as in a URL: `10.0.0.1:3306`, `[::1]:3306`; only the host if `port` is None."""
    shown_host = f"[{host}]" if host and ":" in host else str(host)
    return shown_host if port is None else f"{shown_host}:{port}"


class Secret:
    """A password, which only `reveal` returns, not str, repr or format. Once revealed, it is masked by `howfar.passwords` in texts
    that servers and programs return."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        learn(self._value)
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret(…)" if self._value else "Secret()"

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return repr(self)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not written anywhere")


@dataclass(frozen=True)
class ServerAddress:
    """The parts of an address that one source specifies; None for all others. There is no password, so an address may be printed."""

    protocol: ServiceName | None = None
    """None if not specified, as in HOST:PORT."""
    host: str | None = None
    port: int | None = None
    socket: str | None = None
    localhost_is_socket: bool | None = None
    """Whether the host `localhost`, or no host, means the default socket, as in programs that use libmysqlclient."""
    user: str | None = None
    database: str | None = None
    database_number: int | None = None
    """The number of a Redis database."""
    ssl_mode: SslMode | None = None
    ssl_ca: str | None = None
    """A file of certificates in PEM; also `SYSTEM_CA`."""
    ssl_cert: str | None = None
    ssl_key: str | None = None
    ssl_cipher: str | None = None
    tls_versions: Literal["any", "1.2", "1.3"] | None = None
    tls_direct: bool | None = None
    """PostgreSQL: TLS from the first byte on."""
    sni: bool | None = None
    """Whether TLS sends the host name to the server; None means yes."""
    channel_binding: Literal["disable", "prefer", "require"] | None = None
    compression: Literal["zlib", "zstd"] | None = None
    compression_level: int | None = None
    fetch_server_key: bool | None = None
    allow_cleartext_password: bool | None = None
    server_key_file: str | None = None
    options: str | None = None
    """PostgreSQL: settings of the session, sent with the login."""
    hostaddr: str | None = None
    """PostgreSQL: the IP address to connect to; `host` is then only its name."""
    service: str | None = None
    service_file: str | None = None
    passfile: str | None = None

    def with_fallback(self, fallback: ServerAddress) -> ServerAddress:
        """Complete this address from `fallback`. A host of this address replaces a socket of the fallback, and vice versa."""
        if self.host is not None or self.socket is not None:
            fallback = replace(fallback, host=None, port=None, socket=None, localhost_is_socket=None)
        return fallback.updated(self)

    def updated(self, other: ServerAddress) -> ServerAddress:
        """Return this address with the fields that another one sets."""
        values = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    @property
    def names_server(self) -> bool:
        return self.host is not None or self.socket is not None or self.port is not None

    @property
    def location(self) -> str:
        """The socket, or host and port, for messages."""
        if self.socket is not None:
            return self.socket
        return format_host_port(self.host or self.hostaddr or "localhost", self.port)


@dataclass(frozen=True)
class ParsedTarget:
    """The parsed content of one text that names a server."""

    address: ServerAddress
    password: Secret | None = None
    form: str = ""
    """The kind of text, such as "libpq URI"."""
    notes: tuple[str, ...] = ()
    """What was ignored or chosen, one sentence each."""

    def updated(self, other: ParsedTarget) -> ParsedTarget:
        """Return this target with the fields that another one sets, and the notes of both."""
        password, notes = other.password or self.password, self.notes + other.notes
        return ParsedTarget(self.address.updated(other.address), password, self.form, notes)


@dataclass(frozen=True)
class Login:
    """A complete address and the password for it."""

    address: ServerAddress
    password: Secret = Secret()  # noqa: RUF009 - immutable
    notes: tuple[str, ...] = ()
