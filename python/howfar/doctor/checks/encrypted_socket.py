"""MySQL sessions that are encrypted inside a Unix socket, which nobody but root could listen to: some clients do so by themselves."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, do, in_words, resolved
from howfar.doctor.findings import Gain, Severity, Transport
from howfar.doctor.floors import saved
from howfar.doctor.lines.clients import commands_without


def check(seen: Seen) -> list[Made]:
    using = [client for client in seen.server.clients if client.by == "socket" and client.tls]
    if not using:
        return []
    plain, encrypted = seen.server.floor(Transport.SOCKET), seen.server.floor(Transport.SOCKET_TLS)
    gain = None
    if plain is not None and encrypted is not None:
        trip = saved(encrypted.round_trips_ns, plain.round_trips_ns)
        connect = saved(encrypted.connects_ns, plain.connects_ns)
        said = [f"{in_words(found)} of each {what}" for what, found in (("round trip", trip), ("connect", connect))
                if found is not None and resolved(found)]  # fmt: skip
        basis = "the socket with TLS against without, pinged here in turns"
        gain = Gain(says="; ".join(said) or "no difference can be told here", basis=basis, saves_ns=connect)
    changes = commands_without("ssl", using)
    return [
        Made(
            f"{do(using, 'encrypts', 'encrypt')} inside the socket, which only root could listen to",
            changes,
            gain,
            Severity.CHANGE if changes else Severity.NOTE,
        )
    ]
