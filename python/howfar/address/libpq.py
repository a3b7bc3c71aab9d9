"""Parses PostgreSQL's own forms as libpq does: URI, keywords, environment, service file and password file. No I/O.

libpq's manual describes the forms; `tests/unit/test_address_owners.py` compares the parsers with the library itself. Parameters are
known up to version 18. A setting that leaves a choice is decided before the job is built (`sslmode=prefer`), or refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from howfar.address.parameters import (
    EMPTY_ADDRESS,
    ENCRYPTED,
    HAS_OWN_TIMEOUTS,
    PASSWORD_SOURCES,
    PLAIN,
    PREFERRED,
    VERIFIED,
    Ignored,
    Parameter,
    Refused,
    choice,
    ignored,
    parse_port,
    parsed_field,
    password_field,
    read_parameters,
    refused,
    text_field,
)
from howfar.address.server_address import NO_FILE, SYSTEM_CA, ParsedTarget, Secret, ServerAddress
from howfar.errors import UsageError

SCHEMES: Final = ("postgresql", "postgres")
PORT: Final = 5432
SOCKET_DIRECTORY: Final = "/var/run/postgresql"
"""Directory of the sockets of Debian's server."""
SOCKET_NAME_PREFIX: Final = ".s.PGSQL."
EXAMPLES: Final = "Examples: postgresql://user@host:5432/db?sslmode=verify-full&sslrootcert=ca.pem or postgresql:///db?host=/run/postgresql."
_SSL_MODE_NAMES: Final = {
    "disable": "DISABLED",
    "prefer": "PREFERRED",
    "require": "REQUIRED",
    "verify-ca": "VERIFY_CA",
    "verify-full": "VERIFY_IDENTITY",
}
SEVERAL_SERVERS: Final = "several servers are named, and only one is measured: name the one that you mean"
_NO_GSSAPI: Final = "GSSAPI is not supported"
_ROLE_NOT_CHECKED: Final = "the role of the server is not checked"
_NO_OAUTH: Final = "OAuth is not supported"
_NAME_SERVER_ADVICE: Final = "Leave it out, and name the server that you mean."


def parse_ssl_mode(value: str) -> str:
    """Parse one of libpq's TLS modes; returns MySQL's name of the mode. Raises ValueError."""
    if value == "allow":
        raise ValueError("allow leaves open whether TLS is measured: use disable or require")
    if value not in _SSL_MODE_NAMES:
        raise ValueError(f"known modes: {', '.join(_SSL_MODE_NAMES)}")
    return _SSL_MODE_NAMES[value]


def _parse_min_tls(value: str) -> str | None:
    if value not in ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"):
        raise ValueError("known: TLSv1, TLSv1.1, TLSv1.2, TLSv1.3")
    return "1.3" if value == "TLSv1.3" else None


def _parse_max_tls(value: str) -> str | None:
    if value not in ("TLSv1.2", "TLSv1.3"):
        raise ValueError("known: TLSv1.2, TLSv1.3")
    return "1.2" if value == "TLSv1.2" else None


def parse_single_host(value: str) -> str:
    """Return a host name, address or directory. Raises ValueError for other characters, which may be part of a password."""
    if "," in value:
        raise ValueError(SEVERAL_SERVERS)
    if value.startswith("@"):
        raise ValueError("sockets in the abstract namespace are not supported: name a directory, or host and port")
    if not value.startswith("/") and not re.fullmatch(r"[\w.:%-]+", value):
        raise ValueError(
            "a host has letters, digits, dots and dashes; in a user or password write %40 for @ and %2F for /"
        )
    return value


def _parse_single_port(value: str) -> int:
    if "," in value:
        raise ValueError(SEVERAL_SERVERS)
    return parse_port(value.strip())


