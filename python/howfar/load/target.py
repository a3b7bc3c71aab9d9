"""The server and how to reach it: from a DSN, sysbench's options or an option file, each as a `ServerAddress`. Pure.

None means that a source does not say. Sources are combined with `over`; defaults are in `job.py`. A password in a DSN is
refused: `ps` shows it to every user of the machine, and the shell keeps it in its history.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from howfar.errors import UsageError
from howfar.services import SqlProtocol

SslMode = Literal["DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY", "PREFERRED"]
"""Modes of TLS. PREFERRED: PostgreSQL only, until the server has answered."""
SSL_MODES: tuple[SslMode, ...] = ("DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
DEFAULT_PORT = 3306
DEFAULT_NAME = "sbtest"
"""Default for user and database, as in sysbench."""


@dataclass(frozen=True)
class ServerAddress:
    """What one source says about the server. It holds no password, so it may be printed."""

    protocol: SqlProtocol | None = None
    host: str | None = None
    port: int | None = None
    socket: str | None = None
    user: str | None = None
    database: str | None = None
    ssl_mode: SslMode | None = None
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    ssl_cipher: str | None = None
    tls_versions: Literal["any", "1.2", "1.3"] | None = None
    compression: Literal["zlib", "zstd"] | None = None
    compression_level: int | None = None
    fetch_server_key: bool | None = None
    allow_cleartext_password: bool | None = None
    server_key_file: str | None = None
    tls_direct: bool | None = None
    sni: bool | None = None
    channel_binding: Literal["disable", "prefer", "require"] | None = None
    hostaddr: str | None = None
    """PostgreSQL's hostaddr: the address of `host`, which then only names it."""
    service: str | None = None
    passfile: str | None = None

    def over(self, below: ServerAddress) -> ServerAddress:
        """This address, completed from `below`. A host here overrides a socket below, and vice versa."""
        if self.host is not None or self.socket is not None:
            below = replace(below, host=None, port=None, socket=None)
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(below, **{name: value for name, value in given.items() if value is not None})

    @property
    def names_a_server(self) -> bool:
        return self.host is not None or self.socket is not None or self.port is not None


SCHEMES = ("mysql", "mariadb")
PASSWORD_ADVICE = (
    "Use --password-file FILE (readable by you alone), the environment variable HOWFAR_PASSWORD, or --ask-password."
)
_EXAMPLES = "Examples: mysql://user@host:3306/db?ssl-mode=REQUIRED or mysql:///run/mysqld/mysqld.sock?user=u&db=d."


def port_of(value: str) -> int:
    """Raises ValueError."""
    if not value.isdigit() or not 1 <= int(value) <= 65535:
        raise ValueError("ports are 1 to 65535")
    return int(value)


def looks_like_dsn(text: str) -> bool:
    return "://" in text


def split_dsn(text: str, examples: str) -> tuple[SplitResult, int | None]:
    """The parts of a DSN, and its port. Raises UsageError with `examples`; its message never repeats what may be a password."""
    try:
        parts = urlsplit(text)
        return parts, parts.port
    except ValueError as error:
        # The error's own text may have a part of a password.
        raise UsageError("the DSN cannot be read: its host or port is malformed", examples) from error


def must_have_no_password(parts: SplitResult) -> None:
    """Check for a password, also for one whose /, ? or # ends the host: what comes before that may pass for a port. Raises UsageError,
    whose message never repeats it."""
    ends_early = ":" in parts.netloc.rpartition("]")[2] and "@" not in parts.netloc
    if parts.password is not None or (ends_early and "@" in f"{parts.path}{parts.query}{parts.fragment}"):
        advice = (
            f"{PASSWORD_ADVICE} If it is none: write %40 for an @ behind the port." if ends_early else PASSWORD_ADVICE
        )
        raise UsageError("the DSN contains a password, which every user of this machine could read", advice)


def parse_dsn(text: str) -> ServerAddress:
    """The server that a DSN names. Raises UsageError; its message never repeats what may be a password."""
    parts, port = split_dsn(text, _EXAMPLES)
    if parts.scheme not in SCHEMES:
        raise UsageError(f"a DSN begins with mysql://, mariadb:// or postgresql://, not {parts.scheme}://", _EXAMPLES)
    must_have_no_password(parts)
    if parts.fragment:
        raise UsageError("the DSN contains a #, which ends a URL", "Write %23 for the character itself.")
    if port == 0:
        raise UsageError("port 0 in the DSN is not valid", _EXAMPLES)
    given: dict[str, Any] = {"host": parts.hostname and unquote(parts.hostname), "port": port}
    given["user"] = unquote(parts.username) if parts.username else None
    path = unquote(parts.path)
    options = _parameters(parts)
    if not parts.hostname and path.strip("/") and "socket" not in options:
        given["socket"] = path
    elif path.strip("/"):
        given["database"] = path.strip("/")
    for name, value in options.items():
        if given.get(name) not in (None, value):
            raise UsageError(f"the DSN gives {name} twice, with different values", _EXAMPLES)
        given[name] = value
    if given["host"] and given.get("socket"):
        raise UsageError("the DSN names both a host and a socket", "Name one of them.")
    if not given["host"] and not given.get("socket"):
        raise UsageError("the DSN names neither a host nor a socket", _EXAMPLES)
    return ServerAddress(**given)


