"""What the receipts of an arm say about its link: asked and obtained, as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from howfar.results.records import FactorValue

RTT_TOLERANCE_NS = 30_000
RTT_TOLERANCE_SHARE = 0.03
"""The link holds its word while RTT at rest is within the larger of the two."""

_REST_RTT = (
    ("rtt_rest_p50_ns",),
    ("rtt_p50_ns",),
    ("rtt", "p50_ns"),
    ("rest_rtt", "p50_ns"),
    ("rtt_at_rest", "p50_ns"),
)
"""Where a link receipt keeps the measured RTT at rest."""


@dataclass(frozen=True)
class LinkFacts:
    """One arm's link. None: not on this path, or not measured."""

    asked_rtt_ns: int | None
    rest_rtt_ns: float | None
    """Measured by ping-pong while nothing else was on the link; median over trials."""
    rate_bps: int | None

    @property
    def exists(self) -> bool:
        return self.rest_rtt_ns is not None or self.asked_rtt_ns is not None

    @property
    def as_asked(self) -> bool:
        """False only when both are known and differ by more than the tolerance."""
        if self.asked_rtt_ns is None or self.rest_rtt_ns is None:
            return True
        allowed = max(RTT_TOLERANCE_NS, RTT_TOLERANCE_SHARE * self.asked_rtt_ns)
        return abs(self.rest_rtt_ns - self.asked_rtt_ns) <= allowed


def _number(receipt: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = receipt
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _rest_rtt_ns(receipt: Mapping[str, Any]) -> float | None:
    link = receipt.get("link")
    if not isinstance(link, Mapping):
        return None
    return next((found for path in _REST_RTT if (found := _number(link, path)) is not None), None)


def _level(factors: Mapping[str, FactorValue], name: str) -> int | None:
    level = factors.get(name)
    return int(level) if isinstance(level, int | float) and not isinstance(level, bool) else None


def link_facts(factors: Mapping[str, FactorValue], receipts: Sequence[Mapping[str, Any]]) -> LinkFacts:
    """From an arm's factor levels and the receipts of its good trials. A path without a link section has no link."""
    if not any(receipt.get("link") for receipt in receipts):
        return LinkFacts(None, None, None)
    measured = [rtt for receipt in receipts if (rtt := _rest_rtt_ns(receipt)) is not None]
    return LinkFacts(
        asked_rtt_ns=_level(factors, "rtt_ns"),
        rest_rtt_ns=median(measured) if measured else None,
        rate_bps=_level(factors, "rate_bps"),
    )
