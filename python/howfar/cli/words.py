"""Small phrases that several commands show: times left, ratios with their width."""

from __future__ import annotations

from howfar.conduct.rule import ArmStanding
from howfar.results.records import ArmRole, StopReason, Trial, TrialStatus

STOPPED = {
    StopReason.WIDTH: "every interval is as narrow as asked",
    StopReason.TIME: "the time budget is used",
    StopReason.BLOCKS: "the highest number of blocks is reached",
    StopReason.INTERRUPTED: "interrupted",
}


def time_left(ns: int) -> str:
    """`4 min 10 s`, `35 s`."""
    seconds = max(round(ns / 1e9), 0)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def ratio(arm: ArmStanding) -> str:
    """`0.78 ±4 %`, `baseline`, `-` while unknown."""
    if arm.role is ArmRole.BASELINE:
        return "baseline"
    if arm.ratio is None:
        return "-"
    width = "" if arm.half_width is None else f" ±{arm.half_width * 100:.3g} %"
    return f"{arm.ratio.value:.3f}{width}"


def trial_result(trial: Trial) -> str:
    """`26108 queries/s`, or why it is void."""
    if trial.status is TrialStatus.OK and trial.measured is not None:
        return f"{trial.measured.queries / (trial.measured.elapsed_ns / 1e9):.0f} queries/s"
    return f"void: {trial.void_reason}"
