"""Forms for MySQL and MariaDB: `mysql://` and its relatives, SQLAlchemy, JDBC, Go, PDO and connection strings. No I/O.

`localhost` means what it means to the programs that use a form: the socket with libmysqlclient, TCP with JDBC, Go and PyMySQL. Users
of `mysql://` differ (Node's drivers and Prisma: TCP; Rails, Django and PHP: the socket), so there it means TCP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from howfar.address.parameters import (
    ENCRYPTED,
    IN_PASSWORD,
    NOTHING,
    OWN_TIMEOUTS,
    PLAIN,
    PREFERRED,
    VERIFIED,
    VERIFIED_CHAIN,
    Applied,
    Ignored,
    Parameter,
    Refused,
    by_word,
    decode_url_text,
    ignored,
    parse_algorithm,
    parse_level,
    parse_port,
    parse_switch,
    read_parameters,
    reads,
    refused,
    secret,
    ssl_mode,
    ssl_object,
    text,
    tls_versions,
)
from howfar.address.server_address import ParsedTarget, Secret, ServerAddress
from howfar.errors import UsageError

SCHEMES: Final = ("mysql", "mariadb", "mysql2")
PORT: Final = 3306
EXAMPLES: Final = (
    "Examples: mysql://user@host:3306/db?ssl-mode=REQUIRED or mysql:///run/mysqld/mysqld.sock?user=u&db=d."
)
_ON_LIBMYSQLCLIENT: Final = ("mysqldb", "mariadbconnector")
"""SQLAlchemy's drivers that use the socket if the host is localhost."""
_SEVERAL: Final = "several servers are named, and one is measured"
_STATEMENTS: Final = "it changes the session, and no statement but those of the measurement is sent"
_KEY_STORE: Final = "Java's key stores are not read"
_COMPRESS: Final = by_word(true=ServerAddress(compression="zlib"), false=NOTHING)


def host_of(value: str) -> str:
    """A name or address. Raises ValueError; a host with other characters may be a part of a password."""
    if "," in value:
        raise ValueError(_SEVERAL)
    if not re.fullmatch(r"[\w.:%-]+", value):
        raise ValueError(
            "a host has letters, digits, dots and dashes; in a user or password write %40 for @ and %2F for /"
        )
    return value


