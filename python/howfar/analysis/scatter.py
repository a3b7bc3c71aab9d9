"""What the scatter of a link arm's blocks is made of: the link's calibration, and everything else.

Each block calibrates the link anew, so an error of calibration differs from block to block and is in the interval with all else that
does. How large its part is follows from the round trip that each trial measured at rest: a share s of the cycle in round trips turns a
relative error e of the RTT into s x e of the throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pvariance

from howfar.stats.estimate import Part
from howfar.stats.intervals import MIN_BLOCKS, RatioJudgement
from howfar.store.receipts import number_in
from howfar.store.records import Trial


class Scatter(Part):
    """Standard deviations of the logarithm of a block's ratio: 0.02 is 2 %."""

    blocks: int
    total: float
    calibration: float
    """By the error of the link's calibration; at most `total`."""
    other: float
    """`total` without it: total² = calibration² + other²."""
    rtt: float
    """Relative standard deviation of the RTT at rest from block to block."""


def scatter(trials: Sequence[Trial], judged: RatioJudgement | None, round_trips_share: float) -> Scatter | None:
    """Of an arm's good trials; None: no link, or too few blocks. `round_trips_share`: of its cycle."""
    rtts = {
        trial.block: rtt_ns
        for trial in trials
        if (rtt_ns := number_in(trial.receipt, "link", "rtt_at_rest_ns", "p50")) is not None
    }
    if judged is None or judged.sd_log is None or len(rtts) < MIN_BLOCKS:
        return None
    mean = fmean(rtts.values())
    rtt = (pvariance(rtts.values()) * len(rtts) / (len(rtts) - 1)) ** 0.5 / mean
    calibration = min(round_trips_share * rtt, judged.sd_log)
    other = max(judged.sd_log**2 - calibration**2, 0.0) ** 0.5
    return Scatter(blocks=len(rtts), total=judged.sd_log, calibration=calibration, other=other, rtt=rtt)
