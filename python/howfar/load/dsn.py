"""A server as one word: `mysql://user@host:port/db?ssl-mode=REQUIRED`, `mysql:///path/to.sock?user=u&db=d`. Pure.

A password in it is refused: everybody on the machine reads it in `ps`, and the shell keeps it in its history.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from howfar.errors import UsageError
from howfar.load.place import SSL_MODES, Place

SCHEMES = ("mysql", "mariadb")
PASSWORD_ADVICE = (
    "Put it into a file that only you can read and name that with --password-file, or into the environment variable "
    "HOWFAR_PASSWORD, or answer a question with --ask-password."
)
_EXAMPLES = (
    "Write for example mysql://user@host:3306/db?ssl-mode=REQUIRED or mysql:///run/mysqld/mysqld.sock?user=u&db=d."
)


def looks_like_dsn(word: str) -> bool:
    return "://" in word


def parse_dsn(text: str) -> Place:
    """Raises UsageError; its message never repeats what may be a password."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"the DSN cannot be read: {error}", _EXAMPLES) from error
    if parts.scheme not in SCHEMES:
        raise UsageError(f"a DSN begins with mysql:// or mariadb://, not with {parts.scheme}://", _EXAMPLES)
    if parts.password is not None:
        raise UsageError("the DSN contains a password, which everybody on this machine could read", PASSWORD_ADVICE)
    if parts.fragment:
        raise UsageError("the DSN contains a #, which ends it", "Write %23 where the character itself is meant.")
    if port == 0:
        raise UsageError("the DSN names port 0, which no server has", _EXAMPLES)
    said: dict[str, Any] = {"host": parts.hostname and unquote(parts.hostname), "port": port}
    said["user"] = unquote(parts.username) if parts.username else None
    path = unquote(parts.path)
    asked = _parameters(parts)
    if not parts.hostname and path.strip("/") and "socket" not in asked:
        said["socket"] = path
    elif path.strip("/"):
        said["database"] = path.strip("/")
    for name, value in asked.items():
        if said.get(name) not in (None, value):
            raise UsageError(f"the DSN says {name} twice and differently", _EXAMPLES)
        said[name] = value
    if said["host"] and said.get("socket"):
        raise UsageError("the DSN names a host and a socket", "Name one of them.")
    if not said["host"] and not said.get("socket"):
        raise UsageError("the DSN names neither a host nor a socket", _EXAMPLES)
    return Place(**said)


def _parameters(parts: SplitResult) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        known = name.lower().replace("_", "-")
        if known in ("password", "passwd", "pwd"):
            raise UsageError("the DSN contains a password, which everybody on this machine could read", PASSWORD_ADVICE)
        if known not in PARAMETERS:
            near = difflib.get_close_matches(known, PARAMETERS, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(f"the DSN's parameter {name} is not known", f"{meant}Known: {', '.join(PARAMETERS)}.")
        field, read = PARAMETERS[known]
        try:
            found[field] = read(value)
        except ValueError as error:
            raise UsageError(f"the DSN's parameter {name}={value}: {error}", _EXAMPLES) from error
    return found


def _text(value: str) -> str:
    if not value:
        raise ValueError("nothing stands after the =")
    return value


def ssl_mode(value: str) -> str:
    """Any case; `preferred` is refused, because it leaves to chance what is measured. Raises ValueError."""
    mode = value.upper().replace("-", "_")
    if mode == "PREFERRED":
        raise ValueError("a transport is asked for or not, never preferred: write REQUIRED or DISABLED")
    if mode not in SSL_MODES:
        raise ValueError(f"known modes: {', '.join(SSL_MODES)}")
    return mode


def tls_versions(value: str) -> str:
    """`TLSv1.3` -> `1.3`. Raises ValueError."""
    names = {name.strip().lower().removeprefix("tlsv").removeprefix("tls") for name in value.split(",")}
    if names == {"1.2", "1.3"} or names == {"any"}:
        return "any"
    if len(names) == 1 and names <= {"1.2", "1.3"}:
        return names.pop()
    raise ValueError("known versions: TLSv1.2, TLSv1.3, or both with a comma between")


def algorithm(value: str) -> str | None:
    """`zlib`, `zstd`; `uncompressed` is none. Raises ValueError."""
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
    """sysbench's on/off, true/false, 1/0. Raises ValueError."""
    word = value.lower()
    if word in ("on", "true", "1", "yes"):
        return True
    if word in ("off", "false", "0", "no"):
        return False
    raise ValueError("write on or off")


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
    "server-public-key-path": ("server_key_file", _text),
}
"""Name in the DSN: field of `Place`, and how its value is read."""
