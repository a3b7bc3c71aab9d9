"""Parses addresses of MySQL and MariaDB: `mysql://` and similar URLs, SQLAlchemy, JDBC, Go, PDO and connection strings. No I/O.

In each form, `localhost` means the same as in the programs that use the form: the socket with libmysqlclient, TCP with JDBC, Go and
PyMySQL. Programs that use `mysql://` differ (Node's drivers and Prisma: TCP; Rails, Django and PHP: the socket); here it means TCP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from howfar.address.parameters import (
    EMPTY_ADDRESS,
    ENCRYPTED,
    ESCAPING_ADVICE,
    HAS_OWN_TIMEOUTS,
    PLAIN,
    PREFERRED,
    VERIFIED,
    VERIFIED_CHAIN,
    Applied,
    Ignored,
    Parameter,
    Refused,
    choice,
    fold_name,
    ignored,
    parse_algorithm,
    parse_compression_level,
    parse_port,
    parse_ssl_mode,
    parse_ssl_object,
    parse_switch,
    parse_tls_versions,
    parsed_field,
    password_field,
    read_parameters,
    refused,
    text_field,
)
from howfar.address.server_address import ParsedTarget, Secret, ServerAddress
from howfar.errors import UsageError

SCHEMES: Final = ("mysql", "mariadb", "mysql2")
PORT: Final = 3306
EXAMPLES: Final = (
    "Examples: mysql://user@host:3306/db?ssl-mode=REQUIRED or mysql:///run/mysqld/mysqld.sock?user=u&db=d."
)
_LIBMYSQLCLIENT_DRIVERS: Final = ("mysqldb", "mariadbconnector")
"""SQLAlchemy's drivers for which the host localhost means the socket."""
_SEVERAL_SERVERS: Final = "several servers are named, and only one is measured"
_CHANGES_SESSION: Final = "it changes the session, and only the measurement's own statements are sent"
_KEY_STORE: Final = "Java's key stores are not read"
_COMPRESSION_SWITCH: Final = choice(true=ServerAddress(compression="zlib"), false=EMPTY_ADDRESS)


def parse_host(value: str) -> str:
    """Return the name or address of a single host. Raises ValueError for other characters, which may be part of a password."""
    if "," in value:
        raise ValueError(_SEVERAL_SERVERS)
    if not re.fullmatch(r"[\w.:%-]+", value):
        raise ValueError(
            "a host has letters, digits, dots and dashes; in a user or password write %40 for @ and %2F for /"
        )
    return value


