"""What an arm's receipts say about its link, asked and obtained, and how much of it was used; as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from howfar.analysis.summary import CellSummary
from howfar.plan.quantities import rtt_tolerance_ns
from howfar.store.records import FactorValue

GOODPUT_TOLERANCE_SHARE = 0.05
"""The link holds its word while its RTT is within its tolerance, and while bulk transfer, measured when the link was
calibrated, is within this of what its rate allows."""


@dataclass(frozen=True)
class LinkFacts:
    """One arm's link. None: not on this path, or not measured."""

    asked_rtt_ns: int | None
    rest_rtt_ns: float | None
    """Measured by ping-pong while nothing else was on the link; median over trials."""
    goodput_share: float | None
    """Measured over expected bulk transfer, the worse direction; None: not measured, or no rate asked."""
    ping_rtt_ns: float | None = None
    """What the ping takes over the asked link, its own bytes at the rate included; None: of an older receipt, the asked RTT."""

    @property
    def as_asked(self) -> bool:
        """False only when asked and measured are both known and differ by more than the tolerance."""
        if self.goodput_share is not None and abs(self.goodput_share - 1) > GOODPUT_TOLERANCE_SHARE:
            return False
        if self.asked_rtt_ns is None or self.rest_rtt_ns is None:
            return True
        expected_ns = self.asked_rtt_ns if self.ping_rtt_ns is None else self.ping_rtt_ns
        return abs(self.rest_rtt_ns - expected_ns) <= rtt_tolerance_ns(self.asked_rtt_ns)


def _number(receipt: Mapping[str, Any], *path: str) -> float | None:
    value: Any = receipt
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _goodput_share(receipt: Mapping[str, Any]) -> float | None:
    expected = _number(receipt, "link", "calibration", "expected_goodput_bps")
    ways = [_number(receipt, "link", "calibration", "goodput_bps", way) for way in ("to_server", "to_client")]
    known = [way for way in ways if way is not None]
    if not expected or not known:
        return None
    return min((way / expected for way in known), key=lambda share: -abs(share - 1))


def _level(factors: Mapping[str, FactorValue], name: str) -> int | None:
    level = factors.get(name)
    return int(level) if isinstance(level, int | float) and not isinstance(level, bool) else None


def used_share(cell: CellSummary) -> float | None:
    """Of the rate, by the busier direction: as the interface counted it against its ceiling, else by the protocol's bytes, headers
    not in. None: no rate."""
    seen = cell.network
    if seen is not None and seen.interface_ceiling_bytes_per_s and seen.at_s:
        ways = (seen.to_client_bytes_per_s, seen.to_server_bytes_per_s)
        return max(sum(way) / len(way) for way in ways) / seen.interface_ceiling_bytes_per_s
    rate = _level(cell.factors, "rate_bps")
    if not rate or not cell.queries_per_txn:
        return None
    ways_bytes = [count for count in (cell.bytes_per_txn.to_client, cell.bytes_per_txn.to_server) if count is not None]
    if not ways_bytes:
        return None
    return max(ways_bytes) * 8 * cell.qps.value / cell.queries_per_txn / rate


def link_facts(factors: Mapping[str, FactorValue], receipts: Sequence[Mapping[str, Any]]) -> LinkFacts:
    """From an arm's factor levels and the receipts of its good trials. A path without a link section has no link."""
    if not any(receipt.get("link") for receipt in receipts):
        return LinkFacts(None, None, None)
    measured = [rtt for receipt in receipts if (rtt := _number(receipt, "link", "rtt_at_rest_ns", "p50")) is not None]
    return LinkFacts(
        asked_rtt_ns=_level(factors, "rtt_ns"),
        rest_rtt_ns=median(measured) if measured else None,
        ping_rtt_ns=next(
            (ns for receipt in receipts if (ns := _number(receipt, "link", "asked", "rest_rtt_ns")) is not None), None
        ),
        goodput_share=next((share for receipt in receipts if (share := _goodput_share(receipt)) is not None), None),
    )