_FILES: Final[dict[str, Parameter]] = {
    "ssl-ca": text("ssl_ca"),
    "ssl-cert": text("ssl_cert"),
    "ssl-key": text("ssl_key"),
    "ssl-cipher": text("ssl_cipher"),
}
_IGNORED: Final = {
    **ignored("charset", "encoding", "collation", "characterEncoding", "characterSetResults", "connectionCollation",
              "useUnicode", "parseTime", "loc", "timezone", "time-zone", "serverTimezone", "dateStrings"),
    **ignored("connect-timeout", "connection-timeout", "read-timeout", "write-timeout", "socket-timeout", "timeout",
              "acquire-timeout", "pool-timeout", "checkout-timeout", "wait-timeout", "reaping-frequency", why=OWN_TIMEOUTS),
    **ignored("pool", "pool-size", "connection-limit", "queue-limit", "wait-for-connections", "autoReconnect",
              "reconnect", "autocommit", "adapter", "prepared-statements", "multi-statements", "local-infile",
              "program-name", "binary-prefix", "cursorclass", "server-version", "driver", "flags", "debug", "trace",
              "support-big-numbers", "big-number-strings", "decimal-numbers", "strict", "engine", "prefix", "schema-name",
              "application-name", "use-unicode", "statement-cache-capacity", "socket-path-prefix", "keepalive"),
}  # fmt: skip
"""Parameters of drivers, Rails, Django, Laravel, Prisma and Node."""
URL: Final[dict[str, Parameter]] = {
    "user": text("user"),
    "username": text("user"),
    "password": secret(),
    "passwd": secret(),
    "pwd": secret(),
    "db": text("database"),
    "database": text("database"),
    "socket": text("socket"),
    "unix-socket": text("socket"),
    "socket-path": text("socket"),
    "host": reads("host", host_of),
    "port": reads("port", parse_port),
    "ssl-mode": reads("ssl_mode", lambda value: _parse_mode(value)),
    **_FILES,
    "tls-version": reads("tls_versions", tls_versions),
    "tls-versions": reads("tls_versions", tls_versions),
    "compression": reads("compression", parse_algorithm),
    "compress": _COMPRESS,
    "compression-level": reads("compression_level", parse_level),
    "get-server-public-key": reads("fetch_server_key", parse_switch),
    "allow-public-key-retrieval": reads("fetch_server_key", parse_switch),
    "allow-cleartext-password": reads("allow_cleartext_password", parse_switch),
    "server-public-key-path": text("server_key_file"),
    "tls": by_word(true=VERIFIED, false=PLAIN, skipverify=ENCRYPTED, preferred=PREFERRED),
    "ssl": Applied(ssl_object),
    "use-ssl": by_word(true=ENCRYPTED, false=PLAIN),
    "ssl-verify": by_word(true=VERIFIED_CHAIN, false=NOTHING),
    "ssl-verify-cert": by_word(true=VERIFIED_CHAIN, false=NOTHING),
    "ssl-verify-server-cert": by_word(true=VERIFIED, false=NOTHING),
    "ssl-verify-identity": by_word(true=VERIFIED, false=NOTHING),
    "ssl-check-hostname": by_word(true=VERIFIED, false=NOTHING),
    "ssl-disabled": by_word(true=PLAIN, false=NOTHING),
    "ssl-accept": by_word(strict=VERIFIED, acceptinvalidcerts=ENCRYPTED),
    "sni": reads("sni", parse_switch),
    **ignored("ssl-capath", why="the file of ssl-ca is read alone"),
    **refused("ssl-crl", "ssl-crlpath", why="revocation lists are not checked"),
    **refused("sslidentity", "sslpassword", why="PKCS #12 files are not read",
              instead="Write ssl-cert=FILE and ssl-key=FILE, in PEM."),
    **refused("read-default-file", "defaults-file", why="a target does not name option files",
              instead="Use --defaults-file FILE."),
    "read-default-group": Refused("option files are read as the clients read them", "Use --defaults-file FILE."),
    **refused("init-command", "sql-mode", "variables", "isolation-level", "session-variables", why=_STATEMENTS),
    "client-flag": Refused("flags of the protocol are chosen here", "Write compression=zlib for compression."),
    "default-auth": Ignored("the server and the account decide how to log in"),
    "auth-plugin": Ignored("the server and the account decide how to log in"),
    **_IGNORED,
}  # fmt: skip
"""Parameters of `mysql://`, by howfar's own names and those of drivers."""


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _parse_mode(value: str) -> str:
    words = {
        "true": "REQUIRED",
        "false": "DISABLED",
        "require": "REQUIRED",
        "disable": "DISABLED",
        "prefer": "PREFERRED",
    }
    words |= {"verify-full": "VERIFY_IDENTITY", "trust": "REQUIRED", "none": "DISABLED"}
    return words.get(value.lower()) or ssl_mode(value)


def split_authority(form: str, rest: str) -> tuple[dict[str, str], str, str, str]:
    """Split what follows `://` into user and password, host with port, path, and query. Raises UsageError."""
    if "#" in rest:
        raise UsageError(f"the {form} contains a #, which ends a URL", "Write %23 for the character itself.")
    authority, path, query = _split_path(rest)
    account, at, host_port = authority.rpartition("@")
    if not at and ":" in authority.rpartition("]")[2] and "@" in path + query:
        raise UsageError(f"the {form} has an @ behind its host: the password seems to have a / or ? in it", IN_PASSWORD)
    if at and "@" in path:
        raise UsageError(f"the {form} has an @ behind its host: the password seems to have an @ in it", IN_PASSWORD)
    user, colon, password = account.partition(":")
    login = {"user": decode_url_text(user)} if user else {}
    return login | ({"password": decode_url_text(password)} if colon else {}), host_port, path, query