_TLS_FILE_PARAMETERS: Final[dict[str, Parameter]] = {
    "ssl-ca": text_field("ssl_ca"),
    "ssl-cert": text_field("ssl_cert"),
    "ssl-key": text_field("ssl_key"),
    "ssl-cipher": text_field("ssl_cipher"),
}
_IGNORED_PARAMETERS: Final = {
    **ignored("charset", "encoding", "collation", "characterEncoding", "characterSetResults", "connectionCollation",
              "useUnicode", "parseTime", "loc", "timezone", "time-zone", "serverTimezone", "dateStrings"),
    **ignored("connect-timeout", "connection-timeout", "read-timeout", "write-timeout", "socket-timeout", "timeout",
              "acquire-timeout", "pool-timeout", "checkout-timeout", "wait-timeout", "reaping-frequency", why=HAS_OWN_TIMEOUTS),
    **ignored("pool", "pool-size", "connection-limit", "queue-limit", "wait-for-connections", "autoReconnect",
              "reconnect", "autocommit", "adapter", "prepared-statements", "multi-statements", "local-infile",
              "program-name", "binary-prefix", "cursorclass", "server-version", "driver", "flags", "debug", "trace",
              "support-big-numbers", "big-number-strings", "decimal-numbers", "strict", "engine", "prefix", "schema-name",
              "application-name", "use-unicode", "statement-cache-capacity", "socket-path-prefix", "keepalive"),
}  # fmt: skip
"""Parameters of drivers, Rails, Django, Laravel, Prisma and Node."""
URL_PARAMETERS: Final[dict[str, Parameter]] = {
    "user": text_field("user"),
    "username": text_field("user"),
    "password": password_field(),
    "passwd": password_field(),
    "pwd": password_field(),
    "db": text_field("database"),
    "database": text_field("database"),
    "socket": text_field("socket"),
    "unix-socket": text_field("socket"),
    "socket-path": text_field("socket"),
    "host": parsed_field("host", parse_host),
    "port": parsed_field("port", parse_port),
    "ssl-mode": parsed_field("ssl_mode", lambda value: _parse_driver_ssl_mode(value)),
    **_TLS_FILE_PARAMETERS,
    "tls-version": parsed_field("tls_versions", parse_tls_versions),
    "tls-versions": parsed_field("tls_versions", parse_tls_versions),
    "compression": parsed_field("compression", parse_algorithm),
    "compress": _COMPRESSION_SWITCH,
    "compression-level": parsed_field("compression_level", parse_compression_level),
    "get-server-public-key": parsed_field("fetch_server_key", parse_switch),
    "allow-public-key-retrieval": parsed_field("fetch_server_key", parse_switch),
    "allow-cleartext-password": parsed_field("allow_cleartext_password", parse_switch),
    "server-public-key-path": text_field("server_key_file"),
    "tls": choice(true=VERIFIED, false=PLAIN, skipverify=ENCRYPTED, preferred=PREFERRED),
    "ssl": Applied(parse_ssl_object),
    "use-ssl": choice(true=ENCRYPTED, false=PLAIN),
    "ssl-verify": choice(true=VERIFIED_CHAIN, false=EMPTY_ADDRESS),
    "ssl-verify-cert": choice(true=VERIFIED_CHAIN, false=EMPTY_ADDRESS),
    "ssl-verify-server-cert": choice(true=VERIFIED, false=EMPTY_ADDRESS),
    "ssl-verify-identity": choice(true=VERIFIED, false=EMPTY_ADDRESS),
    "ssl-check-hostname": choice(true=VERIFIED, false=EMPTY_ADDRESS),
    "ssl-disabled": choice(true=PLAIN, false=EMPTY_ADDRESS),
    "ssl-accept": choice(strict=VERIFIED, acceptinvalidcerts=ENCRYPTED),
    "sni": parsed_field("sni", parse_switch),
    **ignored("ssl-capath", why="only the file of ssl-ca is read"),
    **refused("ssl-crl", "ssl-crlpath", why="revocation lists are not checked"),
    **refused("sslidentity", "sslpassword", why="PKCS #12 files are not read",
              instead="Write ssl-cert=FILE and ssl-key=FILE, in PEM."),
    **refused("read-default-file", "defaults-file", why="a target does not name option files",
              instead="Use --defaults-file FILE."),
    "read-default-group": Refused("option files are read as the clients read them", "Use --defaults-file FILE."),
    **refused("init-command", "sql-mode", "variables", "isolation-level", "session-variables", why=_CHANGES_SESSION),
    "client-flag": Refused("howfar chooses the flags of the protocol", "Write compression=zlib for compression."),
    "default-auth": Ignored("the server and the account decide how to log in"),
    "auth-plugin": Ignored("the server and the account decide how to log in"),
    **_IGNORED_PARAMETERS,
}  # fmt: skip
"""Parameters of `mysql://`, by howfar's own names and those of drivers."""


def _parse_driver_ssl_mode(value: str) -> str:
    """Parse a TLS mode by MySQL's name or a driver's. Raises ValueError."""
    driver_modes = {
        "true": "REQUIRED",
        "false": "DISABLED",
        "require": "REQUIRED",
        "disable": "DISABLED",
        "prefer": "PREFERRED",
        "verify-full": "VERIFY_IDENTITY",
        "trust": "REQUIRED",
        "none": "DISABLED",
    }
    return driver_modes.get(value.lower()) or parse_ssl_mode(value)


