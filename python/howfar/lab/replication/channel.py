"""Whether what crosses between a primary and its replicas is encrypted and compressed as asked: by what the primary counts, and by
what a known row becomes on the wire. A status only repeats what a replica was told.

Looked at once, when a pair is proven, before anybody else is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from howfar.lab.replication.asked import ReplicationAsked
from howfar.lab.replication.member import Member
from howfar.lab.replication.wires import Wire
from howfar.lab.window_network import open_in, traffic

FILLING = "replicas " * 3000
"""Text for a row of its own. Any compression leaves a hundredth of it, and encryption none the less."""
_COMPRESSED_MOST = len(FILLING) // 4
"""With headers, acknowledgements and heartbeats."""
_HANDSHAKES = "Ssl_finished_accepts"


@dataclass(frozen=True)
class ChannelFacts:
    """Until a pair was proven."""

    tls_handshakes: int
    """That the primary finished since it started. Nobody but its replicas came over the network yet."""
    row_bytes: int
    """Of the row that was written."""
    wire_bytes: Mapping[str, int]
    """What the primary's host sent to each replica for it, by the kernel's count."""


def tls_handshakes(primary: Member) -> int:
    """Raises LabError, ServerCrashed."""
    return int(primary.status(f"LIKE '{_HANDSHAKES}'")[_HANDSHAKES])


def sent_bytes(wires: Sequence[Wire]) -> dict[str, int]:
    """By the primary's host to each replica, since their interfaces are there."""
    found = {}
    for wire in wires:
        with closing(open_in(wire.network.server, "dev")) as file:
            seen = traffic(file.read(), wire.network.ends.server_device)
        assert seen is not None, "a wire has a device at either end"
        found[wire.host.name] = seen.sent_bytes
    return found


def channel_violations(asked: ReplicationAsked, seen: ChannelFacts) -> tuple[str, ...]:
    """Where asked and obtained differ. Pure."""
    found = []
    if asked.tls and seen.tls_handshakes < asked.replicas:
        found.append(f"{seen.tls_handshakes} of {asked.replicas} replicas came to the primary by TLS")
    if not asked.tls and seen.tls_handshakes:
        found.append(f"{seen.tls_handshakes} replicas came to the primary by TLS, which nobody asked for")
    for name, crossed in seen.wire_bytes.items():
        if asked.compression is not None and crossed > _COMPRESSED_MOST:
            found.append(f"a row of {seen.row_bytes} bytes went to {name} in {crossed}: it was not compressed")
        if asked.compression is None and crossed < seen.row_bytes:
            found.append(f"a row of {seen.row_bytes} bytes went to {name} in {crossed}: it was compressed")
    return tuple(found)