PARAMETERS: Final[dict[str, Parameter]] = {
    "host": parsed_field("host", parse_single_host),
    "hostaddr": parsed_field("hostaddr", parse_single_host),
    "port": parsed_field("port", _parse_single_port),
    "dbname": text_field("database"),
    "user": text_field("user"),
    "password": password_field(),
    "passfile": text_field("passfile"),
    "service": text_field("service"),
    "servicefile": text_field("service_file"),
    "sslmode": parsed_field("ssl_mode", parse_ssl_mode),
    "requiressl": choice(true=ENCRYPTED, false=EMPTY_ADDRESS),
    "sslrootcert": text_field("ssl_ca"),
    "sslcert": text_field("ssl_cert"),
    "sslkey": text_field("ssl_key"),
    "sslcertmode": choice(disable=ServerAddress(ssl_cert=NO_FILE, ssl_key=NO_FILE), allow=EMPTY_ADDRESS),
    "sslnegotiation": choice(postgres=ServerAddress(tls_direct=False), direct=ServerAddress(tls_direct=True)),
    "ssl_min_protocol_version": parsed_field("tls_versions", _parse_min_tls),
    "ssl_max_protocol_version": parsed_field("tls_versions", _parse_max_tls),
    "sslsni": choice(true=ServerAddress(sni=True), false=ServerAddress(sni=False)),
    "channel_binding": choice(
        disable=ServerAddress(channel_binding="disable"),
        prefer=ServerAddress(channel_binding="prefer"),
        require=ServerAddress(channel_binding="require"),
    ),
    "options": text_field("options"),
    **ignored("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
              "tcp_user_timeout", why=HAS_OWN_TIMEOUTS),
    **ignored("application_name", "fallback_application_name", "client_encoding", "load_balance_hosts", "krbsrvname",
              "gsslib"),
    "max_protocol_version": Ignored("version 3.0 of the protocol is used"),
    "min_protocol_version": Refused("version 3.0 of the protocol is used", exceptions=("3.0",)),
    "sslcompression": Refused("TLS does not compress here", exceptions=("0",)),
    "sslpassword": Refused("keys with a passphrase are not read", "Name a key without one as sslkey."),
    **refused("sslcrl", "sslcrldir", why="revocation lists are not checked"),
    "sslkeylogfile": Refused("session keys are not written to a file"),
    "requirepeer": Refused("the owner of the server is not checked"),
    "require_auth": Refused("the methods of authentication are not restricted", "Use channel_binding=require, or leave it out."),
    "target_session_attrs": Refused(_ROLE_NOT_CHECKED, _NAME_SERVER_ADVICE, exceptions=("any",)),
    "gssencmode": Refused(_NO_GSSAPI, exceptions=("disable", "prefer")),
    "gssdelegation": Refused(_NO_GSSAPI, exceptions=("0",)),
    "replication": Refused("a replication connection takes no queries", exceptions=("false", "off", "no", "0")),
    **refused("scram_client_key", "scram_server_key", why="a login needs the password itself",
              instead=f"Use {PASSWORD_SOURCES}."),
    **refused("oauth_issuer", "oauth_client_id", "oauth_client_secret", "oauth_scope", why=_NO_OAUTH),
    "authtype": Ignored(),
}  # fmt: skip
"""libpq's parameters."""
_ENVIRONMENT_PARAMETERS: Final = {
    "PGHOST": "host",
    "PGHOSTADDR": "hostaddr",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGPASSFILE": "passfile",
    "PGSERVICE": "service",
    "PGSSLMODE": "sslmode",
    "PGREQUIRESSL": "requiressl",
    "PGSSLROOTCERT": "sslrootcert",
    "PGSSLCERT": "sslcert",
    "PGSSLKEY": "sslkey",
    "PGSSLCERTMODE": "sslcertmode",
    "PGSSLNEGOTIATION": "sslnegotiation",
    "PGSSLSNI": "sslsni",
    "PGSSLMINPROTOCOLVERSION": "ssl_min_protocol_version",
    "PGSSLMAXPROTOCOLVERSION": "ssl_max_protocol_version",
    "PGMINPROTOCOLVERSION": "min_protocol_version",
    "PGCHANNELBINDING": "channel_binding",
    "PGOPTIONS": "options",
    "PGGSSENCMODE": "gssencmode",
    "PGREQUIREPEER": "requirepeer",
    "PGREQUIREAUTH": "require_auth",
    "PGSSLCRL": "sslcrl",
    "PGSSLCRLDIR": "sslcrldir",
}
"""Parameters by environment variable. Other variables (timeouts, PGTARGETSESSIONATTRS) concern other programs and are ignored."""


