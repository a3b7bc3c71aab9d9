"""The [client] group of an option file (`my.cnf`), as the clients of MySQL and MariaDB read it. Pure: text in.

Read: where the server is, who logs in, TLS. Anything else there is for other programs and passed over.
"""

from __future__ import annotations

from typing import Any

from howfar.errors import UsageError
from howfar.load.dsn import ssl_mode, tls_versions
from howfar.load.place import Place

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "s": " ", "\\": "\\", '"': '"', "'": "'"}
_TEXTS = {
    "host": "host", "socket": "socket", "user": "user", "database": "database", "ssl-ca": "ssl_ca", "ssl-cert": "ssl_cert",
    "ssl-key": "ssl_key", "ssl-cipher": "ssl_cipher",
}  # fmt: skip


def parse_option_file(source: str, text: str) -> tuple[Place, str | None]:
    """What it says of the server, and the password if it has one. Raises UsageError with the line."""
    said: dict[str, Any] = {}
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
                said["port"] = int(value)
            elif name == "ssl-mode":
                said["ssl_mode"] = ssl_mode(value)
            elif name == "tls-version":
                said["tls_versions"] = tls_versions(value)
            elif name in _TEXTS and value:
                said[_TEXTS[name]] = value
        except ValueError as error:
            raise UsageError(
                f"{source}:{number}: {name}: {error}", "Correct that line, or name another file."
            ) from error
    return Place(**_one_way(said, protocol)), password


def _one_way(said: dict[str, Any], protocol: str) -> dict[str, Any]:
    """A socket or a host: `protocol` decides, else a host that is not localhost."""
    if "socket" not in said:
        return said
    by_host = protocol == "tcp" or (protocol != "socket" and said.get("host", "localhost") != "localhost")
    dropped = {"socket"} if by_host else {"host", "port"}
    return {name: value for name, value in said.items() if name not in dropped}


def _unquoted(value: str) -> str:
    """Without quotes and a comment after it; escapes as the servers' clients know them."""
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