def split_authority(form: str, rest: str) -> tuple[dict[str, str], str, str, str]:
    """Split what follows `://` into user and password, host with port, path, and query. Raises UsageError."""
    if "#" in rest:
        raise UsageError(f"the {form} contains a #, which ends a URL", "Write %23 for the character itself.")
    authority, path, query = _split_path(rest)
    account, at, host_port = authority.rpartition("@")
    if not at and ":" in authority.rpartition("]")[2] and "@" in path + query:
        raise UsageError(
            f"the {form} has an @ behind its host: the password seems to have a / or ? in it", ESCAPING_ADVICE
        )
    if at and "@" in path:
        raise UsageError(f"the {form} has an @ behind its host: the password seems to have an @ in it", ESCAPING_ADVICE)
    user, colon, password = account.partition(":")
    login = {"user": unquote(user)} if user else {}
    return login | ({"password": unquote(password)} if colon else {}), host_port, path, query


def _split_path(rest: str) -> tuple[str, str, str]:
    match = re.match(r"([^/?]*)(/[^?]*)?(?:\?(.*))?$", rest, re.DOTALL)
    assert match is not None, "every part may be missing"
    return match[1], match[2] or "", match[3] or ""


def split_host(form: str, host_port: str, port: int) -> tuple[str | None, int | None]:
    """Split host and port, each None if it is missing. Raises UsageError, whose message repeats neither."""
    if "," in host_port or host_port.startswith("("):
        raise UsageError(f"{_SEVERAL_SERVERS} by this {form}", "Name the one that you mean, as HOST:PORT.")
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%(?:25)?[\w.-]+)?)\]|([^:\[\]]*))(?::(\d*))?", host_port)
    if match is None:
        raise UsageError(
            f"the {form} cannot be read: its host or port is malformed",
            f"Its port is usually {port}. {ESCAPING_ADVICE}",
        )
    host = unquote(match[1] or match[2])
    try:
        return (parse_host(host) if host else None), (parse_port(match[3]) if match[3] else None)
    except ValueError as error:
        raise UsageError(f"the {form} cannot be read: {error}", ESCAPING_ADVICE) from None


def query_pairs(query: str, plus_is_space: bool = False) -> list[tuple[str, str]]:
    """Parse the names and values of a query; a name without `=` has an empty value."""
    if plus_is_space:
        query = query.replace("+", " ")
    parts = (part.partition("=") for part in query.split("&") if part)
    return [(unquote(name), unquote(value)) for name, _, value in parts]


def _with_protocol(parsed: ParsedTarget) -> ParsedTarget:
    """Set the protocol of a target to MySQL's; a socket takes precedence over a host, as in all drivers."""
    address, notes = replace(parsed.address, protocol="mysql"), list(parsed.notes)
    if address.socket is not None and (address.host or address.port):
        notes.append("the socket is used, and the host is ignored, as in the programs that accept both")
        address = replace(address, host=None, port=None)
    if address.socket is None and address.host in (None, "localhost"):
        notes.append(_describe_localhost(parsed.form, address))
    return replace(parsed, address=address, notes=tuple(notes))


def _with_libmysqlclient_socket(parsed: ParsedTarget) -> ParsedTarget:
    """Complete the target of a program that uses libmysqlclient: localhost means the socket."""
    address = parsed.address
    if address.socket is None and address.host in (None, "localhost"):
        parsed = replace(parsed, address=replace(address, localhost_is_socket=True))
    return _with_protocol(parsed)


def _describe_localhost(form: str, address: ServerAddress) -> str:
    subject = "localhost" if address.host else "no host"
    if address.localhost_is_socket:
        ignored_port = f"; port {address.port} is ignored" if address.port is not None else ""
        return f"{subject} means the server's socket, as in the programs that use this form{ignored_port}"
    return f"{subject} means TCP to this machine ({form}); name the socket's path to use the socket"


