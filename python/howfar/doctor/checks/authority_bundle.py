"""A client that reads the machine's whole bundle of certificate authorities for each connect, because it names none of its own.

Libraries do so when TLS is possible and no authority is named, some even where the connection is then not encrypted.
"""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, do, in_words
from howfar.doctor.findings import Client, Gain, Kind, Severity
from howfar.doctor.lines.clients import family, naming_an_authority

FEWEST_LOOKS = 2
"""One may be a program that starts."""
_FEWEST_CONNECTS = 2


def check(seen: Seen) -> list[Made]:
    """Of MySQL alone. Programs read the bundle for any HTTPS too; PHP reads none for MySQL."""
    if seen.server.kind is not Kind.MYSQL or seen.server.bundle_ns is None:
        return []
    using = [
        client
        for client in seen.server.clients
        if client.bundle_looks >= FEWEST_LOOKS
        and client.connects_seen > client.connections
        and family(client.program) != "php"
    ]
    sure = [client for client in using if _is_for_connects(client)]
    unsure = [client for client in using if client not in sure]
    return [_made(seen, clients, clients is sure) for clients in (sure, unsure) if clients]


def _is_for_connects(client: Client) -> bool:
    """Where a program reads it for something else, a new connection is beside it now and then, not mostly."""
    return client.bundle_connects >= _FEWEST_CONNECTS and 2 * client.bundle_connects >= client.bundle_reads


def _made(seen: Seen, using: list[Client], sure: bool) -> Made:
    assert seen.server.bundle_ns is not None, "asked before"
    most = min(max(client.bundle_looks for client in using), seen.looks)
    says = f"{do(using, 'was', 'were')} reading the machine's bundle of certificate authorities at {most} of {seen.looks} looks, "
    price = in_words(seen.server.bundle_ns)
    gain = Gain(
        says=f"{price} of its CPU at each {'connect' if sure else 'reading'}",
        basis="reading that bundle here, six times",
        saves_ns=seen.server.bundle_ns,
    )
    if not sure:
        return Made(f"{says}whether for this server cannot be told", (), gain, Severity.NOTE)
    changes = naming_an_authority(using)
    severity = Severity.CHANGE if changes else Severity.NOTE
    return Made(f"{says}next to new connections: no authority of its own is named", changes, gain, severity)
