"""Asks a FastCGI application for one page, for what the laboratory wants to know. Never in a measured path: the engine has its own."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from howfar.errors import LabError

_HEADER = struct.Struct(">BBHHBx")
_VERSION = 1
_REQUEST = 1
_BEGIN, _END, _PARAMS, _STDIN, _STDOUT, _STDERR = 1, 3, 4, 5, 6, 7
_RESPONDER = struct.pack(">HB5x", 1, 0)
_LONGEST = 65_535


@dataclass(frozen=True)
class Answer:
    """`told`: the integers of its header X-Howfar-Page."""

    status: int
    headers: Mapping[str, str]
    body: str
    complaints: str
    """What it wrote to its standard error."""

    @property
    def told(self) -> dict[str, int]:
        """Raises LabError where it is not `name=integer,…`."""
        header = self.headers.get("x-howfar-page", "")
        pairs = [pair.partition("=") for pair in header.split(",") if pair]
        if not all(value.isascii() and value.isdigit() for _, _, value in pairs):
            raise LabError(f"the application told of its page by {header[:200]!r}, which is not name=integer,…")
        return {name: int(value) for name, _, value in pairs}


def ask(where: Path, parameters: Mapping[str, str], patience_s: float) -> Answer:
    """Raises LabError where no whole answer comes."""
    output = {_STDOUT: b"", _STDERR: b""}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(patience_s)
            connection.connect(str(where))
            connection.sendall(_request(parameters))
            for kind, content in _records(connection):
                if kind == _END:
                    break
                output[kind] = output.get(kind, b"") + content
            else:
                raise LabError(f"the application at {where} ended its answer in the middle")
    except OSError as error:
        raise LabError(f"asking the application at {where} failed: {error}") from error
    return _answer(output[_STDOUT], output[_STDERR].decode(errors="replace"))


def _request(parameters: Mapping[str, str]) -> bytes:
    pairs = b"".join(_pair(name.encode(), value.encode()) for name, value in parameters.items())
    pieces = [pairs[start : start + _LONGEST] for start in range(0, len(pairs), _LONGEST)]
    records = [(_BEGIN, _RESPONDER), *((_PARAMS, piece) for piece in pieces), (_PARAMS, b""), (_STDIN, b"")]
    return b"".join(_HEADER.pack(_VERSION, kind, _REQUEST, len(content), 0) + content for kind, content in records)


def _pair(name: bytes, value: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(one) | 1 << 31) for one in (name, value)) + name + value


def _records(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Until the other end closes."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(_HEADER.size)) == _HEADER.size:
            _, kind, _, length, padding = _HEADER.unpack(head)
            content = stream.read(length)
            if len(content) < length or len(stream.read(padding)) < padding:
                return
            yield kind, content


def _answer(output: bytes, complaints: str) -> Answer:
    head, _, body = output.decode(errors="replace").replace("\r\n", "\n").partition("\n\n")
    lines = (line.partition(":") for line in head.split("\n"))
    headers = {name.strip().lower(): value.strip() for name, _, value in lines}
    status = headers.get("status", "200").split(" ")[0]
    return Answer(int(status) if status.isdigit() else 0, headers, body, complaints)
