"""MySQL and MariaDB. PyMySQL logs in; pings use its socket directly, because its packet reader takes as long as the round trip."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pymysql
from pymysql import _auth, err
from pymysql.constants import CLIENT, CR, ER
from pymysql.protocol import MysqlPacket

from howfar.doctor.clusters import read_cluster
from howfar.doctor.kind import Kind, Tls, product_name
from howfar.doctor.protocols.session import (
    Counters,
    Endpoint,
    Greeting,
    ListedSession,
    NoValidAnswer,
    SelfReport,
    ServerRefused,
    dial,
    encrypt,
    parse_counter,
    unverified_context,
)
from howfar.doctor.targets import Consent, TargetLogin
from howfar.lab.servers.peer import SILENCE_TIMEOUT_S, PeerConnection, PeerError

_COM_PING = b"\x01\0\0\0\x0e"
_ZSTD = 1 << 26
"""CLIENT_ZSTD_COMPRESSION_ALGORITHM, which PyMySQL does not define."""
_NO_PASSWORD_ERROR, _LOCKED = 1698, 3118
"""ER_ACCESS_DENIED_NO_PASSWORD_ERROR and ER_ACCOUNT_HAS_BEEN_LOCKED, which PyMySQL does not define."""
_GREETING_STARTS = ((0, 0x0A), (0, 0xFF))
"""Possible first bytes of a greeting after its length: the packet number, then the protocol version or an error (too many
connections, host blocked). The X protocol begins differently."""
_CLIENT_ERRORS = range(2000, 3000)
_LOGIN_ERRORS = (
    ER.DBACCESS_DENIED_ERROR,
    ER.ACCESS_DENIED_ERROR,
    ER.HOST_NOT_PRIVILEGED,
    ER.PASSWORD_NO_MATCH,
    _NO_PASSWORD_ERROR,
    _LOCKED,
)
"""Errors that another account or password may avoid."""
_VARIABLE_NAMES = (
    "socket", "port", "skip_networking", "bind_address", "have_ssl", "tls_version", "require_secure_transport",
    "performance_schema", "protocol_compression_algorithms", "skip_name_resolve",
)  # fmt: skip
_COUNTER_NAMES = ("Connections", "Questions", "Ssl_finished_accepts", "Ssl_accepts")
_TLS_QUERY = (
    "SELECT t.PROCESSLIST_ID, MAX(CASE WHEN s.VARIABLE_NAME = 'Ssl_cipher' THEN s.VARIABLE_VALUE END), "
    "MAX(CASE WHEN s.VARIABLE_NAME = 'Compression' THEN s.VARIABLE_VALUE END) FROM performance_schema.threads t "
    "JOIN performance_schema.status_by_thread s USING (THREAD_ID) WHERE t.PROCESSLIST_ID IS NOT NULL "
    "AND s.VARIABLE_NAME IN ('Ssl_cipher', 'Compression') GROUP BY t.PROCESSLIST_ID"
)
_PID_QUERY = "SELECT PROCESSLIST_ID, ATTR_VALUE FROM performance_schema.session_connect_attrs WHERE ATTR_NAME = '_pid'"

_PROCESS_PRIVILEGE_QUERY = "SELECT COUNT(*) FROM information_schema.user_privileges WHERE privilege_type = 'PROCESS'"


_MAX_ROUNDS = 8
"""Maximum number of the server's packets between its greeting and its OK, as in the engine; PyMySQL has no such limit."""


