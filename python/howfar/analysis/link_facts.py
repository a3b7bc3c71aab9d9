"""An arm's link according to its receipts: what was requested, what was measured, and whether the two agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from howfar.contract.receipt import LinkReceipt, TrialReceipt
from howfar.plan.factor import Level
from howfar.plan.quantities import rtt_tolerance_ns

GOODPUT_TOLERANCE_SHARE = 0.05
"""Largest difference of bulk transfer, measured at calibration, from what the link's rate permits."""


@dataclass(frozen=True)
class LinkFacts:
    """One arm's link. A field is None if this path has no link, or if it was not measured."""

    requested_rtt_ns: int | None
    rest_rtt_ns: float | None
    """The unloaded RTT: measured by ping-pong while nothing else was on the link; median over trials."""
    goodput_share: float | None
    """Ratio of measured to expected bulk transfer, in the worse direction."""
    ping_rtt_ns: float | None = None
    """Expected RTT of a ping over the requested link, with the transmission of its own bytes. None in older receipts, where the
    requested RTT is used."""

    hosts_rtt_ns: float | None = None
    """Part of the RTT that is spent in the hosts, as calibrated: twice what the emulator subtracts from the delay of each
    direction. None if unknown."""
    late_ns: float | None = None
    """How much late packets lengthened a round trip under load; the mean over trials. None if unknown."""
    is_real: bool = False
    """Whether the link is a real one, between the user's own hosts."""

    @property
    def is_as_requested(self) -> bool:
        """False only when requested and measured are both known and differ by more than the tolerance."""
        if self.goodput_share is not None and abs(self.goodput_share - 1) > GOODPUT_TOLERANCE_SHARE:
            return False
        if self.requested_rtt_ns is None or self.rest_rtt_ns is None:
            return True
        expected_ns = self.expected_rtt_ns or self.requested_rtt_ns
        return abs(self.rest_rtt_ns - expected_ns) <= rtt_tolerance_ns(self.requested_rtt_ns)

    @property
    def emulated_rtt_ns(self) -> float | None:
        """Expected unloaded RTT of an emulated link. None for a real link, or for one without a delay."""
        return self.expected_rtt_ns if self.requested_rtt_ns and not self.is_real else None

    @property
    def expected_rtt_ns(self) -> float | None:
        """Expected RTT of a ping over the link as requested."""
        return self.requested_rtt_ns if self.ping_rtt_ns is None else self.ping_rtt_ns


def _goodput_share(link: LinkReceipt) -> float | None:
    """Ratio of measured to expected bulk transfer, in the direction that deviates more. None if unknown."""
    calibration = link.calibration
    if calibration is None or calibration.goodput_bps is None:
        return None
    expected, measured = calibration.expected_goodput_bps, calibration.goodput_bps
    known = [bps for bps in (measured.to_server, measured.to_client) if bps is not None]
    return min((bps / expected for bps in known), key=lambda share: -abs(share - 1)) if expected and known else None


def numeric_level(factors: Mapping[str, Level], name: str) -> int | None:
    """The level of a numeric factor. None if the level is not a number, or if this cell does not have the factor."""
    value = factors.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def link_facts(factors: Mapping[str, Level], receipts: Sequence[TrialReceipt]) -> LinkFacts:
    """Facts from an arm's factor levels and the receipts of its good trials. A path without a link section has no link."""
    links = [receipt.link for receipt in receipts if receipt.link is not None]
    if not links:
        return LinkFacts(None, None, None)
    measured = [rtt_ns for link in links if (rtt_ns := link.rest_rtt_ns) is not None]
    late_ns = [late for link in links if link.counters is not None and (late := link.counters.late_ns) is not None]
    host_times_ns = [time_ns for link in links if (time_ns := link.compensate_ns) is not None]
    return LinkFacts(
        requested_rtt_ns=numeric_level(factors, "rtt_ns"),
        rest_rtt_ns=median(measured) if measured else None,
        ping_rtt_ns=next((rtt_ns for link in links if (rtt_ns := link.expected_rtt_ns) is not None), None),
        hosts_rtt_ns=2 * median(host_times_ns) if host_times_ns else None,
        late_ns=fmean(late_ns) if late_ns else None,
        is_real=any(link.real for link in links),
        goodput_share=next((share for link in links if (share := _goodput_share(link)) is not None), None),
    )
