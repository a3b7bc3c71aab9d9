"""Figures as the sentences of a limit write them."""

from __future__ import annotations

from collections.abc import Mapping

from howfar.bottleneck.traffic import Way

WAY_WORDS = {"to_client": "to the client", "to_server": "to the server"}
_OWNERS = {"link": "emulator", "others": "other programs"}
_MIB = 2**20
_NAMED_SHARE = 0.02
"""A smaller owner of a CPU is not worth a word."""


def percent(share: float) -> str:
    """`62 %`; a decimal where the whole number would hide it."""
    value = share * 100
    return f"{value:.1f} %" if value < 9.95 or 99 <= value < 99.95 else f"{value:.0f} %"


def milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value * 1e3:.0f} µs" if value < 0.1 else f"{value:.3g} ms" if value < 1000 else f"{seconds:.3g} s"


def speed(bytes_per_s: float) -> str:
    """MiB a second without the unit: `117.1`, `11.7`."""
    value = bytes_per_s / _MIB
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def speed_pair(way: Way) -> str:
    """`117.1 of 117.3 MiB/s`: interface with interface, payload with payload."""
    assert way.ceilings is not None, "of a way with a rate"
    share = way.interface_bytes_per_s / way.ceilings.interface
    if way.used is not None and abs(share - way.used) > 0.02:
        return f"{percent(way.used)} of its rate with the framing of small packets, {speed(way.interface_bytes_per_s)} MiB/s"
    return f"{speed(way.interface_bytes_per_s)} of {speed(way.ceilings.interface)} MiB/s"


def hold_words(shares: Mapping[str, float]) -> str:
    """`server 62 %, emulator 35 %`, the largest first."""
    named = sorted(
        ((role, share) for role, share in shares.items() if share >= _NAMED_SHARE), key=lambda item: -item[1]
    )
    return ", ".join(f"{_OWNERS.get(role, role)} {percent(share)}" for role, share in named) or "nobody"


def times(factor: float) -> str:
    return f"x{factor:.2g}" if factor < 10 else f"x{factor:.0f}"
