"""MySQL and MariaDB. PyMySQL logs in; pings use its socket directly, because its packet reader takes as long as the round trip."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from pymysql import err
from pymysql.constants import CLIENT, CR, ER

from howfar.clients.mysql import MysqlConnection
from howfar.clients.peer import PeerConnection, PeerError
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
from howfar.doctor.targets import TargetLogin

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


class Mysql:
    def greet(self, endpoint: Endpoint, login: TargetLogin) -> Greeting:
        connection, _, refusal = _connect(endpoint, login)
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
        connection, peer, refusal = _connect(endpoint, login)
        if refusal is not None:
            raise refusal
        return MysqlSession(connection, peer)


def _connect(endpoint: Endpoint, login: TargetLogin) -> tuple[MysqlConnection, PeerConnection, ServerRefused | None]:
    """Connect and log in; returns the session, its connection, and the refusal of the login or None. Raises NoValidAnswer."""
    peer = _dial_and_check_greeting(endpoint)
    connection = MysqlConnection(
        login.consent,
        peer,
        user=login.user,
        password=login.password,
        ssl=unverified_context() if endpoint.tls else None,
        program_name="howfar doctor",
    )
    connection.ctx = SimpleNamespace(wrap_socket=lambda peer, server_hostname: encrypt(peer, endpoint))
    try:
        connection.connect(cast(Any, peer))
    except err.MySQLError as error:
        if not _is_server_error(error) and not getattr(connection, "server_version", ""):
            raise NoValidAnswer(_message(error)) from error
        return connection, peer, ServerRefused(_message(error), _remedy(error))
    return connection, peer, None


def _remedy(error: err.MySQLError) -> str | None:
    """Return the remedy for a refused login, as in `ServerRefused`."""
    number = error.args[0] if error.args else None
    if number == CR.CR_AUTH_PLUGIN_CANNOT_LOAD:
        return "an account with another plugin: howfar doctor does not have this one"
    return None if number in _LOGIN_ERRORS else ""


def _is_server_error(error: err.MySQLError) -> bool:
    number = error.args[0] if error.args else None
    return isinstance(number, int) and number != 0 and number not in _CLIENT_ERRORS


class MysqlSession:
    statements_by_counters = 1

    def __init__(self, connection: MysqlConnection, peer: PeerConnection) -> None:
        self._connection = connection
        self.peer = peer

    def ping(self) -> None:
        answer = self.peer.exchange(_COM_PING)
        if len(answer) < 5 or answer[4] != 0:
            raise NoValidAnswer("it stopped answering COM_PING")

    def rows(self, statement: str) -> Sequence[Sequence[Any]]:
        self.peer.begin_answer()
        try:
            return self._connection.values(statement)
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
    start = end_of_version + 14  # past thread number, eight bytes of salt and a zero
    capabilities = greeting[start : start + 2]
    return end_of_version > 0 and len(capabilities) == 2 and bool(int.from_bytes(capabilities, "little") & CLIENT.SSL)


def _message(error: Exception) -> str:
    return f"{error.args[1]} ({error.args[0]})" if len(error.args) > 1 else str(error)