class _GuardedConnection:
    """A wrapper of PyMySQL's connection for its SHA-256 logins. These read `_secure` and `server_public_key` just before they send
    the password itself; both properties raise an error if the rule of `howfar load` forbids that."""

    def __init__(self, connection: _MysqlConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @property
    def _secure(self) -> bool:
        connection = self._connection
        if connection.encrypted and not connection.consent.cleartext_password:
            raise _password_not_sent_error("over TLS that is not verified", "allow-cleartext-password")
        secure: bool = connection._secure
        return secure

    @property
    def server_public_key(self) -> Any:
        if not self._connection.consent.fetch_server_key:
            raise _password_not_sent_error(
                "over plain TCP, hidden by a key of whoever answers", "get-server-public-key"
            )
        return self._key

    @server_public_key.setter
    def server_public_key(self, key: Any) -> None:
        self._key = key

    _key: Any = None


@dataclass(frozen=True)
class _AuthPlugin:
    """A login plugin, of which PyMySQL makes an object for each request of the server."""

    _connection: _MysqlConnection


class _CachingSha2(_AuthPlugin):
    def authenticate(self, packet: Any) -> Any:
        return _auth.caching_sha2_password_auth(_GuardedConnection(self._connection), packet)


class _Sha256(_AuthPlugin):
    def authenticate(self, packet: Any) -> Any:
        return _auth.sha256_password_auth(_GuardedConnection(self._connection), packet)  # type: ignore[no-untyped-call]


class _ClearPassword(_AuthPlugin):
    """`mysql_clear_password`, and `dialog`, which requests the password for PAM."""

    def authenticate(self, _packet: Any) -> Any:
        connection = self._connection
        if not connection._secure:
            raise _password_not_sent_error("in clear over plain TCP", "ssl-mode=REQUIRED and allow-cleartext-password")
        if not connection.consent.cleartext_password:
            raise _password_not_sent_error("by mysql_clear_password or dialog", "allow-cleartext-password")
        connection.write_packet(connection.password + b"\0")
        return connection._read_packet()


class _Packet(MysqlPacket):
    """A packet whose values count toward the peer's limit."""

    __slots__ = ("_peer",)

    def __init__(self, peer: PeerConnection, data: bytes, encoding: str) -> None:
        super().__init__(data, encoding)
        self._peer = peer

    def read_length_coded_string(self) -> Any:
        self._peer.count_values(1)
        return super().read_length_coded_string()  # type: ignore[no-untyped-call]


class _MysqlConnection(pymysql.Connection):
    """A PyMySQL connection that sends the password itself only if the rule of `howfar load` allows it."""

    consent = Consent()
    encrypted = False
    peer: PeerConnection
    ctx: Any
    server_version: str
    _secure: bool
    _auth_plugin_name: str
    _packets_left: int | None = None
    """Number of packets that the login may still receive; None if no login is in progress."""

    def _request_authentication(self) -> None:
        if self._auth_plugin_name == "sha256_password":
            # If the greeting names this plugin, PyMySQL sends the password itself at once. With another plugin, the server must first
            # request it.
            self._auth_plugin_name = "mysql_native_password"
        self._packets_left = _MAX_ROUNDS
        super()._request_authentication()  # type: ignore[misc]  # its stubs lack it
        self._packets_left = None

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        if self._packets_left is not None:
            self._packets_left -= 1
            if self._packets_left < 0:
                raise err.OperationalError(CR.CR_AUTH_PLUGIN_ERR, "the server's login has no end")
        packet = partial(_Packet, self.peer) if packet_type is MysqlPacket else packet_type
        return super()._read_packet(packet)  # type: ignore[no-untyped-call]


def _password_not_sent_error(how: str, allowed_by: str) -> err.OperationalError:
    message = f"the server asks for the password itself, {how}: it was not sent; the DSN's {allowed_by} allows it"
    return err.OperationalError(CR.CR_AUTH_PLUGIN_ERR, message)


class _ByOsAccount(_AuthPlugin):
    """`unix_socket` and `auth_socket`: the server gets the client's account from the kernel, and expects an empty answer."""

    def authenticate(self, _packet: Any) -> Any:
        self._connection.write_packet(b"")
        return self._connection._read_packet()


_AUTH_PLUGINS: dict[Any, Any] = {
    b"unix_socket": _ByOsAccount,
    b"auth_socket": _ByOsAccount,
    b"caching_sha2_password": _CachingSha2,
    b"sha256_password": _Sha256,
    b"mysql_clear_password": _ClearPassword,
    b"dialog": _ClearPassword,
}


class Mysql:
    def greet(self, endpoint: Endpoint, login: TargetLogin) -> Greeting:
        connection, refusal = _connect(endpoint, login)
        refused, remedy = (str(refusal), refusal.remedy) if refusal is not None else (None, None)
        with contextlib.suppress(err.MySQLError):
            connection.close()
        if not getattr(connection, "server_version", ""):
            # An error instead of a greeting: too many connections, or the host is blocked. The product is then unknown.
            return Greeting(Kind.MYSQL.value, "unknown", "unknown", refused, remedy=remedy)
        capabilities: int = getattr(connection, "server_capabilities", 0)
        names = [name for name, bit in (("zlib", CLIENT.COMPRESS), ("zstd", _ZSTD)) if capabilities & bit]
        tls: Tls = "offered" if capabilities & CLIENT.SSL else "none"
        name = product_name("mysql", connection.server_version)
        return Greeting(name, tls, " and ".join(names) or "none", refused, remedy=remedy)

    def open(self, endpoint: Endpoint, login: TargetLogin) -> MysqlSession:
        connection, refusal = _connect(endpoint, login)
        if refusal is not None:
            raise refusal
        return MysqlSession(connection)


def _connect(endpoint: Endpoint, login: TargetLogin) -> tuple[_MysqlConnection, ServerRefused | None]:
    """Connect and log in; returns PyMySQL's connection, and the refusal of the login or None. Raises NoValidAnswer."""
    connection = _make_connection(endpoint, login)
    connection.peer = _dial_and_check_greeting(endpoint)
    connection.ctx = _TlsContext(endpoint)
    try:
        connection.connect(cast(Any, connection.peer))
    except err.MySQLError as error:
        if not _is_server_error(error) and not getattr(connection, "server_version", ""):
            raise NoValidAnswer(_message(error)) from error
        return connection, ServerRefused(_message(error), _remedy(error))
    return connection, None


def _remedy(error: err.MySQLError) -> str | None:
    """Return the remedy for a refused login, as in `ServerRefused`."""
    number = error.args[0] if error.args else None
    if number == CR.CR_AUTH_PLUGIN_CANNOT_LOAD:
        return "an account with another plugin: howfar doctor does not have this one"
    return None if number in _LOGIN_ERRORS else ""


def _is_server_error(error: err.MySQLError) -> bool:
    number = error.args[0] if error.args else None
    return isinstance(number, int) and number != 0 and number not in _CLIENT_ERRORS


@dataclass(frozen=True)
class _TlsContext:
    """Passed to PyMySQL in place of a TLS context."""

    endpoint: Endpoint

    def wrap_socket(self, peer: PeerConnection, server_hostname: str) -> PeerConnection:
        encrypt(peer, self.endpoint)
        return peer


class MysqlSession:
    statements_by_counters = 1

    def __init__(self, connection: _MysqlConnection) -> None:
        self._connection = connection
        self.peer = connection.peer

    def ping(self) -> None:
        answer = self.peer.exchange(_COM_PING)
        if len(answer) < 5 or answer[4] != 0:
            raise NoValidAnswer("it stopped answering COM_PING")

    def rows(self, statement: str) -> Sequence[Sequence[Any]]:
        self.peer.begin_answer()
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement)
                rows: Sequence[Sequence[Any]] = cursor.fetchall()
                return rows
        except err.MySQLError as error:
            if _is_server_error(error):
                raise ServerRefused(_message(error)) from error
            raise NoValidAnswer(_message(error)) from error

    def _pairs(self, what: str, names: Sequence[str]) -> dict[str, str]:
        quoted = ", ".join(f"'{name}'" for name in names)
        return {row[0]: str(row[1]) for row in self.rows(f"SHOW GLOBAL {what} WHERE Variable_name IN ({quoted})")}

    def counters(self) -> Counters:
        """Read the server's counters in one statement, so that the doctor's own share of them is known."""
        status = self._pairs("STATUS", _COUNTER_NAMES)
        tls = status.get("Ssl_finished_accepts", status.get("Ssl_accepts"))
        return Counters(
            parse_counter(status, "Connections"),
            parse_counter(status, "Questions"),
            int(tls) if tls is not None else None,
        )

    def report(self) -> SelfReport:
        settings = self._pairs("VARIABLES", _VARIABLE_NAMES)
        hidden: list[tuple[str, str, str]] = []
        by_thread: dict[int, tuple[bool | None, bool | None]] = {}
        pids: dict[int, int] = {}
        encryption_and_compression = "which sessions encrypt or compress"
        if settings.get("performance_schema") == "ON":
            try:
                for number, cipher, compression in self.rows(_TLS_QUERY):
                    by_thread[number] = (cipher != "" if cipher is not None else None, compression == "ON")
                pids = {number: int(value) for number, value in self.rows(_PID_QUERY) if str(value).isdigit()}
            except ServerRefused as refused:
                hidden.append(
                    (encryption_and_compression, str(refused), "an account that may SELECT on performance_schema")
                )
        else:
            refusal = "performance_schema is off, and nothing else shows other sessions"
            hidden.append((encryption_and_compression, refusal, "performance_schema = ON in [mysqld], and a restart"))
        if not self.rows(_PROCESS_PRIVILEGE_QUERY)[0][0]:
            hidden.append(("other sessions", "the account lacks the privilege PROCESS", "GRANT PROCESS ON *.* TO it"))
        sessions = []
        own_id: int = self._connection.thread_id()  # type: ignore[no-untyped-call]
        for number, user, host, *_ in self.rows("SHOW PROCESSLIST"):
            if number == own_id or user in ("system user", "event_scheduler"):
                continue
            port = str(host or "").rpartition(":")[2]
            tls, compressed = by_thread.get(number, (None, None))
            sessions.append(ListedSession(int(port) if port.isdigit() else None, pids.get(number), tls, compressed))
        cluster = None
        try:
            cluster = read_cluster(self._pairs, self.rows)
        except ServerRefused as refusal:
            hidden.append(("its cluster", str(refusal), "an account that may SELECT on performance_schema"))
        return SelfReport(None, tuple(sessions), tuple(hidden), settings, cluster=cluster)

    def close(self) -> None:
        with contextlib.suppress(err.MySQLError, OSError):
            self._connection.close()


