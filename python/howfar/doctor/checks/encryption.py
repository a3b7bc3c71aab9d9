"""Encryption and compression of traffic that never leaves this machine."""

from __future__ import annotations

from howfar.doctor.checks.context import Context, Draft, do, forwards
from howfar.doctor.findings import Change, Gain, Kind, Severity, Transport
from howfar.doctor.proposals import commands_without

_COMPRESSION_OPTIONS = Change(
    where="the client's own options",
    lines=("without MYSQL_CLIENT_COMPRESS, PDO::MYSQL_ATTR_COMPRESS, compress=true, --compress",),
    restarts=False,
)
"""No line for [client]: that would also apply to connections to other machines."""


def compressed_local(context: Context) -> list[Draft]:
    """Compression on this machine: CPU time spent to spare a network that is not used."""
    using = [client for client in context.server.clients if client.local and client.compressed and not forwards(client)]
    if not using:
        return []
    gain = Gain(
        says="the CPU time of compressing and expanding each result",
        basis="measured elsewhere: 3 ms of server CPU per 100 kB with zlib, 0.5 to 1 ms with zstd; not measured here",
        saves_ns=None,
    )
    changes = (*commands_without("compress", using), _COMPRESSION_OPTIONS)
    return [Draft(f"{do(using, 'compresses', 'compress')} traffic that never leaves this machine", changes, gain)]


def encrypted_local(context: Context) -> list[Draft]:
    """TLS over the loopback."""
    server = context.server
    using = [
        client
        for client in server.clients
        if client.local and client.by == "tcp" and client.tls and not forwards(client)
    ]
    if not using:
        return []
    difference, gain = context.difference(Transport.TLS, Transport.TCP), None
    if difference is not None:
        trip, _, text = difference
        gain = Gain(says=text, basis="TLS against plain TCP, pinged here in turn", saves_ns=trip)
    says = f"{do(using, 'encrypts', 'encrypt')} traffic that never leaves this machine"
    if server.socket() is not None or server.kind is Kind.MEMCACHED:
        return [Draft(f"{says}; over the socket there would be nothing to encrypt", (), gain, Severity.NOTE)]
    return [Draft(says, _plain_url(context), gain, Severity.NOTE)]


def _plain_url(context: Context) -> tuple[Change, ...]:
    """None for MySQL: accounts may require TLS, and without it new logins over TCP need the server's RSA key."""
    plain = next((found for found in context.server.listeners if found.path is None and found.tls == "none"), None)
    if context.server.kind is not Kind.REDIS or plain is None:
        return ()
    lines = (f"redis://{plain.where}   in place of rediss://…",)
    return (Change(where="the client's URL", lines=lines, restarts=False),)


def encrypted_socket(context: Context) -> list[Draft]:
    """MySQL sessions encrypted inside a Unix socket, which only root could intercept. Some clients do so by default."""
    using = [client for client in context.server.clients if client.by == "socket" and client.tls]
    if not using:
        return []
    difference, gain = context.difference(Transport.SOCKET_TLS, Transport.SOCKET), None
    if difference is not None:
        _, connect, text = difference
        gain = Gain(says=text, basis="the socket with and without TLS, pinged here in turn", saves_ns=connect)
    changes = commands_without("ssl", using)
    says = f"{do(using, 'encrypts', 'encrypt')} inside the socket, which only root could intercept"
    return [Draft(says, changes, gain, Severity.CHANGE if changes else Severity.NOTE)]
