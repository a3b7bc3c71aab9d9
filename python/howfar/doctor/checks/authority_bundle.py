"""A client that reads the machine's whole bundle of certificate authorities for each connect, because it names none of its own.

Libraries do so when TLS is possible and no authority is named, some even where the connection is then not encrypted.
"""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, do, in_words
from howfar.doctor.findings import Gain
from howfar.doctor.lines.clients import naming_an_authority

FEWEST_LOOKS = 2
"""One may be a program that starts."""


def check(seen: Seen) -> list[Made]:
    using = [
        client
        for client in seen.server.clients
        if client.bundle_looks >= FEWEST_LOOKS and client.connects_seen > client.connections
    ]
    if not using or seen.server.bundle_ns is None:
        return []
    most = max(client.bundle_looks for client in using)
    return [
        Made(
            f"{do(using, 'was', 'were')} reading the machine's bundle of certificate authorities at {most} of {seen.looks} looks, "
            "while it made new connections: no authority of its own is named",
            naming_an_authority(using),
            Gain(
                says=f"{in_words(seen.server.bundle_ns)} of its CPU at each connect",
                basis="reading that bundle here, six times",
                saves_ns=seen.server.bundle_ns,
            ),
        )
    ]