def parse_url(url: str) -> ParsedTarget:
    """Parse `mysql://user:password@host:port/db?name=value`, `mysql:///path/of.sock?user=u` or `mysql:///db`. Raises UsageError."""
    form = "MySQL URL"
    account, host_port, path, query = split_authority(form, url.partition("://")[2])
    host, port = split_host(form, host_port, PORT)
    parameters = [
        *account.items(),
        *((name, value) for name, value in (("host", host), ("port", port and str(port))) if value),
    ]
    path = unquote(path)
    socket_parameters = {fold_name(name) for name, _ in query_pairs(query)} & {"socket", "unixsocket", "socketpath"}
    if host is None and _is_socket(path) and not socket_parameters:
        parameters.append(("socket", path))
    elif path.strip("/"):
        parameters.append(("db", path.strip("/")))
    return _with_protocol(
        read_parameters(form, [*parameters, *query_pairs(query)], URL_PARAMETERS, fold_name, len(parameters))
    )


def _is_socket(path: str) -> bool:
    """Whether the path of a URL without a host names a socket; a single name is a database."""
    return "/" in path.strip("/") or path.endswith(".sock")


def parse_sqlalchemy(
    form: str, driver: str, parts: Mapping[str, str], query: Iterable[tuple[str, str]]
) -> ParsedTarget:
    """Parse a URL `mysql+driver://…` from the parts into which SQLAlchemy splits it. Raises UsageError."""
    parameters = [(name, value) for name, value in parts.items() if value]
    parsed = read_parameters(form, [*parameters, *query], URL_PARAMETERS, fold_name)
    return _with_libmysqlclient_socket(parsed) if driver in _LIBMYSQLCLIENT_DRIVERS else _with_protocol(parsed)


# ---------------------------------------------------------------- JDBC

