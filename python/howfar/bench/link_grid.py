"""Which links the bench asks for, and how long it looks at each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from howfar.bench.link_bars import LONG_FAT, LONG_FAT_AFTER_NS
from howfar.bench.link_figures import Asked
from howfar.lab.link import goodput_times_ns

RTTS_MS: Final = (0.2, 1.0, 10.0, 85.0)
RATES_GBIT: Final = (0.1, 1.0, 10.0)
QUICK: Final = (Asked(rtt_ms=1.0, rate_gbit=1.0), Asked(rtt_ms=10.0, rate_gbit=10.0))
"""One of everyday and one that is hard; both can also be asked of toxiproxy."""


@dataclass(frozen=True)
class Times:
    """Bounds of the pings and the transfer of one measurement."""

    pings_ns: int
    pings_least: int
    pings_most: int
    transfer_ns: int

    def pings(self, rtt_ns: int) -> int:
        """As many as fit, so many at least that a p99 is more than the maximum by another name."""
        return min(max(self.pings_ns // max(rtt_ns, 1), self.pings_least), self.pings_most)

    def transfer(self, asked: Asked) -> tuple[int, int]:
        """Warm-up and window: as the laboratory's own, the window at least `transfer_ns`; the link whose bar names the warm-up has
        that."""
        warmup_ns, measure_ns = goodput_times_ns(asked.rtt_ns)
        if (asked.rtt_ms, asked.rate_gbit) == LONG_FAT:
            warmup_ns = LONG_FAT_AFTER_NS
        return warmup_ns, max(measure_ns, self.transfer_ns)


FULL_TIMES: Final = Times(pings_ns=2_000_000_000, pings_least=100, pings_most=2000, transfer_ns=2_000_000_000)
QUICK_TIMES: Final = Times(pings_ns=300_000_000, pings_least=50, pings_most=300, transfer_ns=1_000_000_000)


def grid(rtts_ns: Sequence[int], rates_bps: Sequence[int]) -> tuple[Asked, ...]:
    """Every RTT with every rate, each once."""
    return tuple(
        Asked(rtt_ms=rtt / 1e6, rate_gbit=rate / 1e9)
        for rtt in dict.fromkeys(rtts_ns)
        for rate in dict.fromkeys(rates_bps)
    )
