"""Fake servers of each protocol: one that behaves, and hostile peers that send what no server should.

A `FakePeer` accepts any login and answers the doctor's questions; its `mode` makes it misbehave instead. `spoil` changes any of the
messages that it sends.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader

from howfar.doctor.findings import Kind

TEXT = b"\x1b[2J\x1b[31mred\x1b]0;title\x07\x1b]52;c;aGVsbG8=\x07\x08\rhowfar: a line that \xe2\x80\xae\xc2\x9b the server made up"
"""Hostile text: colours, the terminal's title and clipboard, a bell, and characters that can fake a line."""
MODES = {
    Kind.MYSQL: (
        "endless", "column", "drip", "one-column", "columns", "values", "wide", "text-greeting", "text-login", "text-query",
        "huge-number", "two-answers",
    ),
    Kind.POSTGRESQL: (
        "endless", "column", "drip", "one-column", "columns", "values", "wide", "arrays", "codec", "text-login", "text-query",
        "huge-number", "two-answers", "text-greeting",
    ),
    Kind.REDIS: (
        "endless", "column", "drip", "line", "nested", "pairs", "wide", "text-login", "text-query", "two-answers", "huge-number",
    ),
    Kind.MEMCACHED: ("endless", "drip", "line", "wide", "text-login", "text-query", "two-answers", "huge-number"),
}  # fmt: skip
"""endless: rows or elements without end. column: one value of 1 GiB. drip: a row or byte every quarter of a second.
one-column: one column instead of several. columns: more columns than any table has. values: millions of short values.
wide: 8 MiB of text that takes four bytes a character in memory. line: one line without end. nested: lists in lists.
pairs: a text of millions of pairs. arrays: a value of a type whose reading takes memory. codec: an encoding whose decoding
takes hours. text-…: TEXT in the answer to a connection, a login or a request. huge-number: a counter of 4,000 digits.
two-answers: two answers to one request."""
HUGE = b"9" * 4000
WIDE = b"x" * 60_000 + "\U0001f600".encode()
_WIDE_ROWS = 136
_DRIP_S = 0.25

Spoil = Callable[[int, bytes], bytes]
"""Function of a message's position in the conversation and its bytes; returns the bytes to send instead."""


class FakePeer:
    """A server on a loopback port until it is closed; each connection has a thread."""

    def __init__(self, kind: Kind, mode: str = "good", spoil: Spoil = lambda _, message: message) -> None:
        self.kind, self.mode, self._spoil = kind, mode, spoil
        self.requests: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def dsn(self) -> str:
        user = "me@" if self.kind in (Kind.MYSQL, Kind.POSTGRESQL) else ""
        return f"{self.kind.value}://{user}127.0.0.1:{self.port}{'/' if user else ''}"

    def __enter__(self) -> FakePeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        speak = {Kind.MYSQL: _mysql, Kind.POSTGRESQL: _postgresql, Kind.REDIS: _redis, Kind.MEMCACHED: _memcached}
        with client, client.makefile("rb") as stream:
            try:
                for number, message in enumerate(speak[self.kind](self, stream)):
                    client.sendall(self._spoil(number, message))
            except (OSError, struct.error):
                return

    def asked(self, request: bytes) -> bytes:
        self.requests.append(request)
        return request


def _slowly(message: bytes) -> Iterator[bytes]:
    while True:
        yield message
        time.sleep(_DRIP_S)


def _for_ever(message: bytes) -> Iterator[bytes]:
    block = message * max(1, 65_536 // len(message))
    while True:
        yield block


def _exactly(stream: BufferedReader, size: int) -> bytes:
    got = stream.read(size)
    if len(got) < size:
        raise ConnectionError
    return got


# ---------------------------------------------------------------- MySQL

_ABLE = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x80000
_EOF = bytes([0xFE, 0, 0, 2, 0])


def packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number & 255]) + payload


def _ok(number: int) -> bytes:
    return packet(number, bytes([0, 0, 0, 2, 0, 0, 0]))