_JDBC_PARAMETERS: Final[dict[str, Parameter]] = {
    "user": text_field("user"),
    "password": password_field(),
    "useSSL": choice(true=ENCRYPTED, false=PLAIN),
    "requireSSL": choice(true=ENCRYPTED, false=EMPTY_ADDRESS),
    "allowPublicKeyRetrieval": parsed_field("fetch_server_key", parse_switch),
    "useCompression": _COMPRESSION_SWITCH,
    "tlsVersions": parsed_field("tls_versions", parse_tls_versions),
    "enabledTLSProtocols": parsed_field("tls_versions", parse_tls_versions),
    "enabledSslProtocolSuites": parsed_field("tls_versions", parse_tls_versions),
    "serverRSAPublicKeyFile": text_field("server_key_file"),
    "serverRsaPublicKeyFile": text_field("server_key_file"),
    "sessionVariables": Refused(_CHANGES_SESSION),
    "initSQL": Refused(_CHANGES_SESSION),
    "connectionCollation": Ignored(),
    "socketFactory": Refused("Java's socket factories are not used", "Name host and port, or mysql:///PATH/OF.sock."),
    **ignored("connectTimeout", "socketTimeout", "tcpKeepAlive", "tcpNoDelay", "tcpRcvBuf", "tcpSndBuf", "maxReconnects",
              "initialTimeout", "netTimeoutForStreamingResults", why=HAS_OWN_TIMEOUTS),
    **ignored("useUnicode", "characterEncoding", "characterSetResults", "serverTimezone", "connectionTimeZone",
              "forceConnectionTimeZoneToSession", "preserveInstants", "autoReconnect", "zeroDateTimeBehavior",
              "rewriteBatchedStatements", "cachePrepStmts", "prepStmtCacheSize", "prepStmtCacheSqlLimit",
              "useServerPrepStmts", "useLocalSessionState", "cacheResultSetMetadata", "cacheServerConfiguration",
              "elideSetAutoCommits", "maintainTimeStats", "allowMultiQueries", "tinyInt1isBit", "yearIsDateType",
              "useLegacyDatetimeCode", "nullCatalogMeansCurrent", "useInformationSchema", "createDatabaseIfNotExist",
              "failOverReadOnly", "allowLoadLocalInfile", "defaultFetchSize", "useCursorFetch", "noAccessToProcedureBodies",
              "useOldAliasMetadataBehavior", "connectionAttributes", "logger", "profileSQL", "useAffectedRows",
              "jdbcCompliantTruncation", "autocommit", "useBulkStmts", "pool", "maxPoolSize", "minPoolSize", "timezone",
              "defaultAuthenticationPlugin", "authenticationPlugins", "permitMysqlScheme", "transformedBitIsBoolean",
              "sslFactory", "applicationName"),
    **refused("trustCertificateKeyStoreUrl", "trustCertificateKeyStorePassword", "trustCertificateKeyStoreType",
              "trustStore", "trustStorePassword", "trustStoreType", why=_KEY_STORE,
              instead="Export the authority as PEM, and write a mysql:// URL with ssl-ca=FILE."),
    **refused("clientCertificateKeyStoreUrl", "clientCertificateKeyStorePassword", "clientCertificateKeyStoreType",
              "keyStore", "keyStorePassword", "keyPassword", "keyStoreType", why=_KEY_STORE,
              instead="Export certificate and key as PEM, and write a mysql:// URL with ssl-cert=FILE and ssl-key=FILE."),
    **refused("password1", "password2", "password3", why="logins with several factors are not supported"),
}  # fmt: skip
_CONNECTOR_J_PARAMETERS: Final[dict[str, Parameter]] = {
    **_JDBC_PARAMETERS,
    "sslMode": choice(
        disabled=PLAIN, preferred=PREFERRED, required=ENCRYPTED, verifyca=VERIFIED_CHAIN, verifyidentity=VERIFIED
    ),
    "verifyServerCertificate": choice(true=VERIFIED_CHAIN, false=EMPTY_ADDRESS),
    "fallbackToSystemTrustStore": Ignored("the authorities of this machine are trusted"),
}
_MARIADB_J_PARAMETERS: Final[dict[str, Parameter]] = {
    **_JDBC_PARAMETERS,
    "sslMode": choice(disable=PLAIN, trust=ENCRYPTED, verifyca=VERIFIED_CHAIN, verifyfull=VERIFIED,
                       required=ENCRYPTED, disabled=PLAIN, verifyidentity=VERIFIED),
    "useSsl": choice(true=VERIFIED, false=PLAIN),
    "useSSL": choice(true=VERIFIED, false=PLAIN),
    "trustServerCertificate": choice(true=EMPTY_ADDRESS, false=EMPTY_ADDRESS),
    "disableSslHostnameVerification": choice(true=EMPTY_ADDRESS, false=EMPTY_ADDRESS),
    "serverSslCert": text_field("ssl_ca"),
    "enabledSslCipherSuites": text_field("ssl_cipher"),
    "localSocket": text_field("socket"),
    "pipe": Refused("named pipes belong to Windows", "Name host and port."),
    "credentialType": Refused("credentials of a cloud's account are not fetched"),
}  # fmt: skip
_JDBC_MODES_OF_SEVERAL_SERVERS: Final = (
    "loadbalance",
    "replication",
    "failover",
    "sequential",
    "load-balance",
    "aurora",
    "fabric",
)


