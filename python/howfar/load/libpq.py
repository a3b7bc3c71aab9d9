"""PostgreSQL's own words for a server: the URI, the service file, the environment and the password file, as libpq reads them. Pure.

Each source becomes a `ServerAddress`. What leaves open what is measured is decided once, before the job is made (`sslmode=prefer`), or
refused; a password in a URI is refused, as in any DSN.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from howfar.errors import UsageError
from howfar.load.target import PASSWORD_ADVICE, ServerAddress, must_have_no_password, port_of, split_dsn

SCHEMES: Final = ("postgresql", "postgres")
PORT: Final = 5432
SOCKETS: Final = "/var/run/postgresql"
"""Directory of the sockets of Debian's server."""
SYSTEM_CA: Final = "/etc/ssl/certs/ca-certificates.crt"
_EXAMPLES = "Examples: postgresql://user@host:5432/db?sslmode=verify-full&sslrootcert=ca.pem or postgresql:///db?host=/run/postgresql."
_MODES: Final = {
    "disable": "DISABLED",
    "prefer": "PREFERRED",
    "require": "REQUIRED",
    "verify-ca": "VERIFY_CA",
    "verify-full": "VERIFY_IDENTITY",
}


def ssl_mode(value: str) -> str:
    """libpq's word as MySQL's. Raises ValueError."""
    if value == "allow":
        raise ValueError("allow leaves open what is measured: use disable or require")
    if value not in _MODES:
        raise ValueError(f"known modes: {', '.join(_MODES)}")
    return _MODES[value]


def _negotiation(value: str) -> bool:
    if value not in ("postgres", "direct"):
        raise ValueError("known: postgres, direct")
    return value == "direct"


def _sni(value: str) -> bool:
    if value not in ("0", "1"):
        raise ValueError("known: 0, 1")
    return value == "1"


def _binding(value: str) -> str:
    if value not in ("disable", "prefer", "require"):
        raise ValueError("known: disable, prefer, require")
    return value


def _least_tls(value: str) -> str | None:
    if value not in _TLS:
        raise ValueError(f"known: {', '.join(_TLS)}")
    return "1.3" if value == "TLSv1.3" else None


def _most_tls(value: str) -> str | None:
    if value not in ("TLSv1.2", "TLSv1.3"):
        raise ValueError("known: TLSv1.2, TLSv1.3")
    return "1.2" if value == "TLSv1.2" else None


def _host(value: str) -> str:
    if "," in value:
        raise ValueError("only one server can be loaded")
    return value


_TLS: Final = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_PARAMETERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "host": ("host", _host),
    "hostaddr": ("hostaddr", _host),
    "port": ("port", port_of),
    "dbname": ("database", str),
    "user": ("user", str),
    "sslmode": ("ssl_mode", ssl_mode),
    "sslrootcert": ("ssl_ca", str),
    "sslcert": ("ssl_cert", str),
    "sslkey": ("ssl_key", str),
    "sslnegotiation": ("tls_direct", _negotiation),
    "sslsni": ("sni", _sni),
    "channel_binding": ("channel_binding", _binding),
    "ssl_min_protocol_version": ("tls_versions", _least_tls),
    "ssl_max_protocol_version": ("tls_versions", _most_tls),
    "service": ("service", str),
    "passfile": ("passfile", str),
}
"""libpq's parameters: field, and how the value is read."""
_ENVIRONMENT: Final = {
    "PGHOST": "host",
    "PGHOSTADDR": "hostaddr",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGSSLMODE": "sslmode",
    "PGSSLROOTCERT": "sslrootcert",
    "PGSSLCERT": "sslcert",
    "PGSSLKEY": "sslkey",
    "PGSSLNEGOTIATION": "sslnegotiation",
    "PGSSLSNI": "sslsni",
    "PGSSLMINPROTOCOLVERSION": "ssl_min_protocol_version",
    "PGSSLMAXPROTOCOLVERSION": "ssl_max_protocol_version",
    "PGOPTIONS": "options",
    "PGTARGETSESSIONATTRS": "target_session_attrs",
    "PGCHANNELBINDING": "channel_binding",
    "PGGSSENCMODE": "gssencmode",
    "PGREQUIREPEER": "requirepeer",
    "PGREQUIREAUTH": "require_auth",
    "PGSSLCRL": "sslcrl",
    "PGSSLCRLDIR": "sslcrldir",
    "PGSERVICE": "service",
    "PGPASSFILE": "passfile",
}
_WITHOUT_EFFECT: Final = (
    "application_name",
    "connect_timeout",
    "client_encoding",
    "fallback_application_name",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "load_balance_hosts",
    "krbsrvname",
    "gsslib",
)
_NOT_OBEYED: Final[dict[str, tuple[str, ...]]] = {
    "options": (),
    "target_session_attrs": ("any",),
    "gssencmode": ("disable", "prefer"),
    "requirepeer": (),
    "require_auth": (),
    "sslcrl": (),
    "sslcrldir": (),
    "sslcompression": ("0",),
}
"""Parameters that change the session or whom it trusts. They are refused, except for values that change nothing."""