# ---------------------------------------------------------------- the forms as pairs of name and value


def uri_pairs(uri: str) -> dict[str, str]:
    """Parse the parameters of `postgresql://user:password@host:port/db?name=value`. Raises UsageError."""
    rest = uri.partition("://")[2]
    pairs: dict[str, str] = {}
    authority, at, after_account = rest.partition("@")
    if at and "/" not in authority:
        if re.search(r"\?[\w-]+=", authority):
            # libpq would take the text before the @ as user and password, and the rest of a parameter's value as the host.
            raise UsageError(
                "the libpq URI has parameters before its @",
                "Write %40 for an @ in a parameter, and %3F for a ? in a user or password.",
            )
        user, _, password = authority.partition(":")
        pairs = {"user": _decode(user), "password": _decode(password)}
        rest = after_account
    hosts, ports = [], []
    while True:
        host, rest = _uri_host(rest)
        port = ""
        if rest.startswith(":"):
            port = re.split("[/?,]", rest[1:], maxsplit=1)[0]
            rest = rest[1 + len(port) :]
        hosts.append(host)
        ports.append(port)
        if not rest.startswith(","):
            break
        rest = rest[1:]
    path, question, query = rest.partition("?")
    if "@" in f"{hosts}{path}":
        # libpq would take `user:71/rest@host` as host `user`, port 71 and database `rest@host`, and messages would show that database.
        raise UsageError(
            "the libpq URI has an @ too many, or behind its host: the password seems to have a / or an @ in it",
            "Write %2F for / and %40 for @ in a user or password, and %40 for @ in the name of a database.",
        )
    pairs |= {"host": _decode(",".join(hosts)), "port": _decode(",".join(ports)), "dbname": _decode(path[1:])}
    pairs = {name: value for name, value in pairs.items() if value}
    return pairs | (_query_pairs(query) if question else {})


def _uri_host(rest: str) -> tuple[str, str]:
    """Split the host from the beginning of `rest`. Returns the host and the text after it. Raises UsageError."""
    if not rest.startswith("["):
        host = re.split("[:/?,]", rest, maxsplit=1)[0]
        return host, rest[len(host) :]
    host, bracket, rest = rest[1:].partition("]")
    if not bracket or not host:
        raise UsageError("the libpq URI has a [ that is not followed by an IPv6 address and a ]", EXAMPLES)
    if rest and rest[0] not in ":/?,":
        raise UsageError("the libpq URI has something other than a port or a path behind ]", EXAMPLES)
    return host, rest


def _query_pairs(query: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for position, part in enumerate(query.removesuffix("&").split("&") if query else (), 1):
        name, equals, value = part.partition("=")
        if not equals or "=" in value:
            raise UsageError(
                f"parameter {position} of the libpq URI is not NAME=VALUE",
                "Write %3D for = and %26 for & in a value.",
            )
        name, value = _decode(name), _decode(value)
        if (name, value) == ("ssl", "true"):
            name, value = "sslmode", "require"
        _set_parameter(pairs, name, value)
    return pairs


def _set_parameter(pairs: dict[str, str], name: str, value: str) -> None:
    """Set a parameter, replacing an earlier value. The obsolete requiressl becomes sslmode."""
    if name == "requiressl":
        name, value = "sslmode", "require" if value.startswith("1") else "prefer"
    pairs[name] = value


def _decode(value: str) -> str:
    """Decode each %XX in a text. Raises UsageError for those that libpq refuses."""
    if re.search("%(?![0-9A-Fa-f]{2})", value):
        raise UsageError("the libpq URI has a % without two hexadecimal digits behind it", "Write %25 for a %.")
    data = re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda match: bytes.fromhex(match[1].decode()), value.encode("utf-8", "surrogateescape")
    )
    if b"\0" in data:
        raise UsageError("the libpq URI has %00 in it, which is not allowed", EXAMPLES)
    return data.decode("utf-8", "surrogateescape")


