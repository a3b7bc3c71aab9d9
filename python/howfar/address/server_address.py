"""What a text says about a server: its address and the session to have with it, and a password that is never shown. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from howfar.passwords import learn
from howfar.services import ServiceName

SslMode = Literal["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]
"""Modes of TLS, from the weakest to the strongest; PREFERRED leaves the choice to the server."""
SSL_MODES: tuple[SslMode, ...] = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
SYSTEM_CA = "system"
"""As `ssl_ca`: the authorities that this machine trusts."""
NO_FILE = ""
"""As `ssl_ca`, `ssl_cert`: no file, not even the usual one."""


class Secret:
    """A password. Only `reveal` gives it: no text, representation or format of this object does, nor any text that comes back from
    whom it was revealed to."""

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
    """What one source says about the server; None where it says nothing. It holds no password, so it may be printed."""

    protocol: ServiceName | None = None
    """None: not said, as by HOST:PORT."""
    host: str | None = None
    port: int | None = None
    socket: str | None = None
    localhost_is_socket: bool | None = None
    """Whether the host `localhost`, or none, means the usual socket, as to programs on libmysqlclient."""
    user: str | None = None
    database: str | None = None
    database_number: int | None = None
    """Redis's."""
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
    """Whether TLS names the host to the server; None: yes."""
    channel_binding: Literal["disable", "prefer", "require"] | None = None
    compression: Literal["zlib", "zstd"] | None = None
    compression_level: int | None = None
    fetch_server_key: bool | None = None
    allow_cleartext_password: bool | None = None
    server_key_file: str | None = None
    options: str | None = None
    """PostgreSQL: settings of the session, sent with the login."""
    hostaddr: str | None = None
    """PostgreSQL: the address of `host`, which then only names it."""
    service: str | None = None
    service_file: str | None = None
    passfile: str | None = None

    def over(self, below: ServerAddress) -> ServerAddress:
        """This address, completed from `below`. A host here overrides a socket below, and vice versa."""
        if self.host is not None or self.socket is not None:
            below = replace(below, host=None, port=None, socket=None, localhost_is_socket=None)
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(below, **{name: value for name, value in given.items() if value is not None})

    @property
    def names_a_server(self) -> bool:
        return self.host is not None or self.socket is not None or self.port is not None

    @property
    def where(self) -> str:
        """Socket, or host and port, for people."""
        if self.socket is not None:
            return self.socket
        host = self.host or self.hostaddr or "localhost"
        shown = f"[{host}]" if ":" in host else host
        return shown if self.port is None else f"{shown}:{self.port}"


@dataclass(frozen=True)
class Given:
    """What one text says."""

    address: ServerAddress
    password: Secret | None = None
    form: str = ""
    """The kind of text, such as "libpq URI"."""
    notes: tuple[str, ...] = ()
    """What was ignored or chosen, a sentence each."""


@dataclass(frozen=True)
class Login:
    """A complete address and the password for it."""

    address: ServerAddress
    password: Secret = Secret()  # noqa: RUF009 - immutable
    notes: tuple[str, ...] = ()