def parse_jdbc(product: str, rest: str) -> ParsedTarget:
    """Parse what follows `jdbc:mysql:` or `jdbc:mariadb:`. Raises UsageError."""
    form = "JDBC URL"
    mode, slashes, rest = rest.partition("//")
    if not slashes or mode:
        is_known = mode.rstrip(":").lower() in _JDBC_MODES_OF_SEVERAL_SERVERS
        reason = _SEVERAL_SERVERS if is_known else "what stands before // is not known"
        raise UsageError(f"the {form} is not supported: {reason}", "Write jdbc:mysql://HOST:PORT/DATABASE?user=USER.")
    account, host_port, path, query = split_authority(form, rest)
    host, port = split_host(form, host_port, PORT)
    parameters = {
        **account,
        "host": host or "localhost",
        "port": port and str(port),
        "db": unquote(path).strip("/"),
    }
    parsed = read_parameters(
        form, [(name, value) for name, value in parameters.items() if value], URL_PARAMETERS, fold_name
    )
    table = _MARIADB_J_PARAMETERS if product == "mariadb" else _CONNECTOR_J_PARAMETERS
    properties = read_parameters(form, query_pairs(query), table, str.lower)
    parsed = parsed.updated(properties)
    if product == "mariadb" and properties.address.ssl_mode == "VERIFY_IDENTITY":
        enabled_names = {name.lower() for name, value in query_pairs(query) if value.lower() in ("true", "1")}
        if "trustservercertificate" in enabled_names:
            parsed = replace(parsed, address=replace(parsed.address, ssl_mode="REQUIRED"))
        elif "disablesslhostnameverification" in enabled_names:
            parsed = replace(parsed, address=replace(parsed.address, ssl_mode="VERIFY_CA"))
    return _with_protocol(parsed)


# ---------------------------------------------------------------- Go

_GO_PARAMETERS: Final[dict[str, Parameter]] = {
    "tls": choice(true=VERIFIED, false=PLAIN, skipverify=ENCRYPTED, preferred=PREFERRED),
    "allowCleartextPasswords": parsed_field("allow_cleartext_password", parse_switch),
    "compress": _COMPRESSION_SWITCH,
    "serverPubKey": Refused("its value names a key that the program has registered",
                            "Write a mysql:// URL with server-public-key-path=FILE."),
    **ignored("timeout", "readTimeout", "writeTimeout", why=HAS_OWN_TIMEOUTS),
    **ignored("allowAllFiles", "allowFallbackToPlaintext", "allowNativePasswords", "allowOldPasswords", "charset",
              "checkConnLiveness", "collation", "clientFoundRows", "columnsWithAlias", "connectionAttributes",
              "interpolateParams", "loc", "timeTruncate", "maxAllowedPacket", "multiStatements", "parseTime",
              "rejectReadOnly", "strict"),
}  # fmt: skip
"""Parameters of go-sql-driver; it sets parameters of other names as system variables."""
GO_DSN_PATTERN: Final = re.compile(
    r"(?:^|@)(?:tcp[46]?|unix|cloudsql|cloudsql-mysql)?(?:\([^()]*\))?/[^/@]*$|(?:^|@)(?:tcp[46]?|unix)\("
)


def parse_go_dsn(dsn: str) -> ParsedTarget:
    """Parse `user:password@tcp(host:port)/db?name=value` as go-sql-driver does: from the last slash. Raises UsageError."""
    form = "Go DSN"
    account_and_network, slash, database_and_query = dsn.rpartition("/")
    if not slash:
        raise UsageError("the Go DSN has no / before the name of the database", "Write USER@tcp(HOST:PORT)/DATABASE.")
    account, at, network = account_and_network.rpartition("@")
    user, colon, password = account.partition(":")
    protocol, parenthesis, endpoint = network.partition("(")
    if parenthesis and not endpoint.endswith(")"):
        raise UsageError("the Go DSN has an address without its closing bracket", "Write USER@tcp(HOST:PORT)/DATABASE.")
    endpoint = endpoint.removesuffix(")")
    if protocol in ("", "tcp", "tcp4", "tcp6"):
        host, port = split_host(form, endpoint, PORT)
        address = ServerAddress(host=host or "127.0.0.1", port=port)
    elif protocol == "unix":
        address = ServerAddress(socket=endpoint or "/tmp/mysql.sock")
    else:
        raise UsageError("the network of the Go DSN is not supported", "Write tcp(HOST:PORT) or unix(PATH).")
    database, _, query = database_and_query.partition("?")
    if "@" in database:
        raise UsageError("the Go DSN has an @ behind its last /", "Write %40 for an @ in the name of the database.")
    address = replace(address, user=user or None, database=unquote(database) or None)
    try:
        properties = read_parameters(form, query_pairs(query), _GO_PARAMETERS)
    except UsageError as error:
        if "is not known" in error.message:
            error.advice = f"The driver would set a system variable of this name: {_CHANGES_SESSION}. {error.advice}"
        raise
    return _with_protocol(ParsedTarget(address, Secret(password) if colon and at else None, form).updated(properties))


