"""Clients that encrypt what never leaves this machine."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, do, forwards, in_words, resolved
from howfar.doctor.findings import Change, Gain, Kind, Severity, Transport
from howfar.doctor.floors import saved


def check(seen: Seen) -> list[Made]:
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
        trip = saved(encrypted.round_trips_ns, plain.round_trips_ns)
        connect = saved(encrypted.connects_ns, plain.connects_ns)
        said = [f"{in_words(trip)} of each round trip"] if trip is not None and resolved(trip) else []
        said += [f"{in_words(connect)} of each connect"] if connect is not None and resolved(connect) else []
        gain = Gain(
            says="; ".join(said) or "no difference can be told here",
            basis="TLS against plain TCP, pinged here in turns",
            saves_ns=trip,
        )
    says = f"{do(using, 'encrypts', 'encrypt')} what never leaves this machine"
    if seen.server.socket() is not None or seen.server.kind is Kind.MEMCACHED:
        return [Made(f"{says}; by the socket there would be nothing to encrypt", (), gain, Severity.NOTE)]
    return [Made(says, _changes(seen), gain, Severity.NOTE)]


def _changes(seen: Seen) -> tuple[Change, ...]:
    """Of MySQL none: accounts may require TLS, and without it new ones log in by TCP only with a key of the server's."""
    plain = next((found for found in seen.server.listeners if found.path is None and found.tls == "none"), None)
    if seen.server.kind is not Kind.REDIS or plain is None:
        return ()
    return (
        Change(where="the client's URL", lines=(f"redis://{plain.where}   in place of rediss://…",), restarts=False),
    )
