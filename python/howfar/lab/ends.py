"""Names and addresses of one link's two ends: devices of the hosts, devices in the middle, IPv4, IPv6, Ethernet.

Link 0 joins client and server; link n joins replica n, as the client that it is there, and the primary's host, which is the server.
"""

from __future__ import annotations

from dataclasses import dataclass

REPLICAS_MOST = 9
"""One digit keeps every name short: a thread of the emulator is named after both devices, in 15 letters."""


@dataclass(frozen=True)
class Ends:
    """Of one link. Nothing in here is shared with another link of the same laboratory."""

    client_device: str
    server_device: str
    client_middle: str
    server_middle: str
    bridge: str
    """In the middle, of the back-end that has one."""
    client_address: str
    server_address: str
    client_address6: str
    server_address6: str
    subnet: str
    subnet6: str
    client_mac: str
    server_mac: str


def numbered(number: int) -> Ends:
    """The ends of link `number`."""
    assert 0 <= number <= REPLICAS_MOST, "names have one digit"
    own, other, own_middle, other_middle = ("c0", "s0", "lc", "ls") if number == 0 else _replica_names(number)
    return Ends(
        client_device=own,
        server_device=other,
        client_middle=own_middle,
        server_middle=other_middle,
        bridge=f"lab{number}",
        client_address=f"10.77.{number}.1",
        server_address=f"10.77.{number}.2",
        client_address6=f"fd00:{77 + number}::1",
        server_address6=f"fd00:{77 + number}::2",
        subnet=f"10.77.{number}.0/30",
        subnet6=f"fd00:{77 + number}::/64",
        client_mac=f"02:00:0a:4d:{number:02x}:01",
        server_mac=f"02:00:0a:4d:{number:02x}:02",
    )


def _replica_names(number: int) -> tuple[str, str, str, str]:
    return f"r{number}", f"p{number}", f"lr{number}", f"lp{number}"


FIRST = numbered(0)