def _mysql_error(number: int, code: int) -> bytes:
    return packet(number, b"\xff" + struct.pack("<H", code) + b"#HY000" + TEXT)


def _length(size: int) -> bytes:
    return bytes([size]) if size < 251 else b"\xfe" + struct.pack("<Q", size)


def _counted(value: bytes) -> bytes:
    return _length(len(value)) + value


def _column(name: bytes) -> bytes:
    return b"\3def\0\0\0" + _counted(name) * 2 + b"\x0c\x21\0" + struct.pack("<IBHB2x", 255, 253, 0, 0)


def result(names: Sequence[bytes], *rows: Sequence[bytes]) -> bytes:
    lines = [b"".join(map(_counted, row)) for row in rows]
    parts = [_length(len(names)), *map(_column, names), _EOF, *lines, _EOF]
    return b"".join(packet(number, part) for number, part in enumerate(parts, 1))


def _mysql(peer: FakePeer, stream: BufferedReader) -> Iterator[bytes]:
    if peer.mode == "text-greeting":
        yield _mysql_error(0, 1040)
        return
    head = (
        b"\x0a8.0.36\0"
        + struct.pack("<I", 7)
        + b"A" * 8
        + b"\0"
        + struct.pack("<HBHH", _ABLE & 0xFFFF, 33, 2, _ABLE >> 16)
    )
    yield packet(0, head + bytes([21]) + bytes(10) + b"B" * 12 + b"\0mysql_native_password\0")
    number, _ = _mysql_request(stream)
    if peer.mode == "text-login":
        yield _mysql_error(number + 1, 1045)
        return
    yield _ok(number + 1)
    while True:
        _, body = _mysql_request(stream)
        asked = peer.asked(body)
        if asked[:1] == b"\1":
            return
        if asked[:1] == b"\x0e" or asked[1:4].upper() == b"SET":
            yield _ok(1)
        else:
            yield from _mysql_answer(peer.mode, asked[1:].upper())


def _mysql_request(stream: BufferedReader) -> tuple[int, bytes]:
    head = _exactly(stream, 4)
    return head[3], _exactly(stream, int.from_bytes(head[:3], "little"))


def _mysql_answer(mode: str, statement: bytes) -> Iterator[bytes]:
    begin = result([b"a"])[: -len(packet(0, _EOF))]
    many = 250
    match mode:
        case "endless":
            yield begin
            yield from _for_ever(
                b"".join(packet(number, b"\xc8" + b"x" * 200) for number in [*range(4, 256), *range(4)])
            )
        case "column":
            yield begin + packet(4, b"\xfe" + struct.pack("<Q", 1 << 30) + b"z" * (0xFFFFFF - 9))
            yield from _for_ever(packet(5, b"z" * 0xFFFFFF))
        case "drip":
            yield begin
            yield from _slowly(packet(4, b"\1x"))
        case "columns":
            yield packet(1, _length(1 << 30))
            yield from _for_ever(b"".join(packet(number, _column(b"ab")) for number in [*range(2, 256), *range(2)]))
        case "values":
            yield result([b"a"] * many)[: -len(packet(0, _EOF))]
            first = many + 3
            yield from _for_ever(b"".join(packet(first + number, b"\2ab" * many) for number in range(256)))
        case "wide":
            yield result([b"a", b"b"], *[[b"Connections", WIDE]] * _WIDE_ROWS)
        case "text-query":
            yield _mysql_error(1, 1064)
        case "one-column":
            yield result([b"a"], [b"1"])
        case _:
            answer = _mysql_rows(statement, HUGE if mode == "huge-number" else b"5")
            yield answer * 2 if mode == "two-answers" else answer


def _mysql_rows(statement: bytes, count: bytes) -> bytes:
    if b"GLOBAL STATUS" in statement:
        return result([b"Variable_name", b"Value"], [b"Connections", count], [b"Questions", b"6"])
    if b"GLOBAL VARIABLES" in statement:
        return result([b"Variable_name", b"Value"], [b"socket", b"/run/none.sock"], [b"performance_schema", b"OFF"])
    if b"PROCESSLIST" in statement:
        return result([b"c"] * 8, [b"3", b"app", b"127.0.0.1:1", b"", b"Sleep", b"1", b"", b""])
    return result([b"a"], [b"1"])