_SPACE: Final = " \t\n\v\f\r"
_KEYWORD: Final = re.compile(rf"[{_SPACE}]*([^={_SPACE}]*)[{_SPACE}]*(=?)[{_SPACE}]*", re.ASCII)
_BLANK: Final = re.compile(rf"[{_SPACE}]*")


def keyword_pairs(text: str) -> dict[str, str]:
    """Parse the parameters of `host=h dbname='my db'`. Raises UsageError."""
    pairs: dict[str, str] = {}
    position = 0
    while _BLANK.fullmatch(text, position) is None:
        match = _KEYWORD.match(text, position)
        assert match is not None, "every part of the pattern may be empty"
        if not match[2]:
            raise UsageError(
                f"word {len(pairs) + 1} of the libpq keywords is not NAME=VALUE",
                "Quote a value that has spaces: password='a b'. Write \\' and \\\\ for a quote and a backslash.",
            )
        value, position = _keyword_value(text, match.end())
        _set_parameter(pairs, match[1], value)
    return pairs


def _keyword_value(text: str, position: int) -> tuple[str, int]:
    """Parse the value at a position. Returns the value and the position after it. Raises UsageError."""
    is_toml_string = text.startswith("'", position)
    position += is_toml_string
    value = ""
    while position < len(text):
        if text[position] == "\\":
            value += text[position + 1 : position + 2]
            position += 2
        elif (is_toml_string and text[position] == "'") or (not is_toml_string and text[position] in _SPACE):
            return value, position + 1
        else:
            value += text[position]
            position += 1
    if is_toml_string:
        raise UsageError("a quote in the libpq keywords is not closed", "Write \\' for a quote in a value.")
    return value, position


# ---------------------------------------------------------------- pairs as an address


def build_target(form: str, pairs: Mapping[str, str]) -> ParsedTarget:
    """Build the target that the parameters of one source specify. Raises UsageError."""
    return _with_protocol(read_parameters(form, pairs.items(), PARAMETERS))


def _with_protocol(parsed: ParsedTarget) -> ParsedTarget:
    return replace(parsed, address=replace(parsed.address, protocol="postgresql"))


def parse_uri(uri: str) -> ParsedTarget:
    return build_target("libpq URI", uri_pairs(uri))


def parse_keywords(text: str) -> ParsedTarget:
    return build_target("libpq keywords", keyword_pairs(text))


def parse_environment(environment: Mapping[str, str]) -> ServerAddress:
    """Parse the server address in the environment. Raises UsageError."""
    pairs = {
        _ENVIRONMENT_PARAMETERS[name]: value for name, value in environment.items() if name in _ENVIRONMENT_PARAMETERS
    }
    return build_target("environment (PGHOST and so on)", pairs).address


def parse_service(source: str, text: str, service: str) -> ParsedTarget | None:
    """Parse a service's address and password in a service file; None if the file does not define the service. Raises UsageError.

    Only the first section of that name is parsed; in it, the first value of a parameter takes precedence.
    """
    pairs: dict[str, str] = {}
    in_section = False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(_SPACE)
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.startswith("["):
            if in_section:
                break
            in_section = stripped.startswith(f"[{service}]")
        elif in_section:
            name, equals, value = stripped.partition("=")
            if stripped.startswith("ldap"):
                raise UsageError(
                    f"{source}:{number}: LDAP is not supported", "Name host, port and dbname in the service."
                )
            if not equals:
                raise UsageError(f"{source}:{number} is not NAME=VALUE", "Correct that line.")
            if name in ("service", "servicefile"):
                raise UsageError(f"{source}:{number}: a service cannot name another one", "Correct that line.")
            pairs.setdefault(name, value)
    return build_target(f"service in {source}", pairs) if in_section else None


def with_fallback(address: ServerAddress, fallback: ServerAddress) -> ServerAddress:
    """Like `ServerAddress.with_fallback`, but host, hostaddr and port are each completed independently, as in libpq."""
    completed_fields = {
        name: getattr(fallback, name) for name in ("host", "hostaddr", "port") if getattr(address, name) is None
    } if address.socket is None else {}  # fmt: skip
    return replace(address.with_fallback(fallback), **completed_fields)