def _split_path(rest: str) -> tuple[str, str, str]:
    match = re.match(r"([^/?]*)(/[^?]*)?(?:\?(.*))?$", rest, re.DOTALL)
    assert match is not None, "every part may be missing"
    return match[1], match[2] or "", match[3] or ""


def split_host(form: str, host_port: str, port: int) -> tuple[str | None, int | None]:
    """Host and port, each None if it is missing. Raises UsageError, whose message repeats neither."""
    if "," in host_port or host_port.startswith("("):
        raise UsageError(f"{_SEVERAL} by this {form}", "Name the one that you mean, as HOST:PORT.")
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%(?:25)?[\w.-]+)?)\]|([^:\[\]]*))(?::(\d*))?", host_port)
    if match is None:
        raise UsageError(
            f"the {form} cannot be read: its host or port is malformed", f"Its port is usually {port}. {IN_PASSWORD}"
        )
    host = decode_url_text(match[1] or match[2])
    try:
        return (host_of(host) if host else None), (parse_port(match[3]) if match[3] else None)
    except ValueError as error:
        raise UsageError(f"the {form} cannot be read: {error}", IN_PASSWORD) from None


def query_pairs(query: str, plus_is_space: bool = False) -> list[tuple[str, str]]:
    """Names and values of a query; a name alone has an empty value."""
    if plus_is_space:
        query = query.replace("+", " ")
    parts = (part.partition("=") for part in query.split("&") if part)
    return [(decode_url_text(name), decode_url_text(value)) for name, _, value in parts]


def _with_protocol(parsed: ParsedTarget) -> ParsedTarget:
    """The target as a server of MySQL; a socket takes precedence over a host, as in all drivers."""
    address, notes = replace(parsed.address, protocol="mysql"), list(parsed.notes)
    if address.socket is not None and (address.host or address.port):
        notes.append("the socket is used, and the host is ignored, as in the programs that accept both")
        address = replace(address, host=None, port=None)
    if address.socket is None and address.host in (None, "localhost"):
        notes.append(_describe_localhost(parsed.form, address))
    return replace(parsed, address=address, notes=tuple(notes))


def _by_libmysqlclient(parsed: ParsedTarget) -> ParsedTarget:
    """The target for a program that uses libmysqlclient."""
    address = parsed.address
    if address.socket is None and address.host in (None, "localhost"):
        parsed = replace(parsed, address=replace(address, localhost_is_socket=True))
    return _with_protocol(parsed)


def _describe_localhost(form: str, address: ServerAddress) -> str:
    subject = "localhost" if address.host else "no host"
    if address.localhost_is_socket:
        ignored_port = f"; port {address.port} is ignored" if address.port is not None else ""
        return f"{subject} means the server's socket, as in the program that owns this form{ignored_port}"
    return f"{subject} means TCP to this machine ({form}); name the socket's path to use the socket"


def parse_url(url: str) -> ParsedTarget:
    """`mysql://user:password@host:port/db?name=value`, `mysql:///path/of.sock?user=u&db=d`, or `mysql:///db`. Raises UsageError."""
    form = "MySQL URL"
    account, host_port, path, query = split_authority(form, url.partition("://")[2])
    host, port = split_host(form, host_port, PORT)
    parameters = [
        *account.items(),
        *((name, value) for name, value in (("host", host), ("port", port and str(port))) if value),
    ]
    path = decode_url_text(path)
    by_parameter = {_fold(name) for name, _ in query_pairs(query)} & {"socket", "unixsocket", "socketpath"}
    if host is None and _is_socket(path) and not by_parameter:
        parameters.append(("socket", path))
    elif path.strip("/"):
        parameters.append(("db", path.strip("/")))
    return _with_protocol(read_parameters(form, [*parameters, *query_pairs(query)], URL, _fold, len(parameters)))