def _parameters(parts: SplitResult) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        known = name.lower().replace("_", "-")
        if known in ("password", "passwd", "pwd"):
            raise UsageError(
                "the DSN contains a password, which every user of this machine could read", PASSWORD_ADVICE
            )
        if known not in PARAMETERS:
            near = difflib.get_close_matches(known, PARAMETERS, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(f"unknown DSN parameter {name}", f"{meant}Known: {', '.join(PARAMETERS)}.")
        field, read = PARAMETERS[known]
        try:
            found[field] = read(value)
        except ValueError as error:
            raise UsageError(f"the DSN's parameter {name}={value}: {error}", _EXAMPLES) from error
    return found


def _text(value: str) -> str:
    if not value:
        raise ValueError("the value is empty")
    return value


def ssl_mode(value: str) -> str:
    """A mode in upper case; `preferred` is refused, because it leaves open what is measured. Raises ValueError."""
    mode = value.upper().replace("-", "_")
    if mode == "PREFERRED":
        raise ValueError("PREFERRED leaves open what is measured: use REQUIRED or DISABLED")
    if mode not in SSL_MODES:
        raise ValueError(f"known modes: {', '.join(SSL_MODES)}")
    return mode


def tls_versions(value: str) -> str:
    """The version in `TLSv1.3`: `1.3`. Raises ValueError."""
    names = {name.strip().lower().removeprefix("tlsv").removeprefix("tls") for name in value.split(",")}
    if names == {"1.2", "1.3"} or names == {"any"}:
        return "any"
    if len(names) == 1 and names <= {"1.2", "1.3"}:
        return names.pop()
    raise ValueError("known versions: TLSv1.2, TLSv1.3, or both, separated by a comma")


def algorithm(value: str) -> str | None:
    """The algorithm, `zlib` or `zstd`; None for `uncompressed`. Raises ValueError."""
    if value.lower() in ("uncompressed", "none", "off", "false", "0"):
        return None
    if value.lower() not in ("zlib", "zstd"):
        raise ValueError("known algorithms: zlib, zstd, uncompressed")
    return value.lower()


def _level(value: str) -> int:
    if not value.isdigit() or not 1 <= int(value) <= 22:
        raise ValueError("a level is a number from 1 to 22")
    return int(value)


def switch(value: str) -> bool:
    """A switch: sysbench's on/off, true/false, 1/0. Raises ValueError."""
    text = value.lower()
    if text in ("on", "true", "1", "yes"):
        return True
    if text in ("off", "false", "0", "no"):
        return False
    raise ValueError("use on or off")


PARAMETERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "user": ("user", _text),
    "db": ("database", _text),
    "socket": ("socket", _text),
    "ssl-mode": ("ssl_mode", ssl_mode),
    "ssl-ca": ("ssl_ca", _text),
    "ssl-cert": ("ssl_cert", _text),
    "ssl-key": ("ssl_key", _text),
    "ssl-cipher": ("ssl_cipher", _text),
    "tls-version": ("tls_versions", tls_versions),
    "compression": ("compression", algorithm),
    "compression-level": ("compression_level", _level),
    "get-server-public-key": ("fetch_server_key", switch),
    "allow-cleartext-password": ("allow_cleartext_password", switch),
    "server-public-key-path": ("server_key_file", _text),
}
"""Name in the DSN: field of `ServerAddress`, and how its value is read."""


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "s": " ", "\\": "\\", '"': '"', "'": "'"}
_TEXTS = {
    "host": "host", "socket": "socket", "user": "user", "database": "database", "ssl-ca": "ssl_ca", "ssl-cert": "ssl_cert",
    "ssl-key": "ssl_key", "ssl-cipher": "ssl_cipher",
}  # fmt: skip


def parse_option_file(source: str, text: str) -> tuple[ServerAddress, str | None]:
    """The server and the password in an option file. Raises UsageError with the line."""
    given: dict[str, Any] = {}
    password: str | None = None
    protocol = ""
    group = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("[") and bare.endswith("]"):
            group = bare[1:-1].strip()
            continue
        if group != "client" or not bare or bare.startswith(("#", ";", "!")):
            continue
        name, _, raw = bare.partition("=")
        name, value = name.strip().lower().replace("_", "-"), _unquoted(raw.strip())
        try:
            if name == "password":
                password = value
            elif name == "protocol":
                protocol = value.lower()
            elif name == "port":
                # 0: the default, as in the servers' own clients.
                given["port"] = port_of(value) if value != "0" else None
            elif name == "ssl-mode":
                given["ssl_mode"] = ssl_mode(value)
            elif name == "tls-version":
                given["tls_versions"] = tls_versions(value)
            elif name in _TEXTS and value:
                given[_TEXTS[name]] = value
        except ValueError as error:
            raise UsageError(
                f"{source}:{number}: {name}: {error}", "Correct that line, or name another file."
            ) from error
    return ServerAddress(**_socket_or_host(given, protocol)), password


def _socket_or_host(given: dict[str, Any], protocol: str) -> dict[str, Any]:
    """The address without either the socket or the host: `protocol` decides, else a host that is not localhost."""
    if "socket" not in given:
        return given
    by_host = protocol == "tcp" or (protocol != "socket" and given.get("host", "localhost") != "localhost")
    dropped = {"socket"} if by_host else {"host", "port"}
    return {name: value for name, value in given.items() if name not in dropped}


def _unquoted(value: str) -> str:
    """A value without quotes and a trailing comment; escapes as in the servers' own clients."""
    quote = value[:1]
    if quote in ("'", '"'):
        end = _closing(value, quote)
        value = value[1:end]
    else:
        value = value.partition(" #")[0].rstrip()
    text, rest = "", iter(value)
    for character in rest:
        if character != "\\":
            text += character
            continue
        escaped = next(rest, "\\")
        text += _ESCAPES.get(escaped, "\\" + escaped)
    return text


def _closing(value: str, quote: str) -> int:
    position = 1
    while position < len(value) and value[position] != quote:
        position += 2 if value[position] == "\\" else 1
    return position