def complete(
    address: ServerAddress, os_user: str, root_cert: str | None, own_cert: tuple[str, str] | None = None
) -> ServerAddress:
    """Complete an address with libpq's defaults; a directory becomes the socket in it. `root_cert`, `own_cert`: the files in the
    user's ~/.postgresql, if any. Raises UsageError."""
    port = address.port or PORT
    user = address.user or os_user
    address = replace(address, user=user, database=address.database or user)
    mode = address.ssl_mode
    if address.channel_binding == "require" and mode in (None, "DISABLED", "PREFERRED"):
        if mode == "DISABLED":
            raise UsageError(
                "channel_binding=require needs TLS, and sslmode=disable forbids it", "Use sslmode=require."
            )
        mode = "REQUIRED"
    if address.ssl_ca == SYSTEM_CA:
        if mode not in (None, "VERIFY_IDENTITY"):
            raise UsageError(
                "sslrootcert=system trusts many authorities, so the name must be checked too",
                "Use sslmode=verify-full.",
            )
        mode = "VERIFY_IDENTITY"
    if mode in ("VERIFY_CA", "VERIFY_IDENTITY") and address.ssl_ca is None:
        if root_cert is None:
            raise UsageError(
                "sslmode=verify-… needs the CA that signed the server's certificate",
                "Add sslrootcert=FILE.pem, or sslrootcert=system for the authorities that this machine trusts.",
            )
        address = replace(address, ssl_ca=root_cert)
    if mode == "REQUIRED" and (authority := address.ssl_ca or root_cert) is not None:
        address, mode = replace(address, ssl_ca=authority), "VERIFY_CA"  # as libpq does
    if address.tls_direct and mode in (None, "DISABLED", "PREFERRED"):
        raise UsageError("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full", EXAMPLES)
    if address.ssl_cert is None and own_cert is not None and mode not in (None, "DISABLED"):
        address = replace(address, ssl_cert=own_cert[0], ssl_key=address.ssl_key or own_cert[1])
    elif address.ssl_cert == NO_FILE:
        address = replace(address, ssl_cert=None, ssl_key=None)
    return _with_socket(replace(address, ssl_mode=mode), port)


def _with_socket(address: ServerAddress, port: int) -> ServerAddress:
    """Set the host or, if the host is a directory, the socket in it. A hostaddr takes precedence; the host is then only a name."""
    if address.socket is not None:
        return address
    host = address.hostaddr or address.host or SOCKET_DIRECTORY
    if not host.startswith("/"):
        return replace(address, host=host if (address.host or "/").startswith("/") else address.host, port=port)
    return replace(
        address, host=None, hostaddr=None, port=port, socket=f"{host.rstrip('/')}/{SOCKET_NAME_PREFIX}{port}"
    )


def find_password(text: str, address: ServerAddress) -> Secret | None:
    """Find the password for a complete address in the text of a password file: the first line whose four fields match, else None."""
    directory = None if address.socket is None else address.socket.rpartition("/")[0]
    host = address.host if directory is None else "localhost" if directory == SOCKET_DIRECTORY else directory
    expected = (host, str(address.port or PORT), address.database, address.user)
    for line in text.splitlines():
        fields = _passfile_fields(line)
        if line.startswith("#") or len(fields) < 5:
            continue
        if all(field in ("*", value) for field, value in zip(fields, expected, strict=False)):
            return Secret(fields[4])
    return None


def _passfile_fields(line: str) -> list[str]:
    """Split a line at colons; a backslash escapes the next character."""
    fields, rest = [""], iter(line)
    for character in rest:
        if character == ":" and len(fields) < 5:
            fields.append("")
        else:
            fields[-1] += next(rest, "") if character == "\\" else character
    return fields


# ---------------------------------------------------------------- other programs' forms for PostgreSQL

