"""Listeners in the test's own process that handle each connection in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Handler = Callable[[socket.socket], None]


@contextmanager
def serve(handle: Handler, address: str | tuple[str, int]) -> Iterator[socket.socket]:
    """Listen on a Unix socket's path or a TCP address and call `handle` with each connection. On leaving, all are closed."""
    listener = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen()
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()

    def guarded(connection: socket.socket) -> None:
        with suppress(OSError):
            handle(connection)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener
    finally:
        for each in (listener, *connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for it
            each.close()


@contextmanager
def serve_tcp(handle: Handler, port: int = 0) -> Iterator[int]:
    """`serve` on 127.0.0.1; yields the port."""
    with serve(handle, ("127.0.0.1", port)) as listener:
        yield listener.getsockname()[1]


def echo(connection: socket.socket) -> None:
    """Return all data until the other side ends, then end, too."""
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)
