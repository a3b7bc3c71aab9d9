"""What a rate carries at most, as an interface counts it and as payload, and what traffic takes of the wire."""

from __future__ import annotations

from dataclasses import dataclass

ETHERNET_BYTES = 14
"""Of each frame, in what an interface counts."""
UNCOUNTED_BYTES = 24
"""Of each frame, on the wire and in no interface's counter: preamble 8, check sequence 4, gap 12."""
IP_TCP_BYTES = 52
"""Headers of a segment: IP 20, TCP 20, timestamps 12."""
SEGMENT_HEADER_BYTES = ETHERNET_BYTES + IP_TCP_BYTES
MTU = 1500


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second, one direction, full frames."""

    interface: float
    """As /proc/net/dev counts."""
    payload: float
    """What TCP carries for its user. Never to be compared with what an interface counted."""


def ceilings(rate_bps: float, mtu: int = MTU) -> Ceilings:
    """1 Gb/s, MTU 1500: 117.3 MiB/s on the interface, 112.2 MiB/s of payload."""
    wire = mtu + ETHERNET_BYTES + UNCOUNTED_BYTES
    bytes_per_s = rate_bps / 8
    return Ceilings(
        interface=bytes_per_s * (mtu + ETHERNET_BYTES) / wire, payload=bytes_per_s * (mtu - IP_TCP_BYTES) / wire
    )


@dataclass(frozen=True)
class Carried:
    """Bytes of one direction."""

    interface: float
    wire: float
    """With what no interface counts."""


def carried(counted_bytes: float, frames: float) -> Carried:
    """From what an interface counted."""
    return Carried(interface=counted_bytes, wire=counted_bytes + frames * UNCOUNTED_BYTES)


def carried_payload(payload_bytes: float, turns: float, mtu: int = MTU) -> Carried:
    """From payload alone, where nothing counted frames: full segments, and half of one more a turn for what does not fill one."""
    segments = payload_bytes / (mtu - IP_TCP_BYTES) + turns / 2
    return carried(payload_bytes + segments * SEGMENT_HEADER_BYTES, segments)