def _is_socket(path: str) -> bool:
    """Whether the path of a URL without a host is that of a socket; a single name is a database."""
    return "/" in path.strip("/") or path.endswith(".sock")


def parse_sqlalchemy(
    form: str, driver: str, parts: Mapping[str, str], query: Iterable[tuple[str, str]]
) -> ParsedTarget:
    """A URL `mysql+driver://…`, split as SQLAlchemy splits it."""
    parameters = [(name, value) for name, value in parts.items() if value]
    parsed = read_parameters(form, [*parameters, *query], URL, _fold)
    return _by_libmysqlclient(parsed) if driver in _ON_LIBMYSQLCLIENT else _with_protocol(parsed)


# ---------------------------------------------------------------- JDBC

_JDBC_COMMON: Final[dict[str, Parameter]] = {
    "user": text("user"),
    "password": secret(),
    "useSSL": by_word(true=ENCRYPTED, false=PLAIN),
    "requireSSL": by_word(true=ENCRYPTED, false=NOTHING),
    "allowPublicKeyRetrieval": reads("fetch_server_key", parse_switch),
    "useCompression": _COMPRESS,
    "tlsVersions": reads("tls_versions", tls_versions),
    "enabledTLSProtocols": reads("tls_versions", tls_versions),
    "enabledSslProtocolSuites": reads("tls_versions", tls_versions),
    "serverRSAPublicKeyFile": text("server_key_file"),
    "serverRsaPublicKeyFile": text("server_key_file"),
    "sessionVariables": Refused(_STATEMENTS),
    "initSQL": Refused(_STATEMENTS),
    "connectionCollation": Ignored(),
    "socketFactory": Refused("Java's socket factories are not used", "Name host and port, or mysql:///PATH/OF.sock."),
    **ignored("connectTimeout", "socketTimeout", "tcpKeepAlive", "tcpNoDelay", "tcpRcvBuf", "tcpSndBuf", "maxReconnects",
              "initialTimeout", "netTimeoutForStreamingResults", why=OWN_TIMEOUTS),
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
_CONNECTOR_J: Final[dict[str, Parameter]] = {
    **_JDBC_COMMON,
    "sslMode": by_word(
        disabled=PLAIN, preferred=PREFERRED, required=ENCRYPTED, verifyca=VERIFIED_CHAIN, verifyidentity=VERIFIED
    ),
    "verifyServerCertificate": by_word(true=VERIFIED_CHAIN, false=NOTHING),
    "fallbackToSystemTrustStore": Ignored("the authorities of this machine are trusted"),
}
_MARIADB_J: Final[dict[str, Parameter]] = {
    **_JDBC_COMMON,
    "sslMode": by_word(disable=PLAIN, trust=ENCRYPTED, verifyca=VERIFIED_CHAIN, verifyfull=VERIFIED,
                       required=ENCRYPTED, disabled=PLAIN, verifyidentity=VERIFIED),
    "useSsl": by_word(true=VERIFIED, false=PLAIN),
    "useSSL": by_word(true=VERIFIED, false=PLAIN),
    "trustServerCertificate": by_word(true=NOTHING, false=NOTHING),
    "disableSslHostnameVerification": by_word(true=NOTHING, false=NOTHING),
    "serverSslCert": text("ssl_ca"),
    "enabledSslCipherSuites": text("ssl_cipher"),
    "localSocket": text("socket"),
    "pipe": Refused("named pipes belong to Windows", "Name host and port."),
    "credentialType": Refused("credentials of a cloud's account are not fetched"),
}  # fmt: skip
_JDBC_REFUSED: Final = {
    "loadbalance": _SEVERAL,
    "replication": _SEVERAL,
    "failover": _SEVERAL,
    "sequential": _SEVERAL,
    "load-balance": _SEVERAL,
    "aurora": _SEVERAL,
    "fabric": _SEVERAL,
}


def parse_jdbc(product: str, rest: str) -> ParsedTarget:
    """Parse what follows `jdbc:mysql:` or `jdbc:mariadb:`. Raises UsageError."""
    form = "JDBC URL"
    mode, slashes, rest = rest.partition("//")
    if not slashes or mode:
        reason = _JDBC_REFUSED.get(mode.rstrip(":").lower(), "what stands before // is not known")
        raise UsageError(f"the {form} is not supported: {reason}", "Write jdbc:mysql://HOST:PORT/DATABASE?user=USER.")
    account, host_port, path, query = split_authority(form, rest)
    host, port = split_host(form, host_port, PORT)
    parameters = {
        **account,
        "host": host or "localhost",
        "port": port and str(port),
        "db": decode_url_text(path).strip("/"),
    }
    parsed = read_parameters(form, [(name, value) for name, value in parameters.items() if value], URL, _fold)
    table = _MARIADB_J if product == "mariadb" else _CONNECTOR_J
    properties = read_parameters(form, query_pairs(query), table, str.lower)
    parsed = parsed.updated(properties)
    if product == "mariadb" and properties.address.ssl_mode == "VERIFY_IDENTITY":
        enabled = {name.lower() for name, value in query_pairs(query) if value.lower() in ("true", "1")}
        if "trustservercertificate" in enabled:
            parsed = replace(parsed, address=replace(parsed.address, ssl_mode="REQUIRED"))
        elif "disablesslhostnameverification" in enabled:
            parsed = replace(parsed, address=replace(parsed.address, ssl_mode="VERIFY_CA"))
    return _with_protocol(parsed)


# ---------------------------------------------------------------- Go

_GO: Final[dict[str, Parameter]] = {
    "tls": by_word(true=VERIFIED, false=PLAIN, skipverify=ENCRYPTED, preferred=PREFERRED),
    "allowCleartextPasswords": reads("allow_cleartext_password", parse_switch),
    "compress": _COMPRESS,
    "serverPubKey": Refused("it names a key that the program has registered",
                            "Write a mysql:// URL with server-public-key-path=FILE."),
    **ignored("timeout", "readTimeout", "writeTimeout", why=OWN_TIMEOUTS),
    **ignored("allowAllFiles", "allowFallbackToPlaintext", "allowNativePasswords", "allowOldPasswords", "charset",
              "checkConnLiveness", "collation", "clientFoundRows", "columnsWithAlias", "connectionAttributes",
              "interpolateParams", "loc", "timeTruncate", "maxAllowedPacket", "multiStatements", "parseTime",
              "rejectReadOnly", "strict"),
}  # fmt: skip
"""Parameters of go-sql-driver; other names are system variables, which it sets."""
GO: Final = re.compile(
    r"(?:^|@)(?:tcp[46]?|unix|cloudsql|cloudsql-mysql)?(?:\([^()]*\))?/[^/@]*$|(?:^|@)(?:tcp[46]?|unix)\("
)


def parse_go(dsn: str) -> ParsedTarget:
    """`user:password@tcp(host:port)/db?name=value`, read as go-sql-driver reads it: from the last slash. Raises UsageError."""
    form = "Go DSN"
    head, slash, tail = dsn.rpartition("/")
    if not slash:
        raise UsageError("the Go DSN has no / before the name of the database", "Write USER@tcp(HOST:PORT)/DATABASE.")
    account, at, network = head.rpartition("@")
    user, colon, password = account.partition(":")
    net, bracket, endpoint = network.partition("(")
    if bracket and not endpoint.endswith(")"):
        raise UsageError("the Go DSN has an address without its closing bracket", "Write USER@tcp(HOST:PORT)/DATABASE.")
    endpoint = endpoint.removesuffix(")")
    if net in ("", "tcp", "tcp4", "tcp6"):
        host, port = split_host(form, endpoint, PORT)
        address = ServerAddress(host=host or "127.0.0.1", port=port)
    elif net == "unix":
        address = ServerAddress(socket=endpoint or "/tmp/mysql.sock")
    else:
        raise UsageError("the network of the Go DSN is not supported", "Write tcp(HOST:PORT) or unix(PATH).")
    database, _, query = tail.partition("?")
    if "@" in database:
        raise UsageError("the Go DSN has an @ behind its last /", "Write %40 for an @ in the name of the database.")
    address = replace(address, user=user or None, database=decode_url_text(database) or None)
    try:
        properties = read_parameters(form, query_pairs(query), _GO)
    except UsageError as error:
        if "is not known" in error.message:
            error.advice = f"The driver would set a system variable of this name: {_STATEMENTS}. {error.advice}"
        raise
    return _with_protocol(ParsedTarget(address, Secret(password) if colon and at else None, form).updated(properties))


# ---------------------------------------------------------------- pairs

ADO: Final[dict[str, Parameter]] = {
    **{name: reads("host", host_of) for name in ("server", "host", "data source", "datasource", "address", "addr",
                                                 "network address")},
    "port": reads("port", parse_port),
    **{name: text("user") for name in ("user", "uid", "user id", "userid", "username", "user name")},
    **{name: secret() for name in ("password", "pwd")},
    **{name: text("database") for name in ("database", "initial catalog")},
    "ssl mode": by_word(none=PLAIN, disabled=PLAIN, preferred=PREFERRED, required=ENCRYPTED, verifyca=VERIFIED_CHAIN,
                        verifyfull=VERIFIED),
    "ssl ca": text("ssl_ca"),
    "ca certificate file": text("ssl_ca"),
    "cacertificatefile": text("ssl_ca"),
    "ssl cert": text("ssl_cert"),
    "ssl key": text("ssl_key"),
    "tls version": reads("tls_versions", lambda value: tls_versions(value.replace("TLS ", "TLS"))),
    "use compression": _COMPRESS,
    "compress": _COMPRESS,
    "allow public key retrieval": reads("fetch_server_key", parse_switch),
    "server rsa public key file": text("server_key_file"),
    "protocol": Ignored("host or socket decides"),
    **refused("certificate file", "certificate password", "certificate store location", "certificate thumbprint",
              why="PKCS #12 files are not read", instead="Write SslCert=FILE and SslKey=FILE, in PEM."),
    **ignored("connection timeout", "connect timeout", "default command timeout", "command timeout", "keepalive",
              "connection lifetime", "connection idle timeout", why=OWN_TIMEOUTS),
    **ignored("pooling", "minimum pool size", "maximum pool size", "min pool size", "max pool size", "charset",
              "character set", "convert zero datetime", "allow zero datetime", "allow user variables", "old guids",
              "persist security info", "application name", "treat tiny as boolean", "guid format", "auto enlist",
              "connection reset", "ignore prepare", "use affected rows", "use xa transactions", "date time kind",
              "allow load local infile", "default authentication plugin", "integrated security"),
}  # fmt: skip
"""Keywords of MySqlConnector and Connector/NET."""
_PDO: Final[dict[str, Parameter]] = {
    "host": reads("host", host_of),
    "port": reads("port", parse_port),
    "dbname": text("database"),
    "unix_socket": text("socket"),
    "user": text("user"),
    "password": secret(),
    "charset": Ignored(),
}


def parse_ado(pairs: Iterable[tuple[str, str]]) -> ParsedTarget:
    """`Server=h;Uid=u;Pwd=p`. Raises UsageError."""
    parsed = read_parameters("connection string", pairs, ADO, lambda name: name.lower().replace(" ", ""))
    if (parsed.address.host or "").startswith("/"):
        parsed = replace(parsed, address=replace(parsed.address, host=None, socket=parsed.address.host))
    return _with_protocol(parsed)


def parse_pdo(pairs: Mapping[str, str]) -> ParsedTarget:
    """`mysql:host=h;dbname=d`. PHP's client uses the socket if the host is localhost or missing. Raises UsageError."""
    return _by_libmysqlclient(read_parameters("PDO DSN", pairs.items(), _PDO))