_SSL_WORDS: Final = {
    "disable": PLAIN,
    "prefer": PREFERRED,
    "require": ENCRYPTED,
    "verifyca": ServerAddress(ssl_mode="VERIFY_CA"),
    "verifyfull": ServerAddress(ssl_mode="VERIFY_IDENTITY"),
}
_DRIVER_PARAMETERS: Final[dict[str, Parameter]] = {
    "ssl": choice(true=ENCRYPTED, false=PLAIN, **_SSL_WORDS),
    **ignored("timeout", "command_timeout", "connection_timeout", "pool_timeout", why=HAS_OWN_TIMEOUTS),
    **ignored("prepared_statement_cache_size", "prepared_statement_name_func", "statement_cache_size", "pgbouncer",
              "connection_limit", "pool", "prepare_threshold", "tcp_keepalive", "sslaccept"),
    "unix_sock": text_field("socket"),
    "direct_tls": choice(true=ServerAddress(tls_direct=True), false=ServerAddress(tls_direct=False)),
}  # fmt: skip
"""Parameters of SQLAlchemy's drivers (psycopg, asyncpg, pg8000), in addition to libpq's."""


def parse_sqlalchemy(form: str, parts: Mapping[str, str], query: Iterable[tuple[str, str]]) -> ParsedTarget:
    """Parse a URL `postgresql+driver://…` from the parts into which SQLAlchemy splits it. Raises UsageError."""
    keyword_by_part = {"host": "host", "port": "port", "user": "user", "password": "password", "database": "dbname"}
    pairs = [(keyword_by_part[name], value) for name, value in parts.items() if value]
    leading_pairs = len(pairs)
    for name, value in query:
        host, colon, port = value.rpartition(":")
        if name == "host" and colon and host and not value.startswith(("/", "[")) and port.isdigit():
            pairs += [("host", host), ("port", port)]
        else:
            pairs.append((name, value))
    table = {**PARAMETERS, **_DRIVER_PARAMETERS}
    return _with_protocol(read_parameters(form, pairs, table, leading_pairs=leading_pairs))


_SCHEMA_PARAMETER: Final = parsed_field("options", lambda value: f"-c search_path={value}")
JDBC_PARAMETERS: Final[dict[str, Parameter]] = {
    "user": text_field("user"),
    "password": password_field(),
    "ssl": choice(true=ServerAddress(ssl_mode="VERIFY_IDENTITY"), false=EMPTY_ADDRESS),
    "sslmode": PARAMETERS["sslmode"],
    "sslrootcert": text_field("ssl_ca"),
    "sslcert": text_field("ssl_cert"),
    "sslkey": text_field("ssl_key"),
    "sslNegotiation": PARAMETERS["sslnegotiation"],
    "sslpassword": PARAMETERS["sslpassword"],
    "sslfactory": choice(**{
        "org.postgresql.ssl.nonvalidatingfactory": ENCRYPTED,
        "org.postgresql.ssl.defaultjavasslfactory": VERIFIED,
        "org.postgresql.ssl.libpqfactory": EMPTY_ADDRESS,
    }),
    "channelBinding": PARAMETERS["channel_binding"],
    "options": text_field("options"),
    "currentSchema": _SCHEMA_PARAMETER,
    "service": text_field("service"),
    "targetServerType": Refused(_ROLE_NOT_CHECKED, _NAME_SERVER_ADVICE, exceptions=("any",)),
    "gssEncMode": Refused(_NO_GSSAPI, exceptions=("disable", "prefer", "allow")),
    "replication": PARAMETERS["replication"],
    "requireAuth": PARAMETERS["require_auth"],
    "socketFactory": Refused("Java's socket factories are not used", "Name host and port, or the socket's directory."),
    **ignored("connectTimeout", "socketTimeout", "loginTimeout", "cancelSignalTimeout", "sslResponseTimeout",
              "tcpKeepAlive", "tcpNoDelay", "hostRecheckSeconds", why=HAS_OWN_TIMEOUTS),
    **ignored("ApplicationName", "prepareThreshold", "binaryTransfer", "binaryTransferEnable", "binaryTransferDisable",
              "reWriteBatchedInserts", "stringtype", "readOnly", "readOnlyMode", "loadBalanceHosts",
              "defaultRowFetchSize", "preparedStatementCacheQueries", "preparedStatementCacheSizeMiB", "autosave",
              "escapeSyntaxCallMode", "assumeMinServerVersion", "disableColumnSanitiser", "logUnclosedConnections",
              "cleanupSavepoints", "preferQueryMode", "databaseMetadataCacheFields", "gsslib", "adaptiveFetch",
              "maxResultBuffer", "receiveBufferSize", "sendBufferSize", "loggerLevel", "loggerFile", "charSet",
              "allowEncodingChanges", "unknownLength", "groupStartupParameters", "quoteReturningIdentifiers"),
}  # fmt: skip
"""Properties of PostgreSQL's JDBC driver."""


