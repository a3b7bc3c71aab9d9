"""The client of PostgreSQL: pg8000, which sends the password itself only with consent, and limits an untrusted server."""

from __future__ import annotations

import contextlib
import re
import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pg8000.converters import BIGINT, BOOLEAN, FLOAT, INTEGER, bool_in, string_in
from pg8000.core import CoreConnection
from pg8000.exceptions import DatabaseError, InterfaceError

from howfar.clients import Row
from howfar.clients.peer import PeerConnection, PeerError

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
"""Asks whether the server offers TLS, before anything else; it answers with one letter, S or N."""
ERRORS = (DatabaseError, InterfaceError, OSError)
"""What a call of the client may raise."""
_MAX_SCRAM_ITERATIONS = 1_000_000
"""Maximum number of SCRAM iterations. The default is 4096; 2^31 iterations would keep the client busy for an hour."""
_MAX_ROUNDS = 8
_CLEAR_TEXT, _SASL_CONTINUE = 3, 11
_TYPE_CONVERTERS = {BIGINT: int, BOOLEAN: bool_in, FLOAT: float, INTEGER: int}
"""Converters by type. Values of other types stay text, because parsed arrays would take far more memory than their bytes."""


class PostgresqlConnection(CoreConnection):  # type: ignore[misc]  # it has no types
    """A session. With a `peer`, its limits apply to every answer, and only numbers and booleans are converted."""

    def __init__(
        self, user: str, *, may_send_password: bool = False, peer: PeerConnection | None = None, **options: Any
    ) -> None:
        """`may_send_password`: whether the server may get the password itself. `options`: pg8000's."""
        self._may_send_password, self._rounds_left, self._peer = may_send_password, _MAX_ROUNDS, peer
        if peer is not None:
            options |= {"host": None, "sock": peer, "startup_params": {"client_encoding": "UTF8"}}
        # With None, pg8000 would request TLS, and misread a refused connection as the answer to that request.
        super().__init__(user, **{**options, "ssl_context": options.get("ssl_context") or False})
        if peer is not None:
            self.pg_types = defaultdict(lambda: string_in, _TYPE_CONVERTERS)

    def values(self, sql: str) -> Sequence[Sequence[Any]]:
        """Rows of a statement. Raises one of ERRORS."""
        rows: Sequence[Sequence[Any]] = self.execute_simple(sql).rows or []
        return rows

    def rows(self, sql: str) -> list[Row]:
        """Rows of a statement by column name. Raises one of ERRORS."""
        result = self.execute_simple(sql)
        names = [column["name"] for column in result.columns or ()]
        return [dict(zip(names, row, strict=True)) for row in result.rows or ()]

    def close(self) -> None:
        """Close the session; a server that has refused a login or died has done that itself."""
        with contextlib.suppress(*ERRORS, PeerError):
            super().close()
        if self._peer is not None:
            self._peer.close()

    def handle_PARAMETER_STATUS(self, data: bytes, context: Any) -> None:  # noqa: N802  # pg8000's name
        super().handle_PARAMETER_STATUS(data, context)
        self._client_encoding = "utf8"  # a server could name one of Python's codecs that takes hours

    def handle_DATA_ROW(self, data: bytes, context: Any) -> None:  # noqa: N802  # pg8000's name
        if self._peer is not None:
            self._peer.count_values(len(context.input_funcs))
        super().handle_DATA_ROW(data, context)

    def handle_AUTHENTICATION_REQUEST(self, data: bytes, context: Any) -> None:  # noqa: N802  # pg8000's name
        self._rounds_left -= 1
        if self._rounds_left < 0:
            raise InterfaceError("the server's login has no end")
        (code,) = struct.unpack_from("!i", data)
        if code == _CLEAR_TEXT and not self._may_send_password:
            raise InterfaceError("the server asks for the password itself, over TCP: it was not sent")
        if code == _SASL_CONTINUE:
            iterations = re.search(rb"(?:^|,)i=(\d{1,9})(?:,|$)", data[4:])
            if iterations is None or int(iterations[1]) > _MAX_SCRAM_ITERATIONS:
                raise InterfaceError("the server asks for too many iterations of SCRAM")
        super().handle_AUTHENTICATION_REQUEST(data, context)


def error_fields(error: BaseException | None) -> dict[str, str]:
    """The fields of the server's report in an error; empty without one. If closing the connection failed too, pg8000 raises that
    error, with the server's error as its context."""
    while error is not None and not isinstance(error, DatabaseError):
        error = error.__context__
    fields = error.args[0] if error is not None and error.args else None
    return fields if isinstance(fields, dict) else {}


def error_message(error: BaseException) -> str:
    """The server's own message in an error, or the error's."""
    return error_fields(error).get("M") or str(error)
