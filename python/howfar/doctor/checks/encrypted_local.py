"""Clients that encrypt what never leaves this machine."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, do, in_words, resolved
from howfar.doctor.findings import Change, Gain, Kind, Severity, Transport
from howfar.doctor.floors import saved

_OFF = {
    Kind.MYSQL: (
        ("my.cnf, of a client of MariaDB", ("[client]", "skip-ssl")),
        ("my.cnf, of a client of MySQL", ("[client]", "ssl-mode = DISABLED")),
    ),
    Kind.REDIS: (("the client's URL", ("redis://…   in place of rediss://…",)),),
    Kind.MEMCACHED: (("the client", ("without TLS, at a listener that has none: -l notls:127.0.0.1:11211",)),),
}  # fmt: skip


def check(seen: Seen) -> list[Made]:
    using = [client for client in seen.server.clients if client.local and client.by == "tcp" and client.tls]
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
    changes = tuple(Change(where=where, lines=lines, restarts=False) for where, lines in _OFF[seen.server.kind])
    return [Made(says, changes, gain, Severity.NOTE)]