def parse_jdbc(rest: str, query: Iterable[tuple[str, str]]) -> ParsedTarget:
    """Parse the text after `jdbc:postgresql:`, without its properties: `//host:port/db`, `//host/`, `/` or `db`. Raises
    UsageError."""
    parameters: dict[str, str] = {"host": "localhost"}
    if rest.startswith("//"):
        authority, _, database = rest[2:].partition("/")
        host, port = _jdbc_host(authority)
        parameters = {"host": host or "localhost", "port": port, "dbname": _decode(database)}
    elif rest != "/":
        parameters["dbname"] = _decode(rest)
    parsed = read_parameters("JDBC URL", parameters.items(), PARAMETERS)
    return _with_protocol(parsed.updated(read_parameters("JDBC URL", query, JDBC_PARAMETERS, str.lower)))


def _jdbc_host(authority: str) -> tuple[str, str]:
    if authority.startswith("["):
        host, _, rest = authority[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, port = authority.partition(":")
    return host, port


ADO_PARAMETERS: Final[dict[str, Parameter]] = {
    "host": PARAMETERS["host"],
    "server": PARAMETERS["host"],
    "port": PARAMETERS["port"],
    "database": text_field("database"),
    "db": text_field("database"),
    **{name: text_field("user") for name in ("username", "user name", "user id", "userid", "user", "uid")},
    **{name: password_field() for name in ("password", "pwd", "psw")},
    "passfile": text_field("passfile"),
    "ssl mode": choice(**_SSL_WORDS),
    "ssl negotiation": PARAMETERS["sslnegotiation"],
    "root certificate": text_field("ssl_ca"),
    "ssl certificate": text_field("ssl_cert"),
    "ssl key": text_field("ssl_key"),
    "ssl password": PARAMETERS["sslpassword"],
    "check certificate revocation": Refused("revocation lists are not checked", exceptions=("false",)),
    "channel binding": PARAMETERS["channel_binding"],
    "require auth": PARAMETERS["require_auth"],
    "search path": _SCHEMA_PARAMETER,
    "options": text_field("options"),
    "target session attributes": PARAMETERS["target_session_attrs"],
    "trust server certificate": Ignored("sslmode alone decides what is verified"),
    **ignored("timeout", "command timeout", "connection timeout", "keepalive", "tcp keepalive", "internal command timeout",
              "cancellation timeout", "connection idle lifetime", "connection lifetime", why=HAS_OWN_TIMEOUTS),
    **ignored("pooling", "minimum pool size", "maximum pool size", "application name", "enlist", "include error detail",
              "encoding", "client encoding", "timezone", "max auto prepare", "auto prepare min usages", "no reset on close",
              "persist security info", "log parameters", "multiplexing", "load balance hosts", "read buffer size",
              "write buffer size"),
}  # fmt: skip
"""Keywords of Npgsql."""


def parse_ado_net(pairs: Iterable[tuple[str, str]]) -> ParsedTarget:
    """Parse the pairs of `Host=h;Username=u;Password=p` as Npgsql does. Raises UsageError."""
    return _with_protocol(
        read_parameters("connection string", pairs, ADO_PARAMETERS, lambda name: name.lower().replace(" ", ""))
    )


def parse_pdo_dsn(pairs: Mapping[str, str]) -> ParsedTarget:
    """Parse the pairs of `pgsql:host=h;dbname=d`; PHP passes the keywords on to libpq. Raises UsageError."""
    return build_target("PDO DSN", pairs)