# ---------------------------------------------------------------- PostgreSQL

_INT8, _FLOAT8, _TEXT, _BOOL, _INT4, _TEXT_ARRAY = 20, 701, 25, 16, 23, 1009


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


_READY = message(b"Z", b"I")


def _fields(*types: int) -> bytes:
    each = (b"a\0" + struct.pack("!IHIhiH", 0, 0, kind, -1, -1, 0) for kind in types)
    return message(b"T", struct.pack("!H", len(types)) + b"".join(each))


def _row(*values: bytes) -> bytes:
    return message(b"D", struct.pack("!H", len(values)) + b"".join(struct.pack("!I", len(one)) + one for one in values))


def _postgresql_error(code: bytes) -> bytes:
    return message(b"E", b"SERROR\0VERROR\0C" + code + b"\0M" + TEXT + b"\0\0")


def _postgresql(peer: FakePeer, stream: BufferedReader) -> Iterator[bytes]:
    if peer.mode == "text-greeting":
        yield TEXT
        return
    while struct.unpack("!I", _exactly(stream, struct.unpack("!I", _exactly(stream, 4))[0] - 4)[:4])[0] >> 16 != 3:
        yield b"N"
    if peer.mode == "text-login":
        yield _postgresql_error(b"28P01")
        return
    status = message(b"S", b"server_version\x0015.1\0")
    status += message(b"S", b"client_encoding\0punycode\0") if peer.mode == "codec" else b""
    yield message(b"R", bytes(4)) + status + message(b"K", bytes(8)) + _READY
    while True:
        kind = _exactly(stream, 1)
        asked = peer.asked(_exactly(stream, struct.unpack("!I", _exactly(stream, 4))[0] - 4))
        if kind == b"X":
            return
        if asked == b"\0":
            yield message(b"I") + _READY
        else:
            yield from _postgresql_answer(peer.mode, asked)


def _postgresql_answer(mode: str, statement: bytes) -> Iterator[bytes]:
    end = message(b"C", b"SELECT 1\0") + _READY
    one = _fields(_TEXT)
    most = 40_000
    match mode:
        case "endless":
            yield one
            yield from _for_ever(_row(b"1"))
        case "column":
            yield one + b"D" + struct.pack("!IHI", 1 << 30, 1, (1 << 30) - 10)
            yield from _for_ever(b"z")
        case "drip":
            yield one
            yield from _slowly(_row(b"1"))
        case "columns":
            yield from _for_ever(_fields(*[_TEXT] * most))
        case "values":
            yield _fields(*[_TEXT] * most)
            yield from _for_ever(_row(*[b"ab"] * most))
        case "wide" | "codec":
            yield _fields(_INT8, _INT8, _FLOAT8, _TEXT) + _row(b"1", b"1", b"1", WIDE) * _WIDE_ROWS + end
        case "arrays":
            yield _fields(*[_TEXT_ARRAY] * 4) + _row(b"1", b"1", b"1", b"{" * 1_000_000) * 8 + end
        case "text-query":
            yield _postgresql_error(b"42601") + _READY
        case "one-column":
            yield one + _row(b"1") + end
        case _:
            answer = _postgresql_rows(statement, HUGE if mode == "huge-number" else b"5") + end
            yield answer * 2 if mode == "two-answers" else answer


def _postgresql_rows(statement: bytes, count: bytes) -> bytes:
    if b"pg_stat_database" in statement:
        return _fields(_INT8, _INT8, _FLOAT8, _FLOAT8) + _row(count, b"6", b"1.5", b"0.5")
    if b"pg_settings" in statement:
        return _fields(_TEXT, _TEXT) + _row(b"port", b"5432")
    return _fields(_INT4, _BOOL, _BOOL, _BOOL) + _row(b"40000", b"f", b"f", b"t")


