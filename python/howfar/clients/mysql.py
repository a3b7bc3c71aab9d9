"""The client of MySQL and MariaDB: PyMySQL, which sends the password itself only with consent, and limits an untrusted server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pymysql
from pymysql import err
from pymysql.constants import CR
from pymysql.cursors import Cursor, DictCursor
from pymysql.protocol import MysqlPacket

from howfar.clients import Consent, Row
from howfar.clients.peer import PeerConnection

_MAX_ROUNDS = 8
"""Maximum number of the server's packets between its greeting and its OK, as in the engine; PyMySQL has no such limit."""


class _Packet(MysqlPacket):
    """A packet whose values count toward the peer's limit."""

    __slots__ = ("_peer",)

    def __init__(self, peer: PeerConnection, data: bytes, encoding: str) -> None:
        super().__init__(data, encoding)
        self._peer = peer

    def read_length_coded_string(self) -> Any:
        self._peer.count_values(1)
        return super().read_length_coded_string()  # type: ignore[no-untyped-call]


class MysqlConnection(pymysql.Connection):
    """A session that sends the password itself only with consent. With a `peer`, its limits apply to every answer."""

    ctx: Any
    ssl: bool
    server_version: str
    _auth_plugin_name: str
    _packets_left: int | None = None
    """Number of packets that the login may still receive; None if no login is in progress."""

    def __init__(self, consent: Consent, peer: PeerConnection | None = None, **options: Any) -> None:
        """`options`: PyMySQL's. A session with a peer is opened later, with `connect`."""
        self._consent, self._peer = consent, peer
        options |= {"ssl_disabled": options.get("ssl") is None, "defer_connect": peer is not None}
        super().__init__(autocommit=True, auth_plugin_map=_AUTH_PLUGINS, **options)

    def values(self, sql: str) -> Sequence[Sequence[Any]]:
        """Rows of a statement. Raises pymysql.Error."""
        with self.cursor(Cursor) as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def rows(self, sql: str) -> list[Row]:
        """Rows of a statement by column name. Raises pymysql.Error."""
        with self.cursor(DictCursor) as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    # PyMySQL's logins with SHA-256 read the next two just before they send the password itself.

    @property
    def _secure(self) -> bool:
        if self.ssl and not self._consent.cleartext_password:
            raise _password_not_sent_error("over TLS that is not verified", "allow-cleartext-password")
        return self._is_secure

    @_secure.setter
    def _secure(self, is_secure: bool) -> None:
        self._is_secure = is_secure

    @property
    def server_public_key(self) -> Any:
        if not self._consent.fetch_server_key:
            raise _password_not_sent_error(
                "over plain TCP, hidden by a key of whoever answers", "get-server-public-key"
            )
        return self._server_public_key

    @server_public_key.setter
    def server_public_key(self, key: Any) -> None:
        self._server_public_key = key

    _is_secure = False

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
        if self._peer is not None and packet_type is MysqlPacket:
            packet_type = partial(_Packet, self._peer)
        return super()._read_packet(packet_type)  # type: ignore[no-untyped-call]

    def clear_password(self) -> bytes:
        """The answer to `mysql_clear_password`, and to `dialog`, which requests the password for PAM."""
        if not self._is_secure:
            raise _password_not_sent_error("in clear over plain TCP", "ssl-mode=REQUIRED and allow-cleartext-password")
        if not self._consent.cleartext_password:
            raise _password_not_sent_error("by mysql_clear_password or dialog", "allow-cleartext-password")
        password: bytes = self.password
        return password + b"\0"


def _password_not_sent_error(how: str, allowed_by: str) -> err.OperationalError:
    message = f"the server asks for the password itself, {how}: it was not sent; the DSN's {allowed_by} allows it"
    return err.OperationalError(CR.CR_AUTH_PLUGIN_ERR, message)


class _Plugin:
    """A login plugin that answers the server's request once; PyMySQL makes an object for each request."""

    def __init__(self, answer: Callable[[MysqlConnection], bytes], connection: MysqlConnection) -> None:
        self._answer, self._connection = answer, connection

    def authenticate(self, _packet: Any) -> Any:
        self._connection.write_packet(self._answer(self._connection))
        return self._connection._read_packet()


_BY_OS_ACCOUNT = partial(_Plugin, lambda _connection: b"")
"""The server gets the client's account from the kernel, and expects an empty answer."""
_CLEAR_PASSWORD = partial(_Plugin, MysqlConnection.clear_password)
_AUTH_PLUGINS: dict[Any, Any] = {
    b"unix_socket": _BY_OS_ACCOUNT,
    b"auth_socket": _BY_OS_ACCOUNT,
    b"mysql_clear_password": _CLEAR_PASSWORD,
    b"dialog": _CLEAR_PASSWORD,
}
