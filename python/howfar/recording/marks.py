"""Receives marks: the datagrams in which pages report their begin and end, sent to the address in $HOWFAR_MARKS.

A mark is `page PID BEGUN_NS ENDED_NS METHOD[:STATUS] NAME`. Times are those of CLOCK_MONOTONIC, PID 0 means all processes, and STATUS
is that of HTTP. A page sends its mark at its end and waits for no answer, so it does not fail if no recorder runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections import deque
from collections.abc import Collection

from howfar.recording.recording import TimedPage
from howfar.terminal_text import one_line

VARIABLE = "HOWFAR_MARKS"
HTTP_VARIABLE = "HOWFAR_HTTP"
_MAX_DATAGRAM = 2048
_MAX_NAME = 120
_MAX_MARKS = 1_000_000
_RECEIVE_BUFFER_BYTES = 4 << 20
_POLL_S = 0.1
"""Interval between reads. The kernel's buffer of an unprivileged socket holds about 500 marks, which allows 5,000 pages per second."""
_MARK = re.compile(r"page (\d{1,10}) (\d{1,19}) (\d{1,19}) (mark|php|http)(?::(\d(?:\d\d|xx)))? (.+)", re.DOTALL)
_PART_WITH_DIGIT = re.compile(r"[^/]*\d[^/]*")


def send(pid: int, begun_ns: int, ended_ns: int, method: str, name: str) -> bool:
    """Mark a page. Returns False if the environment names no recorder."""
    host, _, port = os.environ.get(VARIABLE, "").rpartition(":")
    if not port.isdigit():
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError, OverflowError):
        sender.sendto(f"page {pid} {begun_ns} {ended_ns} {method} {name}".encode()[:_MAX_DATAGRAM], (host, int(port)))
    return True


def parse_mark(page_id: int, text: str, page_by: Collection[str] = ()) -> TimedPage | None:
    """The page that a datagram marks, or None.

    Pages are grouped by name, so a URL loses its query, and `*` replaces each part of its path that has a digit (typically an ID).
    `page_by` lists exceptions, which are kept: parameters of the query, and parts of the path, which begin with `/`. The engine's HTTP
    recorder applies the same rule (`tests/data/page_names.tsv`).
    """
    match = _MARK.fullmatch(text)
    if match is None:
        return None
    pid, begun_ns, ended_ns, method, status, name = match.groups()
    if method != "mark":
        path, _, query = name.partition("#")[0].partition("?")
        kept_query = "&".join(pair for pair in query.split("&") if pair.partition("=")[0] in page_by)
        name = _PART_WITH_DIGIT.sub(lambda part: part[0] if f"/{part[0]}" in page_by else "*", path)
        name += f"?{kept_query}" if kept_query else ""
    name = one_line(name.strip())[:_MAX_NAME] or "page"
    if int(ended_ns) < int(begun_ns) or int(ended_ns) >= 1 << 63:
        return None
    failed = None if status in (None, "000") else status[0] == "5"
    return TimedPage(page_id, name, method, 1.0, int(pid) or None, int(begun_ns), int(ended_ns), failed)  # type: ignore[arg-type]


class Marks:
    """Receives marks until the context manager exits; then `pages` has all of them. Use as a context manager.

    Marks wait in the kernel's buffer and are read periodically: reading each at once would wake this process while the next page
    begins.
    """

    def __init__(self, page_by: Collection[str] = ()) -> None:
        """`page_by`: see `parse_mark`."""
        self._page_by = page_by
        self.pages: list[TimedPage] = []
        self.malformed = 0
        self._texts: deque[bytes] = deque()
        self._received = 0
        self._exiting = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        host, port = self._socket.getsockname()
        self.address = f"{host}:{port}"
        self._thread = threading.Thread(target=self._read_periodically, name="marks", daemon=True)

    def add(self, name: str, begun_ns: int, ended_ns: int, failed: bool) -> None:
        """Add a page that the application did not mark itself, of any process. `failed`: the answer was a server error."""
        status = "5xx" if failed else "2xx"
        self._texts.append(f"page 0 {begun_ns} {ended_ns} http:{status} {name}".encode())

    def _read_periodically(self) -> None:
        while not self._exiting.wait(_POLL_S):
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                text = self._socket.recv(_MAX_DATAGRAM)
                self._received += 1
                if self._received <= _MAX_MARKS:
                    self._texts.append(text)
                else:
                    self.malformed += 1

    def take(self) -> list[TimedPage]:
        """Return the pages received since the last call and add them to `pages`. Only one thread may call it at a time."""
        pages: list[TimedPage] = []
        while self._texts:
            text = self._texts.popleft().decode(errors="replace")
            page = parse_mark(len(self.pages) + len(pages) + 1, text, self._page_by)
            if page is None:
                self.malformed += 1
            else:
                pages.append(page)
        self.pages += pages
        return pages

    def __enter__(self) -> Marks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._exiting.set()
        self._thread.join(5)
        self._drain()
        self._socket.close()
        self.take()