# ---------------------------------------------------------------- Redis and Memcached


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


def _redis(peer: FakePeer, stream: BufferedReader) -> Iterator[bytes]:
    while True:
        count = int(_exactly_line(stream)[1:])
        words = [_exactly(stream, int(_exactly_line(stream)[1:]) + 2)[:-2] for _ in range(count)]
        asked = peer.asked(b" ".join(words).upper())
        if peer.mode == "line":
            yield b"+PONG"
            yield from _for_ever(b"x")
        if asked == b"PING":
            yield b"-NOAUTH " + TEXT.replace(b"\r", b"") + b"\r\n" if peer.mode == "text-login" else b"+PONG\r\n"
        elif asked == b"INFO SERVER" and peer.mode not in ("text-query", "drip"):
            yield _bulk(b"redis_version:7.0.15\r\nprocess_id:1\r\n")
        else:
            yield from _redis_answer(peer.mode, asked)


def _exactly_line(stream: BufferedReader) -> bytes:
    line = stream.readline(65_536)
    if not line.endswith(b"\r\n"):
        raise ConnectionError
    return line[:-2]


def _redis_answer(mode: str, asked: bytes) -> Iterator[bytes]:
    match mode:
        case "drip":
            yield b"$100000\r\n"
            yield from _slowly(b"x")
        case "endless":
            yield b"*1000000000\r\n"
            yield from _for_ever(b":1\r\n")
        case "column":
            yield b"$1073741824\r\n"
            yield from _for_ever(b"z")
        case "nested":
            yield from _for_ever(b"*9\r\n")
        case "pairs":
            yield _bulk(b"ab:cd\r\n" * ((8 << 20) // 7 - 9))
        case "wide":
            yield _bulk(WIDE * _WIDE_ROWS)
        case "text-query":
            yield b"-ERR " + TEXT.replace(b"\r", b"") + b"\r\n"
        case _:
            answer = _redis_reply(asked, HUGE if mode == "huge-number" else b"5")
            yield answer * 2 if mode == "two-answers" else answer


def _redis_reply(asked: bytes, count: bytes) -> bytes:
    if asked == b"INFO STATS":
        return _bulk(b"total_connections_received:" + count + b"\r\ntotal_commands_processed:9\r\n")
    if asked.startswith(b"CONFIG"):
        return b"*2\r\n" + _bulk(asked.split()[-1].lower()) + _bulk(b"")
    if asked == b"CLIENT ID":
        return b":4\r\n"
    return _bulk(b"id=3 addr=127.0.0.1:40000 laddr=127.0.0.1:6379 flags=N\n")


def _memcached(peer: FakePeer, stream: BufferedReader) -> Iterator[bytes]:
    while True:
        asked = peer.asked(_exactly_line(stream))
        if asked == b"version":
            yield (
                b"ERROR Too many open connections" + TEXT + b"\r\n"
                if peer.mode == "text-login"
                else b"VERSION 1.6.18\r\n"
            )
        else:
            yield from _memcached_answer(peer.mode)


def _memcached_answer(mode: str) -> Iterator[bytes]:
    match mode:
        case "drip":
            yield from _slowly(b"STAT uptime 1\r\n")
        case "endless":
            yield from _for_ever(b"STAT uptime 1\r\n")
        case "line":
            yield from _for_ever(b"x")
        case "wide":
            yield b"".join(b"STAT %d %b\r\n" % (number, WIDE) for number in range(_WIDE_ROWS))
            yield b"STAT total_connections x\r\nEND\r\n"
        case "text-query":
            yield b"SERVER_ERROR " + TEXT.replace(b"\r", b"") + b"\r\n"
        case _:
            count = HUGE if mode == "huge-number" else b"5"
            answer = b"STAT pid 1\r\nSTAT total_connections " + count + b"\r\nSTAT cmd_get 6\r\nEND\r\n"
            yield answer * 2 if mode == "two-answers" else answer
