"""How far what was obtained may be from what was asked, for the laboratory that measures it and the report that warns of it."""

from __future__ import annotations

RTT_OFF_MAX_NS = 30_000
RTT_OFF_MAX_SHARE = 0.03
"""What the emulator on a small virtual machine can hold; beyond it the asked RTT is not the measured one."""


def rtt_tolerance_ns(rtt_ns: float) -> float:
    """How far the RTT at rest may be from the asked one: the larger of the two."""
    return max(RTT_OFF_MAX_NS, RTT_OFF_MAX_SHARE * rtt_ns)
