"""MySQL sessions on this machine that compress: processor time spent to spare a network that is not there."""

from __future__ import annotations

from howfar.doctor.checks.context import Context, Draft, do, format_interval, forwards, resolved
from howfar.doctor.findings import Change, Gain, Kind, Severity, Transport
from howfar.doctor.floors import savings
from howfar.doctor.proposals import commands_without

_OPTIONS = Change(
    where="the client's own options",
    lines=("without MYSQL_CLIENT_COMPRESS, PDO::MYSQL_ATTR_COMPRESS, compress=true, --compress",),
    restarts=False,
)
"""Not a line of [client], which would also apply to other machines."""


def compressed_local(seen: Context) -> list[Draft]:
    using = [client for client in seen.server.clients if client.local and client.compressed and not forwards(client)]
    if not using:
        return []
    changes = (*commands_without("compress", using), _OPTIONS)
    gain = Gain(
        says="the processor time of compressing each answer, and of expanding it",
        basis="by what was measured elsewhere: 3 ms of the server for 100 kB with zlib, 0.5 to 1 ms with zstd; not measured here",
        saves_ns=None,
    )
    return [Draft(f"{do(using, 'compresses', 'compress')} what never leaves this machine", changes, gain)]


def encrypted_local(seen: Context) -> list[Draft]:
    using = [
        client
        for client in seen.server.clients
        if client.local and client.by == "tcp" and client.tls and not forwards(client)
    ]
    if not using:
        return []
    plain, encrypted = seen.server.floor(Transport.TCP), seen.server.floor(Transport.TLS)
    gain = None
    if plain is not None and encrypted is not None:
        trip = savings(encrypted.round_trips_ns, plain.round_trips_ns)
        connect = savings(encrypted.connects_ns, plain.connects_ns)
        said = [f"{format_interval(trip)} of each round trip"] if trip is not None and resolved(trip) else []
        said += [f"{format_interval(connect)} of each connect"] if connect is not None and resolved(connect) else []
        gain = Gain(
            says="; ".join(said) or "no difference can be told here",
            basis="TLS against plain TCP, pinged here in turns",
            saves_ns=trip,
        )
    says = f"{do(using, 'encrypts', 'encrypt')} what never leaves this machine"
    if seen.server.socket() is not None or seen.server.kind is Kind.MEMCACHED:
        return [Draft(f"{says}; by the socket there would be nothing to encrypt", (), gain, Severity.NOTE)]
    return [Draft(says, _changes(seen), gain, Severity.NOTE)]


def _changes(seen: Context) -> tuple[Change, ...]:
    """Of MySQL none: accounts may require TLS, and without it new ones log in by TCP only with a key of the server's."""
    plain = next((found for found in seen.server.listeners if found.path is None and found.tls == "none"), None)
    if seen.server.kind is not Kind.REDIS or plain is None:
        return ()
    return (
        Change(where="the client's URL", lines=(f"redis://{plain.where}   in place of rediss://…",), restarts=False),
    )


def encrypted_socket(seen: Context) -> list[Draft]:
    using = [client for client in seen.server.clients if client.by == "socket" and client.tls]
    if not using:
        return []
    plain, encrypted = seen.server.floor(Transport.SOCKET), seen.server.floor(Transport.SOCKET_TLS)
    gain = None
    if plain is not None and encrypted is not None:
        trip = savings(encrypted.round_trips_ns, plain.round_trips_ns)
        connect = savings(encrypted.connects_ns, plain.connects_ns)
        said = [f"{format_interval(found)} of each {what}" for what, found in (("round trip", trip), ("connect", connect))
                if found is not None and resolved(found)]  # fmt: skip
        basis = "the socket with TLS against without, pinged here in turns"
        gain = Gain(says="; ".join(said) or "no difference can be told here", basis=basis, saves_ns=connect)
    changes = commands_without("ssl", using)
    return [
        Draft(
            f"{do(using, 'encrypts', 'encrypt')} inside the socket, which only root could listen to",
            changes,
            gain,
            Severity.CHANGE if changes else Severity.NOTE,
        )
    ]
