"""Programs between a client and a server for tests: TLS that ends before the server, and a man in the middle."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from howfar.lab.servers import CertificatePaths

_SSL_REQUEST = struct.pack("!II", 8, 80_877_103)


@dataclass(frozen=True)
class Front:
    """A listening front, and the server names that clients have sent in their handshakes."""

    port: int
    names: list[str | None] = field(default_factory=list)


Begin = Callable[[socket.socket, socket.socket, ssl.SSLContext], tuple[socket.socket, socket.socket]]


def ends_tls(
    client: socket.socket, server: socket.socket, context: ssl.SSLContext
) -> tuple[socket.socket, socket.socket]:
    """PostgreSQL: the client has TLS, the connection to the server has none."""
    if client.recv(8, socket.MSG_PEEK | socket.MSG_WAITALL) == _SSL_REQUEST:
        client.recv(8)
        client.sendall(b"S")
    return context.wrap_socket(client, server_side=True), server


def renews_tls(
    client: socket.socket, server: socket.socket, context: ssl.SSLContext
) -> tuple[socket.socket, socket.socket]:
    """PostgreSQL: the connection to the server has a separate TLS session."""
    near, _ = ends_tls(client, server, context)
    server.sendall(_SSL_REQUEST)
    assert server.recv(1) == b"S"
    return near, _unverified().wrap_socket(server)


def renews_tls_of_mysql(
    client: socket.socket, server: socket.socket, context: ssl.SSLContext
) -> tuple[socket.socket, socket.socket]:
    """MySQL, like a man in the middle: greeting and request are forwarded, then each side has a TLS session with the front."""
    client.sendall(_packet(server))
    server.sendall(_packet(client))
    return context.wrap_socket(client, server_side=True), _unverified().wrap_socket(server)


def _packet(stream: socket.socket) -> bytes:
    head = stream.recv(4, socket.MSG_WAITALL)
    return head + stream.recv(int.from_bytes(head[:3], "little"), socket.MSG_WAITALL)


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextmanager
def front(
    server: tuple[str, int],
    certificate: CertificatePaths,
    *,
    begin: Begin = ends_tls,
    known: Sequence[str] = (),
    ciphers: str | None = None,
) -> Iterator[Front]:
    """Listen on 127.0.0.1 for clients of `server`. `known`: the only names that are served. `ciphers`: TLS 1.2 with only these."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.set_alpn_protocols(["postgresql"])
    if ciphers is not None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Front(listener.getsockname()[1])

        def check(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int | None:
            found.names.append(name)
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME if known and name not in known else None

        context.sni_callback = check
        threading.Thread(target=_accept, args=(listener, server, context, begin), daemon=True).start()
        yield found
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, server: tuple[str, int], context: ssl.SSLContext, begin: Begin) -> None:
    with suppress(OSError):
        while True:
            client = listener.accept()[0]
            threading.Thread(target=_serve, args=(client, server, context, begin), daemon=True).start()


def _serve(client: socket.socket, address: tuple[str, int], context: ssl.SSLContext, begin: Begin) -> None:
    with client, suppress(OSError), socket.create_connection(address) as server:
        near, far = begin(client, server, context)
        with near, far:
            _relay(near, far)


def _relay(near: socket.socket, far: socket.socket) -> None:
    """Relay in one thread: OpenSSL does not allow two to use a connection at once. Ends when either side ends."""
    while True:
        decrypted = [end for end in (near, far) if isinstance(end, ssl.SSLSocket) and end.pending()]
        for source in decrypted or select.select((near, far), (), ())[0]:
            source.setblocking(False)  # the readable data may be only a session ticket
            try:
                data = source.recv(65_536)
            except (ssl.SSLWantReadError, BlockingIOError):
                continue
            finally:
                source.setblocking(True)
            if not data:
                return
            (far if source is near else near).sendall(data)