# ---------------------------------------------------------------- pairs

ADO_PARAMETERS: Final[dict[str, Parameter]] = {
    **{name: parsed_field("host", parse_host) for name in ("server", "host", "data source", "datasource", "address", "addr",
                                                 "network address")},
    "port": parsed_field("port", parse_port),
    **{name: text_field("user") for name in ("user", "uid", "user id", "userid", "username", "user name")},
    **{name: password_field() for name in ("password", "pwd")},
    **{name: text_field("database") for name in ("database", "initial catalog")},
    "ssl mode": choice(none=PLAIN, disabled=PLAIN, preferred=PREFERRED, required=ENCRYPTED, verifyca=VERIFIED_CHAIN,
                        verifyfull=VERIFIED),
    "ssl ca": text_field("ssl_ca"),
    "ca certificate file": text_field("ssl_ca"),
    "cacertificatefile": text_field("ssl_ca"),
    "ssl cert": text_field("ssl_cert"),
    "ssl key": text_field("ssl_key"),
    "tls version": parsed_field("tls_versions", lambda value: parse_tls_versions(value.replace("TLS ", "TLS"))),
    "use compression": _COMPRESSION_SWITCH,
    "compress": _COMPRESSION_SWITCH,
    "allow public key retrieval": parsed_field("fetch_server_key", parse_switch),
    "server rsa public key file": text_field("server_key_file"),
    "protocol": Ignored("host or socket decides"),
    **refused("certificate file", "certificate password", "certificate store location", "certificate thumbprint",
              why="PKCS #12 files are not read", instead="Write SslCert=FILE and SslKey=FILE, in PEM."),
    **ignored("connection timeout", "connect timeout", "default command timeout", "command timeout", "keepalive",
              "connection lifetime", "connection idle timeout", why=HAS_OWN_TIMEOUTS),
    **ignored("pooling", "minimum pool size", "maximum pool size", "min pool size", "max pool size", "charset",
              "character set", "convert zero datetime", "allow zero datetime", "allow user variables", "old guids",
              "persist security info", "application name", "treat tiny as boolean", "guid format", "auto enlist",
              "connection reset", "ignore prepare", "use affected rows", "use xa transactions", "date time kind",
              "allow load local infile", "default authentication plugin", "integrated security"),
}  # fmt: skip
"""Keywords of MySqlConnector and Connector/NET."""
_PDO_PARAMETERS: Final[dict[str, Parameter]] = {
    "host": parsed_field("host", parse_host),
    "port": parsed_field("port", parse_port),
    "dbname": text_field("database"),
    "unix_socket": text_field("socket"),
    "user": text_field("user"),
    "password": password_field(),
    "charset": Ignored(),
}


def parse_ado_net(pairs: Iterable[tuple[str, str]]) -> ParsedTarget:
    """Parse the pairs of `Server=h;Uid=u;Pwd=p`. Raises UsageError."""
    parsed = read_parameters("connection string", pairs, ADO_PARAMETERS, lambda name: name.lower().replace(" ", ""))
    if (parsed.address.host or "").startswith("/"):
        parsed = replace(parsed, address=replace(parsed.address, host=None, socket=parsed.address.host))
    return _with_protocol(parsed)


def parse_pdo_dsn(pairs: Mapping[str, str]) -> ParsedTarget:
    """Parse the pairs of `mysql:host=h;dbname=d`; without a host, or with localhost, PHP uses the socket. Raises UsageError."""
    return _with_libmysqlclient_socket(read_parameters("PDO DSN", pairs.items(), _PDO_PARAMETERS))
