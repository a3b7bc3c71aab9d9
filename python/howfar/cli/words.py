"""Small phrases that several commands show: times left, ratios with their width."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.trials import Value
from howfar.runner.rule import ArmStanding, Forecast
from howfar.store.records import (
    CONFIRMATION_BLOCK,
    ArmRole,
    CrashRecord,
    FallbackRecord,
    StopReason,
    Trial,
    TrialStatus,
)

_FEW = 100

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
    """`0.78 ±4 %`, `baseline`, `-` while unknown; `(settled)`: it rests."""
    if arm.role is ArmRole.BASELINE:
        return "baseline"
    if arm.ratio is None:
        return "-"
    return f"{arm.ratio.value:.3f}{_width(arm.half_width)}{' (settled)' if arm.rests else ''}"


def number(rate: float) -> str:
    """`26108`, `14.7`: of few a second a tenth is told."""
    return f"{rate:.1f}" if rate < _FEW else f"{rate:.0f}"


def _width(half: float | None) -> str:
    """Beyond the whole of the ratio a figure says nothing more."""
    if half is None:
        return ""
    return " (> ±100 %)" if half > 1 else f" ±{half * 100:.3g} %"


def blocks_of(forecast: Forecast, most: int) -> str:
    """`of about 4`; `of at most 30` when only the cap ends the run."""
    return f"of at most {most}" if forecast.blocks >= most else f"of about {forecast.blocks}"


def block(number: int) -> str:
    """`block 3`, `confirmation 1`."""
    if number >= CONFIRMATION_BLOCK:
        return f"confirmation {number - CONFIRMATION_BLOCK + 1}"
    return f"block {number + 1}"


def unlike(differs: Sequence[str]) -> str:
    """A warning: what is not as when the run was begun."""
    return f"warning: not as when the run was begun: {'; '.join(differs)}"


def trial_result(trial: Trial, rate: tuple[str, Value]) -> str:
    """`26108 queries/s` by the unit and the value of `rate`, what was lost where something broke, or why it is void."""
    if trial.status is TrialStatus.OK and isinstance(trial.fault, CrashRecord):
        return f"lost {trial.fault.lost} of {trial.fault.acknowledged} acknowledged commits"
    if trial.status is TrialStatus.OK and isinstance(trial.fault, FallbackRecord):
        return f"{trial.fault.unprotected} of {trial.fault.acknowledged} commits unprotected"
    if trial.status is TrialStatus.OK and trial.measured is not None:
        unit, value = rate
        return f"{number(value(trial.measured) or 0)} {unit}"
    return f"void: {trial.void_reason}"
