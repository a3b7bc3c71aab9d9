"""Both ends of a link in one process, for the conformance suite: streams, and the datagrams of `howfar bench link`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from howfar.bench.links import probes
from howfar.bench.links.probes import Datagrams
from howfar.lab.link import Link
from howfar.lab.network import CLIENT_ADDRESS, SERVER_ADDRESS

FRAME_BYTES = 28 + 38
"""Bytes on the wire that UDP over IPv4 over Ethernet adds to its payload."""


def datagrams(link: Link) -> AbstractContextManager[Datagrams]:
    return probes.datagrams(link.network.client, link.network.server)


@contextmanager
def stream(link: Link) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection: the client's end and the server's."""
    listener = link.network.server.within(lambda: socket.create_server((SERVER_ADDRESS, 0)))
    address = listener.getsockname()

    def connect() -> socket.socket:
        client = socket.create_connection(address, timeout=60, source_address=(CLIENT_ADDRESS, 0))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    client = link.network.client.within(connect)
    server, _ = listener.accept()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.settimeout(60)
    try:
        yield client, server
    finally:
        for one in (client, server, listener):
            with contextlib.suppress(OSError):
                one.close()
