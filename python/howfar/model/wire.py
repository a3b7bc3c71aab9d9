"""What a message of the protocol becomes on a link: compressed, in TLS records, in segments with their headers. Arithmetic only.

`report/what_if.js` does the same; change both.
"""

from __future__ import annotations

from math import ceil

SEGMENT_BYTES = 1448
"""Payload of a full TCP segment with timestamps at an MTU of 1500."""
HEADER_BYTES = 90
"""Of each segment as a link's rate counts it: IP and TCP with timestamps 52, Ethernet 14, check sequence 4, preamble and gap 20."""
TLS_RECORD_BYTES = 16_384
TLS_BYTES = 22
"""Of each record: header 5, kind 1, tag 16."""


def carried_bytes(message: float, ratio: float | None = None, tls: bool = False) -> float:
    """What TCP carries of one message. `ratio`: what compression leaves of it, its own headers in; None: not compressed."""
    carried = message
    if ratio is not None:
        carried *= ratio
    if tls:
        carried += TLS_BYTES * ceil(carried / TLS_RECORD_BYTES)
    return carried


def headed_bytes(carried: float) -> float:
    """With the headers of its segments, as a link's rate counts."""
    return carried + HEADER_BYTES * ceil(carried / SEGMENT_BYTES)