def _dial_and_check_greeting(endpoint: Endpoint) -> PeerConnection:
    """Connect without TLS, and check the server's greeting without consuming it. Raises NoValidAnswer."""
    peer = dial(replace(endpoint, tls=False))
    try:
        header = peer.peek(5)
        if (header[3], header[4]) not in _GREETING_STARTS:
            raise NoValidAnswer("it sends no MySQL greeting")
        if endpoint.tls and not _offers_tls(peer.peek(4 + int.from_bytes(header[:3], "little"))):
            raise NoValidAnswer("it offers no TLS")
    except (NoValidAnswer, PeerError):
        peer.close()
        raise
    return peer


def _offers_tls(greeting: bytes) -> bool:
    """Whether the server offers TLS; checked before the login, because PyMySQL would otherwise continue in plain text."""
    end_of_version = greeting.find(b"\0", 5)
    capabilities = greeting[
        end_of_version + 14 : end_of_version + 16
    ]  # past thread number, eight bytes of salt and a zero
    return end_of_version > 0 and len(capabilities) == 2 and bool(int.from_bytes(capabilities, "little") & CLIENT.SSL)


def _make_connection(endpoint: Endpoint, login: TargetLogin) -> _MysqlConnection:
    connection = _MysqlConnection(
        unix_socket=endpoint.path,
        host=endpoint.host,
        port=endpoint.port or 0,
        user=login.user,
        password=login.password,
        autocommit=True,
        connect_timeout=int(SILENCE_TIMEOUT_S),
        read_timeout=int(SILENCE_TIMEOUT_S),
        write_timeout=int(SILENCE_TIMEOUT_S),
        ssl=unverified_context() if endpoint.tls else None,
        ssl_disabled=not endpoint.tls,
        auth_plugin_map=_AUTH_PLUGINS,
        program_name="howfar doctor",
        defer_connect=True,
    )
    connection.consent, connection.encrypted = login.consent, endpoint.tls
    return connection


def _message(error: Exception) -> str:
    return f"{error.args[1]} ({error.args[0]})" if len(error.args) > 1 else str(error)