def looks_like_uri(text: str) -> bool:
    return text.partition("://")[0] in SCHEMES


def _read(source: str, pairs: Mapping[str, str]) -> ServerAddress:
    """Parameters of one source. Raises UsageError."""
    given: dict[str, Any] = {}
    for name, value in pairs.items():
        if name in _WITHOUT_EFFECT or not value:
            continue
        if name in _NOT_OBEYED:
            if value not in _NOT_OBEYED[name]:
                raise UsageError(f"{source}: {name}={value} is not supported", "Leave it out: it would not be obeyed.")
            continue
        if name not in _PARAMETERS:
            near = difflib.get_close_matches(name, (*_PARAMETERS, *_WITHOUT_EFFECT, *_NOT_OBEYED), 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(f"{source}: unknown parameter {name}", f"{meant}Known: {', '.join(_PARAMETERS)}.")
        field, read = _PARAMETERS[name]
        try:
            wanted = read(value)
        except ValueError as error:
            raise UsageError(f"{source}: {name}={value}: {error}", _EXAMPLES) from error
        if wanted is not None and given.setdefault(field, wanted) != wanted:
            raise UsageError(f"{source}: {name}={value} contradicts another parameter", _EXAMPLES)
    return ServerAddress(protocol="postgresql", **given)


def parse_uri(text: str) -> ServerAddress:
    """The server of a URI, `postgresql://user@host:port/db?parameters`. Raises UsageError, whose message never repeats a password."""
    parts, port = split_dsn(text, _EXAMPLES)
    pairs = dict(parse_qsl(parts.query, keep_blank_values=True))
    must_have_no_password(parts)
    if "password" in pairs:
        raise UsageError("the DSN contains a password, which every user of this machine could read", PASSWORD_ADVICE)
    if parts.fragment:
        raise UsageError("the DSN contains a #, which ends a URL", "Write %23 for the character itself.")
    named = {
        "host": unquote(parts.hostname or "") if "%" not in parts.netloc else _quoted_host(parts.netloc),
        "port": "" if port is None else str(port),
        "user": unquote(parts.username or ""),
        "dbname": unquote(parts.path).strip("/"),
    }
    for name, value in named.items():
        if value and pairs.setdefault(name, value) != value:
            raise UsageError(f"the DSN gives {name} twice, with different values", _EXAMPLES)
    return _read("the DSN", pairs)


def _quoted_host(netloc: str) -> str:
    """A directory as host, `%2Frun%2Fpostgresql`: urlsplit would have it in lower case."""
    host = netloc.rpartition("@")[2]
    if not host.startswith("["):
        host = host.partition(":")[0]
    return unquote(host.strip("[]"))


def of_environment(environment: Mapping[str, str]) -> ServerAddress:
    """The server that the environment names. Raises UsageError."""
    return _read(
        "the environment (PGHOST, PGOPTIONS and so on)",
        {_ENVIRONMENT[name]: value for name, value in environment.items() if name in _ENVIRONMENT},
    )


def parse_services(source: str, text: str, service: str) -> tuple[ServerAddress, str | None] | None:
    """A service's address and password in a service file; None when the file does not name it. Raises UsageError."""
    pairs: dict[str, str] = {}
    group, found = "", False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        if bare.startswith("[") and bare.endswith("]"):
            group = bare[1:-1]
            found = found or group == service
            continue
        name, equals, value = bare.partition("=")
        if not equals:
            raise UsageError(f"{source}:{number} is no NAME=VALUE", "Correct that line.")
        if group == service:
            pairs.setdefault(name.strip(), value.strip())
    if not found:
        return None
    password = pairs.pop("password", None)
    return _read(f"{source}, service {service}", pairs), password


def over(address: ServerAddress, below: ServerAddress) -> ServerAddress:
    """Like `ServerAddress.over`, but a port below holds for a host above, as in libpq."""
    return replace(address.over(below), port=address.port or below.port)


def completed(address: ServerAddress, os_user: str, root_cert: str | None) -> ServerAddress:
    """The address with libpq's defaults; a directory becomes a socket. `root_cert`: the user's own, if any. Raises UsageError."""
    port = address.port or PORT
    user = address.user or os_user
    address = replace(address, user=user, database=address.database or user)
    if address.ssl_ca == "system":
        address = replace(address, ssl_ca=SYSTEM_CA, ssl_mode="VERIFY_IDENTITY")
    mode = address.ssl_mode
    if mode in ("VERIFY_CA", "VERIFY_IDENTITY") and address.ssl_ca is None:
        if root_cert is None:
            raise UsageError(
                "sslmode=verify-… needs the CA that signed the server's certificate", "Add sslrootcert=FILE.pem."
            )
        address = replace(address, ssl_ca=root_cert)
    if mode == "REQUIRED" and (authority := address.ssl_ca or root_cert) is not None:
        address = replace(address, ssl_ca=authority, ssl_mode="VERIFY_CA")  # as libpq does
    if address.tls_direct and mode in (None, "DISABLED", "PREFERRED"):
        raise UsageError("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full", _EXAMPLES)
    if address.channel_binding == "require" and mode in (None, "DISABLED"):
        raise UsageError("channel_binding=require needs TLS", "Add sslmode=require, verify-ca or verify-full.")
    host = address.host or (None if address.hostaddr else SOCKETS)
    if address.socket is not None:
        return address
    if host is not None and host.startswith("/"):
        return replace(address, host=None, port=port, socket=f"{host.rstrip('/')}/.s.PGSQL.{port}")
    return replace(address, host=host or address.hostaddr, port=port)


def password_of(text: str, address: ServerAddress) -> str | None:
    """The password file's entry for a completed address: the first line whose four fields fit."""
    directory = None if address.socket is None else address.socket.rpartition("/")[0]
    host = address.host if directory is None else "localhost" if directory == SOCKETS else directory
    asked = (host, str(address.port or PORT), address.database, address.user)
    for line in text.splitlines():
        fields = _fields(line)
        if line.startswith("#") or len(fields) < 5:
            continue
        if all(field in ("*", wanted) for field, wanted in zip(fields, asked, strict=False)):
            return fields[4]
    return None


def _fields(line: str) -> list[str]:
    """Fields of a line, separated by colons; a backslash takes the next character as it is."""
    fields, rest = [""], iter(line)
    for character in rest:
        if character == ":" and len(fields) < 5:
            fields.append("")
        else:
            fields[-1] += next(rest, "") if character == "\\" else character
    return fields
